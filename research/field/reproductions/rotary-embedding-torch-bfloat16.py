"""rotary-embedding-torch counts in the dtype of the queries: past 256, bfloat16 has no number for each position."""

from importlib.metadata import version

import torch
from rotary_embedding_torch import RotaryEmbedding

TOKENS = 1024

x = torch.tensor([1.0, 0.0]).repeat(8).expand(1, 1, TOKENS, 16)  # so that each pair of channels becomes (cos, sin)
exact = RotaryEmbedding(16).rotate_queries_or_keys(x)
cast = RotaryEmbedding(16).rotate_queries_or_keys(x.bfloat16()).float()
with torch.autocast("cpu", torch.bfloat16):
    autocast = RotaryEmbedding(16).rotate_queries_or_keys(x.bfloat16()).float()
off = [float((low - exact).abs().max()) for low in (cast, autocast)]

print(f"rotary-embedding-torch {version('rotary-embedding-torch')}, torch {torch.__version__}")
print(f"expected: cosines and sines of {TOKENS} positions off by at most 0.01, which is what bfloat16 holds")
print("came:     off by {:.2g} for queries in bfloat16, by {:.2g} under autocast".format(*off))
raise SystemExit(max(off) > 0.01)
