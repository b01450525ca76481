"""x-transformers counts positions in the dtype of the model: in bfloat16 they fall together past 256."""

from importlib.metadata import version

import torch
from x_transformers.x_transformers import RotaryEmbedding, ScaledSinusoidalEmbedding

TOKENS, DIM = 1024, 32

positions, x = torch.arange(TOKENS), torch.zeros(1, TOKENS, DIM)
different = len(RotaryEmbedding(DIM).bfloat16()(positions)[0].unique(dim=1)[0])
exact, cast = (RotaryEmbedding(DIM).to(dtype)(positions)[0].float() for dtype in (torch.float32, torch.bfloat16))
off = float((cast - exact).abs().max())
sines, low = ScaledSinusoidalEmbedding(DIM), ScaledSinusoidalEmbedding(DIM).bfloat16()
apart = float((low(x).float() - sines(x)).detach().abs().max()) * DIM**0.5  # of sines that are at most 1

print(f"x-transformers {version('x-transformers')}, torch {torch.__version__}")
print(f"expected: {TOKENS} positions, phases off by at most 0.01 radians, and sinusoids by 0.01")
print(f"came:     {different} positions, phases off by up to {off:.2g} radians, sinusoids by {apart:.2g}")
raise SystemExit(max(off, apart) > 0.01)
