"""RelPosMlp of mode swin gives NaN for a window of one row or one column."""

import sys
from unittest.mock import MagicMock

import torch

for name in ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets"):
    sys.modules["torchvision" + name] = MagicMock()  # timm imports it, and this does not need it

import timm
from timm.layers import RelPosMlp

print(f"timm {timm.__version__}, torch {torch.__version__}")
torch.manual_seed(0)
with torch.no_grad():
    bias = RelPosMlp((1, 3), num_heads=2, mode="swin").eval().get_bias()
bad = int(bias.isnan().sum())

print(f"expected: {bias.numel()} numbers")
print(f"came:     {bad} of them NaN")
raise SystemExit(bad > 0)
