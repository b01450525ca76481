"""MAE, SimMIM and MPP do not run on a ViT as their README makes it."""

import importlib.util
import sys
import types
from importlib.metadata import version

import torch

# The package's own __init__ imports torchvision, which this does not need.
parent = types.ModuleType("vit_pytorch")
parent.__path__ = list(importlib.util.find_spec("vit_pytorch").submodule_search_locations)
sys.modules["vit_pytorch"] = parent

from vit_pytorch.mae import MAE
from vit_pytorch.mpp import MPP
from vit_pytorch.simmim import SimMIM
from vit_pytorch.vit import ViT

print(f"vit-pytorch {version('vit-pytorch')}, torch {torch.__version__}")
came = {}
for name, made in {
    "MAE": lambda vit: MAE(encoder=vit, decoder_dim=64),
    "SimMIM": lambda vit: SimMIM(encoder=vit),
    "MPP": lambda vit: MPP(transformer=vit, patch_size=32, dim=128),
}.items():
    vit = ViT(image_size=256, patch_size=32, num_classes=10, dim=128, depth=1, heads=2, mlp_dim=64)
    try:
        came[name] = f"a loss of {float(made(vit)(torch.rand(2, 3, 256, 256))):.3g}"
    except Exception as error:
        came[name] = type(error).__name__ + ": " + " ".join(str(error).split())[:120]

print("expected: a loss of each")
print("came:    ", "; ".join(f"{name}: {what}" for name, what in came.items()))
raise SystemExit(any("Error" in what for what in came.values()))
