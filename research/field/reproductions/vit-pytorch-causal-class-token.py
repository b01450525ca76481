"""ViTND with causal_dims: later patches reach earlier ones through the class token."""

import sys
from importlib.metadata import version
from unittest.mock import MagicMock

import torch

sys.modules["torchvision"] = MagicMock()  # the package imports it, and this does not need it

from vit_pytorch.vit_nd import ViTND

torch.manual_seed(0)
sizes = {"ndim": 2, "input_shape": (8, 4), "patch_size": 2, "num_classes": 4, "dim": 32, "heads": 2, "mlp_dim": 32}
seen = {}
for depth in (1, 2):
    model = ViTND(**sizes, depth=depth, causal_dims=(0,)).eval()
    x = torch.randn(1, 3, 8, 4)
    later = torch.cat((x[:, :, :6], x[:, :, 6:] + 1), 2)
    with torch.no_grad():
        patches, others = (model(y, return_nd_patches=True)[1] for y in (x, later))
    seen[depth] = float((patches - others)[:, :, :3].abs().max())

print(f"vit-pytorch {version('vit-pytorch')}, torch {torch.__version__}")
print("expected: another last row of patches changes nothing in the rows before it")
print("came:     it changes them by", "; ".join(f"{by:.2g} with {n} layers" for n, by in seen.items()))
raise SystemExit(max(seen.values()) > 1e-6)
