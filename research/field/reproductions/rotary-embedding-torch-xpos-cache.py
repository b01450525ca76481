"""xPos of rotary-embedding-torch gives other scores with a cache than without."""

from importlib.metadata import version

import torch
from rotary_embedding_torch import RotaryEmbedding

TOKENS, DIM = 512, 16

torch.manual_seed(0)
rotary = RotaryEmbedding(DIM, use_xpos=True).double()
query, key = torch.randn(2, 1, 1, TOKENS, DIM).double()
all_queries, keys = rotary.rotate_queries_and_keys(query, key)
newest, cached = rotary.rotate_queries_with_cached_keys(query[:, :, -1:], key)
at_once = (all_queries[:, :, -1:] * keys).sum(-1)
off = float(((newest * cached).sum(-1) - at_once).abs().max())

print(f"rotary-embedding-torch {version('rotary-embedding-torch')}, torch {torch.__version__}")
print("expected: the scores of the newest query with a cache are those of all at once, to 1e-9")
print(f"came:     off by up to {off:.2g}, where the largest is {float(at_once.abs().max()):.2g}")
raise SystemExit(off > 1e-9)
