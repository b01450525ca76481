"""Swin, Swin v2 and v2-CR: in a map that windows do not divide, the first rows see the last ones."""

import sys
from unittest.mock import MagicMock

import torch

for name in ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets"):
    sys.modules["torchvision" + name] = MagicMock()  # timm imports it, and this does not need it

import timm
from timm.models import swin_transformer, swin_transformer_v2, swin_transformer_v2_cr

torch.manual_seed(0)
SIZE, options = (9, 8), {"dim": 32, "num_heads": 2, "window_size": 4, "shift_size": 2}
swin = swin_transformer.SwinTransformerBlock(input_resolution=SIZE, **options).eval()
v2 = swin_transformer_v2.SwinTransformerV2Block(input_resolution=SIZE, **options).eval()
cr = swin_transformer_v2_cr.SwinTransformerV2CrBlock(feat_size=SIZE, **options).eval()
x = torch.randn(1, *SIZE, 32)
other = torch.cat((torch.randn(1, 1, 8, 32), x[:, 1:]), 1)  # another first row
reached = {}
with torch.no_grad():
    for name, attend in {"Swin": swin._attn, "Swin v2": v2._attn, "Swin v2-CR": cr._shifted_window_attn}.items():
        reached[name] = ((attend(x) - attend(other)).abs().amax((0, 2, 3)) > 1e-6).nonzero().flatten().tolist()

print(f"timm {timm.__version__}, torch {torch.__version__}")
print("expected: the first row reaches rows 0 and 1, which share its shifted window")
print("came:     it reaches rows", "; ".join(f"{rows} in {name}" for name, rows in reached.items()))
raise SystemExit(any(row > 1 for rows in reached.values() for row in rows))
