"""PositionalEncoding1D remembers by shape alone: a call in float32 gets what was made for bfloat16."""

from importlib.metadata import version

import torch
from positional_encodings.torch_encodings import PositionalEncoding1D

x = torch.zeros(1, 64, 32)
module = PositionalEncoding1D(32)
module(x.bfloat16())
after, expected = module(x), PositionalEncoding1D(32)(x)
off = float((after - expected).abs().max())

print(f"positional-encodings {version('positional-encodings')}, torch {torch.__version__}")
print("expected: torch.float32, and the same as of a new module, to 1e-6")
print(f"came:     {after.dtype}, off by up to {off:.2g}")
raise SystemExit(after.dtype != torch.float32 or off > 1e-6)
