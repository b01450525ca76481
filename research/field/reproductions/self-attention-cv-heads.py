"""RelPosEmb1D and RelPosEmb2D of self-attention-cv make one table for all heads, whatever heads says."""

import sys
from importlib.metadata import version
from unittest.mock import MagicMock

import torch

for name in ("", ".models"):
    sys.modules["torchvision" + name] = MagicMock()  # the package imports it, and this does not need it

from self_attention_cv.pos_embeddings import RelPosEmb1D, RelPosEmb2D

HEADS, TOKENS, DIM = 3, 4, 8

line, square = RelPosEmb1D(TOKENS, DIM, heads=HEADS), RelPosEmb2D((TOKENS, TOKENS), DIM, heads=HEADS)
shapes = [tuple(table.rel_pos_emb.shape) for table in (line, square.emb_h, square.emb_w)]
expected = (HEADS, 2 * TOKENS - 1, DIM)

print(f"self-attention-cv {version('self-attention-cv')}, torch {torch.__version__}")
print(f"expected: a table for each of {HEADS} heads, {expected}")
print(f"came:     {shapes[0]}; for the two axes {shapes[1]} and {shapes[2]}")
raise SystemExit(any(shape != expected for shape in shapes))
