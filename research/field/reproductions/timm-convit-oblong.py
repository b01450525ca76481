"""ConViT takes the patches of an oblong image for those of a square."""

import sys
from unittest.mock import MagicMock

import torch

for name in ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets"):
    sys.modules["torchvision" + name] = MagicMock()  # timm imports it, and this does not need it

import timm
from timm.models.convit import GPSA, ConVit

print(f"timm {timm.__version__}, torch {torch.__version__}")
HEIGHT, WIDTH = 2, 8
offsets = GPSA(32, num_heads=4).get_rel_indices(HEIGHT * WIDTH)[0, 0, :, :2].long()  # columns and rows from the first
expected = torch.tensor([[column, row] for row in range(HEIGHT) for column in range(WIDTH)])
model = ConVit(img_size=(32, 64), patch_size=16, embed_dim=32, num_heads=4, depth=2, local_up_to_layer=1)
try:
    model(torch.zeros(1, 3, 32, 64))
    ran = "runs"
except RuntimeError as error:
    ran = f"RuntimeError: {error}"
wrong = int((offsets != expected).any(-1).sum())

print(f"expected: the last patch of {HEIGHT} x {WIDTH} is {expected[-1].tolist()} from the first; 2 x 4 patches run")
print(f"came:     {offsets[-1].tolist()}, and {wrong} of {HEIGHT * WIDTH} offsets wrong; 2 x 4: {ran}")
raise SystemExit(wrong > 0 or ran != "runs")
