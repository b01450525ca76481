"""The convolution of a ConformerBlock sees the padding that its mask hides from attention."""

from importlib.metadata import version

import torch
from conformer import ConformerBlock

TOKENS, MORE, KERNEL = 12, 5, 5

torch.manual_seed(0)
block = ConformerBlock(dim=16, dim_head=8, heads=2, conv_kernel_size=KERNEL).double().eval()
x = torch.randn(1, TOKENS, 16).double()
padded = torch.cat((x, torch.randn(1, MORE, 16).double()), 1)
mask = torch.arange(TOKENS + MORE)[None] < TOKENS
with torch.no_grad():
    off = (block(padded, mask=mask)[:, :TOKENS] - block(x)).abs().amax((0, 2))
wrong = (off > 1e-9).nonzero().flatten().tolist()

print(f"conformer {version('conformer')}, torch {torch.__version__}")
print("expected: with a mask, tokens come out as they do without padding, to 1e-9")
print(f"came:     tokens {wrong} of {TOKENS} are off by up to {float(off.max()):.2g}")
raise SystemExit(bool(wrong))
