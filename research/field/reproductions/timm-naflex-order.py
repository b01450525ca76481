"""NaFlex: positions go by the index of a patch, unless they are sampled."""

import sys
from unittest.mock import MagicMock

import torch

for name in ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets"):
    sys.modules["torchvision" + name] = MagicMock()  # timm imports it, and this does not need it

import timm
from timm.models.naflexvit import NaFlexEmbeds

torch.manual_seed(0)
coordinates, x = torch.cartesian_prod(torch.arange(3), torch.arange(4))[None], torch.randn(1, 12, 12)
order, apart = torch.randperm(12), {}
sizes = {"patch_size": 2, "embed_dim": 8, "proj_type": "linear", "class_token": False}
learned = {"pos_embed": "learned", "pos_embed_grid_size": (3, 4), "pos_embed_interp_mode": "bilinear"}
for sampled in (False, True):
    embed = NaFlexEmbeds(**sizes, **learned, pos_embed_use_grid_sample=sampled).eval()
    torch.nn.init.normal_(embed.pos_embed)
    with torch.no_grad():
        out, other = embed(x, coordinates)[0], embed(x[:, order], coordinates[:, order])[0]
    apart[sampled] = float((out[:, order] - other).abs().max())

print(f"timm {timm.__version__}, torch {torch.__version__}")
print("expected: patches handed in in another order, with their coordinates, come out the same")
print(f"came:     off by {apart[False]:.2g}; with pos_embed_use_grid_sample by {apart[True]:.2g}")
raise SystemExit(apart[False] > 1e-4)
