"""HaloAttn with stride=2 takes the number of a query for its place, and so other offsets."""

import sys
from unittest.mock import MagicMock

import torch

for name in ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets"):
    sys.modules["torchvision" + name] = MagicMock()  # timm imports it, and this does not need it

import timm
from timm.layers.halo_attn import HaloAttn

print(f"timm {timm.__version__}, torch {torch.__version__}")
torch.manual_seed(0)
BLOCK, HALO, STRIDE = 4, 1, 2
embed = HaloAttn(32, stride=STRIDE, num_heads=2, block_size=BLOCK, halo_size=HALO).pos_embed
with torch.no_grad():
    embed.width_rel.zero_()
    queries, keys = BLOCK // STRIDE, BLOCK + 2 * HALO
    bias = embed(torch.ones(1, 1, queries**2, embed.dim_head)).view(queries, queries, keys, keys)[:, 0, :, 0]
of_offset: dict[int, set[float]] = {}
for query in range(queries):
    for key in range(keys):
        of_offset.setdefault(key - HALO - STRIDE * query, set()).add(round(float(bias[query, key]), 4))
several = [offset for offset, biases in of_offset.items() if len(biases) > 1]

print("expected: one bias for each offset in pixels between a query and a key")
print(f"came:     several for the offsets {several}" if several else "came:     one for each")
raise SystemExit(bool(several))
