"""Layers of keras-hub compute positions in the compute dtype, which bfloat16 cannot tell apart past 256."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import keras_hub
import torch
from keras_hub.src.models.esm.esm_attention import ESMRotaryEmbedding as Esm
from keras_hub.src.models.roformer_v2.roformer_v2_attention import RoformrPositionalEmbedding as Roformer
from keras_hub.src.models.xlnet.xlnet_content_and_query_embedding import ContentAndQueryEmbedding as XLNet

ones, ids = torch.ones(1, 1024, 1, 64), torch.zeros(1, 1024).long()
calls = {
    "RotaryEmbedding": lambda dtype: keras_hub.layers.RotaryEmbedding(dtype=dtype)(ones),
    "SinePositionEncoding": lambda dtype: keras_hub.layers.SinePositionEncoding(dtype=dtype)(ones[:, :, 0]),
    "ESM": lambda dtype: Esm(dtype=dtype)(*[ones.bfloat16() if "bfloat16" in dtype else ones] * 2)[0],
    "RoFormer": lambda dtype: Roformer(64, dtype=dtype)([ones]),
    "XLNet": lambda dtype: XLNet(32, 64, 0.0, dtype=dtype)(ids)[1],
}
off = {name: float((call("mixed_bfloat16").float() - call("float32")).abs().max()) for name, call in calls.items()}
good = off.pop("RotaryEmbedding")

print(f"keras-hub {keras_hub.__version__}, keras {keras.__version__}, torch {torch.__version__}")
print(f'expected: under "mixed_bfloat16", off by at most 0.05 up to position 1024; RotaryEmbedding is, by {good:.2g}')
print("came:     off by " + ", ".join(f"{value:.2g} ({name})" for name, value in off.items()))
raise SystemExit(max(off.values()) > 0.05)
