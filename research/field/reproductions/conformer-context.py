"""Attention of conformer takes a context, but only one as long as the input, and no mask of it alone."""

from importlib.metadata import version

import torch
from conformer.conformer import Attention

attention = Attention(dim=16, heads=2, dim_head=8)
x, longer, same = torch.randn(1, 6, 16), torch.randn(1, 7, 16), torch.randn(1, 6, 16)
came = []
for name, call in {
    "7 tokens for 6": {"context": longer},
    "a context_mask": {"context": same, "context_mask": torch.ones(1, 6).bool()},
}.items():
    try:
        attention(x, **call)
    except RuntimeError as error:
        came.append(f"{name}: {str(error).splitlines()[0]}")

print(f"conformer {version('conformer')}, torch {torch.__version__}")
print("expected: attention over a context of any length, with or without a mask")
print("came:     " + ("; ".join(came) or "that"))
raise SystemExit(bool(came))
