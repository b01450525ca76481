"""FourierEmbed in bfloat16 rounds its frequencies, which go up to 352 radians."""

import sys
from unittest.mock import MagicMock

import torch

for name in ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets"):
    sys.modules["torchvision" + name] = MagicMock()  # timm imports it, and this does not need it

import timm
from timm.layers import FourierEmbed

print(f"timm {timm.__version__}, torch {torch.__version__}")
embed = FourierEmbed(max_res=224, num_bands=64, concat_grid=False, keep_spatial=True)
x = torch.zeros(1, 1, 14, 14)
exact = embed(x)[:, 1:]
off = float((exact - embed.bfloat16()(x.bfloat16())[:, 1:].float()).abs().max())

print("expected: sines and cosines off by less than 0.01, which is what bfloat16 holds")
print(f"came:     off by up to {off:.2g}")
raise SystemExit(off >= 0.01)
