"""RelPosEmb2D of self-attention-cv: neither of its two tables tells how many rows apart two patches are."""

import sys
from importlib.metadata import version
from unittest.mock import MagicMock

import torch

for name in ("", ".models"):
    sys.modules["torchvision" + name] = MagicMock()  # the package imports it, and this does not need it

from self_attention_cv.pos_embeddings import RelPosEmb2D

SIDE = 4

module = RelPosEmb2D((SIDE, SIDE), dim_head=1)
down, along = [], []
with torch.no_grad():
    for table, other in ((module.emb_w, module.emb_h), (module.emb_h, module.emb_w)):
        table.rel_pos_emb.copy_(torch.arange(1 - SIDE, SIDE)[:, None])  # a vector reads how far apart
        other.rel_pos_emb.zero_()
        scores = module(torch.ones(1, 1, SIDE**2, 1)).view(SIDE, SIDE, SIDE, SIDE)  # from row, column, to row, column
        down.append(scores[0, 0, :, 0].int().tolist())
        along.append(scores[0, 0, 0].int().tolist())

print(f"self-attention-cv {version('self-attention-cv')}, torch {torch.__version__}")
print("expected: by one table, patches straight below the first are [0, 1, 2, 3] apart, by the other [0, 0, 0, 0]")
print(f"came:     {down[0]} and {down[1]}; patches beside it {along[0]} and {along[1]}")
raise SystemExit(sorted(down) != [[0] * SIDE, [*range(SIDE)]])
