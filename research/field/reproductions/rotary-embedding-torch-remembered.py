"""rotary-embedding-torch hands phases that were computed in bfloat16 to later calls in float32."""

from importlib.metadata import version

import torch
from rotary_embedding_torch import RotaryEmbedding

TOKENS, DIM = 1024, 16

torch.manual_seed(0)
x = torch.randn(1, 1, TOKENS, DIM)
rotary = RotaryEmbedding(DIM)
rotary.rotate_queries_or_keys(x.bfloat16())
after = rotary.rotate_queries_or_keys(x)
off = float((after - RotaryEmbedding(DIM).rotate_queries_or_keys(x)).abs().max())

print(f"rotary-embedding-torch {version('rotary-embedding-torch')}, torch {torch.__version__}")
print("expected: a call in float32 gives the same after a call in bfloat16, to 1e-5")
print(f"came:     off by up to {off:.2g}, where the largest is {float(x.abs().max()):.2g}")
raise SystemExit(off > 1e-5)
