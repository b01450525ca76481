"""CrossFormer's dynamic position bias is asked about other offsets than those of the patches."""

import sys
from importlib.metadata import version
from unittest.mock import MagicMock

import torch

sys.modules["torchvision"] = MagicMock()  # the package imports it, and this does not need it

from vit_pytorch.crossformer import Attention

print(f"vit-pytorch {version('vit-pytorch')}, torch {torch.__version__}")
torch.manual_seed(0)
SIDE = 3
attention = Attention(64, attn_type="short", window_size=SIDE)
asked = []
attention.dpb.register_forward_hook(lambda module, given, bias: asked.append(given[0]))
with torch.no_grad():
    attention(torch.randn(1, 64, SIDE, SIDE))
came = asked[0][attention.rel_pos_indices].long()  # the offsets whose bias each query adds for each key
places = torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE))
expected = places[:, None] - places[None, :]
wrong = int((came != expected).any(-1).sum())

here, there = expected[0, 0].tolist(), expected[8, 0].tolist()
print(f"expected: a patch and itself are {here} apart, the last and the first {there}")
print(f"came:     {came[0, 0].tolist()} and {came[8, 0].tolist()}; wrong for {wrong} of {SIDE**4} pairs")
raise SystemExit(wrong > 0)
