"""ESM-2 keeps its table of cosines by length and device, not by dtype: after a cast, a call of that length gets it."""

from importlib.metadata import version

import torch
from esm.rotary_embedding import RotaryEmbedding

TOKENS, DIM = 512, 16

torch.manual_seed(0)
x = torch.randn(1, TOKENS, DIM)
expected = RotaryEmbedding(DIM)(x, x)[0]

rotary = RotaryEmbedding(DIM).bfloat16()
rotary(x.bfloat16(), x.bfloat16())
inv_freq = RotaryEmbedding(DIM).inv_freq
rotary.float().inv_freq.copy_(inv_freq)  # the frequencies as they were: what is left is the table
off = float((rotary(x, x)[0] - expected).abs().max())

rotary = RotaryEmbedding(DIM)
rotary(x, x)
dtype = rotary.half()(x.half(), x.half())[0].dtype

print(f"fair-esm {version('fair-esm')}, torch {torch.__version__}")
print("expected: in float32 after a call in bfloat16, the same to 1e-5; in half after a call in float32, torch.float16")
print(f"came:     off by {off:.2g}; {dtype}, with which the model ends in an error")
raise SystemExit(off > 1e-5 or dtype != torch.float16)
