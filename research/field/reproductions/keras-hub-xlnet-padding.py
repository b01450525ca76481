"""XLNet of keras-hub masks tokens of one row by the padding of another."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import keras_hub
import torch
from keras_hub.src.models.xlnet.xlnet_encoder import XLNetAttentionMaskLayer

layer = XLNetAttentionMaskLayer(hidden_dim=16, kernel_initializer_range=0.02)
padding_mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
content, query = layer(padding_mask)
# Of each row, the keys that the query stream sees.
seen = query[:, 0].int().tolist()

print(f"keras-hub {keras_hub.__version__}, keras {keras.__version__}, torch {torch.__version__}")
print(f"expected: keys are seen as the padding mask says, {padding_mask.tolist()}")
print(f"came:     {seen}")
raise SystemExit(seen != padding_mask.tolist())
