"""Three layers of keras-hub compute positions in the compute dtype, which bfloat16 cannot tell apart past 256."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import keras_hub
import torch
from keras_hub.src.models.esm.esm_attention import ESMRotaryEmbedding
from keras_hub.src.models.roformer_v2.roformer_v2_attention import RoformrPositionalEmbedding
from keras_hub.src.models.xlnet.xlnet_content_and_query_embedding import ContentAndQueryEmbedding

TOKENS, DIM = 1024, 64
ones = torch.ones(1, TOKENS, 1, DIM)


def sines(dtype):
    return keras_hub.layers.SinePositionEncoding(dtype=dtype)(ones[:, :, 0])[0]


def esm(dtype):
    x = ones.to(torch.bfloat16 if "bfloat16" in dtype else torch.float32)
    return ESMRotaryEmbedding(dtype=dtype)(x, x)[0][0, :, 0]


def roformer(dtype):
    return RoformrPositionalEmbedding(DIM, dtype=dtype)([ones])[0, :, 0]


def xlnet(dtype):
    return ContentAndQueryEmbedding(32, DIM, 0.0, dtype=dtype)(torch.zeros(1, TOKENS).long())[1][0, :TOKENS]


rotary = keras_hub.layers.RotaryEmbedding
good = rotary(dtype="mixed_bfloat16")(ones)[0, :, 0]
found = {}
for make in (sines, esm, roformer, xlnet):
    low, exact = make("mixed_bfloat16").float(), make("float32")
    found[make.__name__] = float((low - exact).abs().max())
least = float((good.float() - rotary()(ones)[0, :, 0]).abs().max())

print(f"keras-hub {keras_hub.__version__}, keras {keras.__version__}, torch {torch.__version__}")
print(
    f'expected: under "mixed_bfloat16", off by at most 0.05 up to position {TOKENS}; RotaryEmbedding is, by {least:.2g}'
)
print("came:     off by " + ", ".join(f"{value:.2g} ({name})" for name, value in found.items()))
raise SystemExit(max(found.values()) > 0.05)
