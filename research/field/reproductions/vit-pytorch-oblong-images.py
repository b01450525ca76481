"""ViT-5 and RvT rotate the patches of an oblong image as if it were square."""

import sys
from importlib.metadata import version
from unittest.mock import MagicMock

import torch

sys.modules["torchvision"] = MagicMock()  # the package imports it, and this does not need it

from vit_pytorch.rvt import RvT
from vit_pytorch.vit_5 import AxialRotaryEmbedding, ViT

print(f"vit-pytorch {version('vit-pytorch')}, torch {torch.__version__}")
came = AxialRotaryEmbedding(16, num_registers=0)(torch.zeros(1, 2 * 8, 16))[0].view(2, 8, 16)
rows_alike = torch.equal(came[0, 0, :8], came[0, 7, :8])  # the half of the channels that is the row's
options = {"patch_size": 8, "num_classes": 2, "dim": 32, "depth": 1, "heads": 2, "mlp_dim": 32, "dim_head": 16}
ran = {}
for name, model in {"ViT-5": ViT(image_size=(64, 32), **options), "RvT": RvT(image_size=64, **options)}.items():
    try:
        model(torch.zeros(1, 3, 64, 32))
        ran[name] = "runs"
    except RuntimeError as error:
        ran[name] = f"RuntimeError: {error}"

print("expected: patches of one row of 2 x 8 at one height; images of 8 x 4 patches run")
print(f"came:     the row's first and last patch {'are' if rows_alike else 'are not'} at one height;", ran)
raise SystemExit(not rows_alike or set(ran.values()) != {"runs"})
