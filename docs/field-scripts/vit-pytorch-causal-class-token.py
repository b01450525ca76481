"""ViTND with causal_dims: later patches reach earlier ones through the class token."""

import importlib.util
import sys
import types
from importlib.metadata import version

import torch

# The package's own __init__ imports torchvision, which this does not need.
parent = types.ModuleType("vit_pytorch")
parent.__path__ = list(importlib.util.find_spec("vit_pytorch").submodule_search_locations)
sys.modules["vit_pytorch"] = parent

from vit_pytorch.vit_nd import ViTND

print(f"vit-pytorch {version('vit-pytorch')}, torch {torch.__version__}")
torch.manual_seed(0)
seen = {}
for depth in (1, 2):
    model = ViTND(
        ndim=2,
        input_shape=(8, 4),
        patch_size=2,
        num_classes=4,
        dim=32,
        depth=depth,
        heads=2,
        mlp_dim=32,
        causal_dims=(0,),
    ).eval()
    x = torch.randn(1, 3, 8, 4)
    later = torch.cat((x[:, :, :6], x[:, :, 6:] + 1), 2)
    with torch.no_grad():
        patches, others = (model(y, return_nd_patches=True)[1] for y in (x, later))
    seen[depth] = float((patches - others)[:, :, :3].abs().max())

print("expected: another last row of patches changes nothing in the rows before it")
print("came:     it changes them by", "; ".join(f"{by:.2g} with {n} layers" for n, by in seen.items()))
raise SystemExit(max(seen.values()) > 1e-6)
