"""Frequencies of up to 10,000 radians a patch are cast with the model: RoPE and PoPE of ViTND, and RvT."""

import sys
from importlib.metadata import version
from unittest.mock import MagicMock

import torch

sys.modules["torchvision"] = MagicMock()  # the package imports it, and this does not need it

from vit_pytorch.rvt import AxialRotaryEmbedding
from vit_pytorch.vit_nd_pope import GoldenGatePoPENd
from vit_pytorch.vit_nd_rotary import GoldenGateRoPENd

print(f"vit-pytorch {version('vit-pytorch')}, torch {torch.__version__}")
places = torch.cartesian_prod(torch.arange(14), torch.arange(14))[None]
x = torch.randn(1, 2, 196, 32, generator=torch.Generator().manual_seed(0))
rope = GoldenGateRoPENd(dim_pos=2, heads=2, dim_head=32)
pope = GoldenGatePoPENd(dim_pos=2, heads=2, dim_head=32)
rvt = AxialRotaryEmbedding(64, max_freq=224)
exact = (rope(x, places), pope(places)[0], rvt(x)[0])
for module in (rope, pope, rvt):
    module.bfloat16()
cast = (rope(x, places), pope(places)[0], rvt(x.bfloat16())[0])
off = [float((one - other.float()).abs().max()) for one, other in zip(exact, cast, strict=True)]

print(f"expected: vectors of at most {float(x.norm(dim=-1).max()):.2g} turned to 0.05, phases and sines alike")
print("came:     RoPE off by {:.2g}, the phases of PoPE by {:.3g} radians, the sines of RvT by {:.2g}".format(*off))
raise SystemExit(max(off) > 0.05)
