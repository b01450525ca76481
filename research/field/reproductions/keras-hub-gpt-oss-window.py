"""GPT-OSS of keras-hub sees one token more than sliding_window says."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import keras_hub
import torch
from keras_hub.src.models.gpt_oss.gpt_oss_attention import GptOssAttention

TOKENS, WINDOW = 12, 4

layer = GptOssAttention(num_query_heads=1, num_key_value_heads=1, sliding_window=WINDOW, head_dim=TOKENS)
layer.build((1, TOKENS, TOKENS))
layer.key_dense.kernel.assign(torch.zeros(layer.key_dense.kernel.shape))
for dense in (layer.value_dense, layer.output_dense):
    dense.kernel.assign(torch.eye(TOKENS).view(dense.kernel.shape))
causal = torch.ones(1, TOKENS, TOKENS).tril().bool()
weights = layer(torch.eye(TOKENS)[None], attention_mask=causal)[0]
seen = int((weights.abs() > 1e-3).sum(-1).max())

print(f"keras-hub {keras_hub.__version__}, keras {keras.__version__}, torch {torch.__version__}")
print(f"expected: a token sees {WINDOW}, itself included, as in the published model")
print(f"came:     {seen}")
raise SystemExit(seen > WINDOW)
