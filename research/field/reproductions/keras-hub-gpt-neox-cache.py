"""GPT-NeoX of keras-hub rotates the query of a cached step as if it were the first token."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import keras_hub
import torch

keras.utils.set_random_seed(0)
sizes = {"vocabulary_size": 32, "num_layers": 1, "num_heads": 2, "hidden_dim": 32, "intermediate_dim": 16}
backbone = keras_hub.models.GPTNeoXBackbone(**sizes, dropout=0.0)
for weight in backbone.weights:  # those that it draws are small
    weight.assign(weight.value + 0.3 * torch.randn(weight.shape))
model = keras_hub.models.GPTNeoXCausalLM(backbone=backbone, preprocessor=None)
ids = torch.arange(8)[None]
with torch.no_grad():
    at_once = model({"token_ids": ids, "padding_mask": torch.ones_like(ids)})
    _, _, cache = model.call_with_cache(ids[:, :4], torch.zeros(1, 1, 2, 8, 2, 16), 0)
    off = []
    for n in range(4, 8):
        logits, _, cache = model.call_with_cache(ids[:, n : n + 1], cache, n)
        off.append(float((logits - at_once[:, n : n + 1]).abs().max()))

print(f"keras-hub {keras_hub.__version__}, keras {keras.__version__}, torch {torch.__version__}")
print("expected: a step of `call_with_cache` gives the logits of the whole text, to 0.001")
print("came:     step by step, off by " + ", ".join(f"{value:.2g}" for value in off))
raise SystemExit(max(off) > 1e-3)
