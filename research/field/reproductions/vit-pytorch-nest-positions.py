"""The layers of NesT do not see its positions: each is one number, which their norms take away."""

import sys
from importlib.metadata import version
from unittest.mock import MagicMock

import torch

sys.modules["torchvision"] = MagicMock()  # the package imports it, and this does not need it

from vit_pytorch.nest import Transformer

print(f"vit-pytorch {version('vit-pytorch')}, torch {torch.__version__}")
torch.manual_seed(0)
with torch.no_grad():
    layers = Transformer(dim=32, seq_len=16, depth=2, heads=2, mlp_mult=2).double().eval()
    x = torch.randn(1, 32, 4, 4).double()
    order = torch.randperm(16)
    turned = x.flatten(2)[:, :, order].view_as(x)
    positions = layers.pos_emb.view(1, 1, 4, 4)  # added to the input, and so found again in the output
    out, other = layers(x) - positions, layers(turned) - positions
apart = float((out.flatten(2)[:, :, order] - other.flatten(2)).abs().max())

print(f"expected: patches of {float(out.abs().max()):.3g} come out otherwise when they change places")
print(f"came:     they differ by {apart:.2g} after two layers of attention")
raise SystemExit(apart < 1e-9)
