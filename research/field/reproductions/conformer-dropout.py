"""Conformer takes three dropouts and gives none of them to its blocks."""

from importlib.metadata import version

import torch
from conformer import Conformer

model = Conformer(dim=16, depth=1, dim_head=8, heads=2, attn_dropout=0.1, ff_dropout=0.2, conv_dropout=0.3)
rates = sorted({module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)})

print(f"conformer {version('conformer')}, torch {torch.__version__}")
print("expected: dropout of 0.1, 0.2 and 0.3")
print(f"came:     dropout of {rates}")
raise SystemExit(rates != [0.1, 0.2, 0.3])
