"""A learned bias of PoPE that begins uniform cannot be made."""

import importlib.util
import sys
import types
from importlib.metadata import version

import torch

# The package's own __init__ imports torchvision, which this does not need.
parent = types.ModuleType("vit_pytorch")
parent.__path__ = list(importlib.util.find_spec("vit_pytorch").submodule_search_locations)
sys.modules["vit_pytorch"] = parent

from vit_pytorch.vit_nd_pope import GoldenGatePoPENd

print(f"vit-pytorch {version('vit-pytorch')}, torch {torch.__version__}")
print("expected: a bias for each head and channel, between -2 pi and 0")
try:
    bias = GoldenGatePoPENd(dim_pos=2, heads=2, dim_head=16, init_learned_bias_uniform=True).learned_bias
except RuntimeError as error:
    print("came:     RuntimeError:", error)
    raise SystemExit(1) from None
print(f"came:     one between {float(bias.min()):.3g} and {float(bias.max()):.3g}")
