"""PositionalEncoding1D counts in the dtype of its frequencies: past 256, bfloat16 has no number for each position."""

from importlib.metadata import version

import torch
from positional_encodings.torch_encodings import PositionalEncoding1D

TOKENS = 1024

x = torch.zeros(1, TOKENS, 32)
exact = PositionalEncoding1D(32)(x)
cast = PositionalEncoding1D(32).bfloat16()(x.bfloat16())
different, off = len(cast[0].unique(dim=0)), float((cast.float() - exact).abs().max())

print(f"positional-encodings {version('positional-encodings')}, torch {torch.__version__}")
print(f"expected: {TOKENS} positions, and sinusoids off by at most 0.01, which is what bfloat16 holds")
print(f"came:     {different} positions, off by up to {off:.2g}")
raise SystemExit(off > 0.01)
