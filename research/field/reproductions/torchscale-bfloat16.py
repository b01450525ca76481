"""XPOS of torchscale rounds phases to the dtype of its scale before it takes their sine."""

from importlib.metadata import version

import torch
from torchscale.component.xpos_relative_position import XPOS, fixed_pos_embedding

TOKENS, DIM = 1024, 16

torch.manual_seed(0)
x = torch.randn(1, TOKENS, DIM)
exact, cast = XPOS(DIM)(x), XPOS(DIM).bfloat16()(x.bfloat16()).float()
off = float((cast - exact).abs().max())
scale = torch.ones(TOKENS, DIM // 2)  # which tells no more than the shape and the dtype
sine = float((fixed_pos_embedding(scale.bfloat16())[0].float() - fixed_pos_embedding(scale)[0]).abs().max())

print(f"torchscale {version('torchscale')}, torch {torch.__version__}")
print("expected: sines off by at most 0.01, which is what bfloat16 holds")
print(f"came:     off by up to {sine:.2g}, and outputs of at most {float(exact.abs().max()):.2g} by {off:.2g}")
raise SystemExit(sine > 0.01)
