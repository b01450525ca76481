"""Swin, Swin v2 and v2-CR: in a map that windows do not divide, the first rows see the last ones."""

import sys
from unittest.mock import MagicMock

import torch

for name in ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets"):
    sys.modules["torchvision" + name] = MagicMock()  # timm imports it, and this does not need it

import timm
from timm.models.swin_transformer import SwinTransformerBlock
from timm.models.swin_transformer_v2 import SwinTransformerV2Block
from timm.models.swin_transformer_v2_cr import SwinTransformerV2CrBlock

print(f"timm {timm.__version__}, torch {torch.__version__}")
torch.manual_seed(0)
HEIGHT, WIDTH = 9, 8
options = {"dim": 32, "num_heads": 2, "window_size": 4, "shift_size": 2}
size = (HEIGHT, WIDTH)
blocks = {
    "Swin": SwinTransformerBlock(input_resolution=size, **options).eval()._attn,
    "Swin v2": SwinTransformerV2Block(input_resolution=size, **options).eval()._attn,
    "Swin v2-CR": SwinTransformerV2CrBlock(feat_size=size, **options).eval()._shifted_window_attn,
}
x = torch.randn(1, HEIGHT, WIDTH, 32)
other = torch.cat((torch.randn(1, 1, WIDTH, 32), x[:, 1:]), 1)  # another first row
reached = {}
with torch.no_grad():
    for name, block in blocks.items():
        changed = (block(x) - block(other)).abs().amax((0, 2, 3))
        reached[name] = [row for row in range(HEIGHT) if changed[row] > 1e-6]

print("expected: the first row reaches rows 0 and 1, which share its shifted window")
print("came:     it reaches rows", "; ".join(f"{rows} in {name}" for name, rows in reached.items()))
raise SystemExit(any(row > 1 for rows in reached.values() for row in rows))
