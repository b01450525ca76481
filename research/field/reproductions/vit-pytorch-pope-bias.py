"""A learned bias of PoPE that begins uniform cannot be made."""

import sys
from importlib.metadata import version
from unittest.mock import MagicMock

import torch

sys.modules["torchvision"] = MagicMock()  # the package imports it, and this does not need it

from vit_pytorch.vit_nd_pope import GoldenGatePoPENd

print(f"vit-pytorch {version('vit-pytorch')}, torch {torch.__version__}")
print("expected: a bias for each head and channel, between -2 pi and 0")
try:
    bias = GoldenGatePoPENd(dim_pos=2, heads=2, dim_head=16, init_learned_bias_uniform=True).learned_bias
except RuntimeError as error:
    print("came:     RuntimeError:", error)
    raise SystemExit(1) from None
print(f"came:     one between {float(bias.min()):.3g} and {float(bias.max()):.3g}")
