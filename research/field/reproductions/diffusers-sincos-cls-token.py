"""get_2d_sincos_pos_embed(cls_token=True) adds no row for a class token."""

import diffusers
import torch
from diffusers.models.embeddings import get_2d_sincos_pos_embed

print(f"diffusers {diffusers.__version__}, torch {torch.__version__}")

rows = len(get_2d_sincos_pos_embed(8, (2, 3), cls_token=True))

print("expected: 7 rows, as documented: 1 + 2 * 3")
print(f"came:     {rows} rows")
raise SystemExit(rows != 7)
