"""MAE, SimMIM and MPP do not run on a ViT as their README makes it."""

import sys
from importlib.metadata import version
from unittest.mock import MagicMock

import torch

sys.modules["torchvision"] = MagicMock()  # the package imports it, and this does not need it

from vit_pytorch.mae import MAE
from vit_pytorch.mpp import MPP
from vit_pytorch.simmim import SimMIM
from vit_pytorch.vit import ViT

print(f"vit-pytorch {version('vit-pytorch')}, torch {torch.__version__}")
vit = ViT(image_size=256, patch_size=32, num_classes=10, dim=128, depth=1, heads=2, mlp_dim=64)
options = {MAE: {"encoder": vit, "decoder_dim": 64}, SimMIM: {"encoder": vit}}
options[MPP] = {"transformer": vit, "patch_size": 32, "dim": 128}
came = {}
for make in options:
    try:
        came[make.__name__] = f"a loss of {float(make(**options[make])(torch.rand(2, 3, 256, 256))):.3g}"
    except RuntimeError as error:
        came[make.__name__] = type(error).__name__ + ": " + " ".join(str(error).split())[:120]

print("expected: a loss of each")
print("came:    ", "; ".join(f"{name}: {what}" for name, what in came.items()))
raise SystemExit(any("Error" in what for what in came.values()))
