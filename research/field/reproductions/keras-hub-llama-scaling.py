"""LlamaRotaryEmbedding of keras-hub ignores position_scaling_factor."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import keras_hub
import torch
from keras_hub.src.models.llama.llama_rotary_embedding import LlamaRotaryEmbedding

x = torch.ones(1, 8, 1, 16)
positions = torch.arange(8)
scaled = LlamaRotaryEmbedding(position_scaling_factor=4.0)(x)
quarter = keras_hub.layers.RotaryEmbedding()(x, positions=positions / 4)
off = float((scaled - quarter).abs().max())
same = torch.equal(scaled, LlamaRotaryEmbedding()(x))

print(f"keras-hub {keras_hub.__version__}, keras {keras.__version__}, torch {torch.__version__}")
print("expected: position_scaling_factor=4 rotates position 4 as position 1 is rotated without, to 1e-5")
print(f"came:     off by {off:.2g}" + ("; the same as without" if same else ""))
raise SystemExit(off > 1e-5)
