"""build_sincos2d_pos_embed(reverse_coord=True) gives patches of an oblong grid other places."""

import sys
from unittest.mock import MagicMock

import torch

for name in ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets"):
    sys.modules["torchvision" + name] = MagicMock()  # timm imports it, and this does not need it

import timm
from timm.layers import build_sincos2d_pos_embed

print(f"timm {timm.__version__}, torch {torch.__version__}")
HEIGHT, WIDTH = 2, 3
plain = build_sincos2d_pos_embed([HEIGHT, WIDTH], dim=8)  # sin of row, of column, cos of row, of column
expected = plain.unflatten(1, (2, 2, 2)).flip(2).flatten(1)  # column before row, for the same patches
came = build_sincos2d_pos_embed([HEIGHT, WIDTH], dim=8, reverse_coord=True)
square = [build_sincos2d_pos_embed([3, 3], dim=8, reverse_coord=reverse) for reverse in (False, True)]
wrong = int(((came - expected).abs() > 1e-6).any(-1).sum())

print(f"expected: column before row for each of the {HEIGHT * WIDTH} patches, and so another table for a square too")
print(f"came:     {wrong} patches at other places; for 3 x 3 {'the same' if torch.equal(*square) else 'another'} table")
raise SystemExit(wrong > 0 or torch.equal(*square))
