"""SANA-WM: channels are not divided among the axes as fhw_dim says."""

import diffusers
import torch
from diffusers.models.embeddings import get_1d_rotary_pos_embed
from diffusers.models.transformers.transformer_sana_wm import SanaWMRotaryPosEmbed

print(f"diffusers {diffusers.__version__}, torch {torch.__version__}")

SPLIT, GRID = (8, 12, 12), (2, 3, 4)  # channels, and sizes, of frames, rows and columns
came = SanaWMRotaryPosEmbed(sum(SPLIT), (1, 1, 1), max_seq_len=16, fhw_dim=SPLIT)(GRID)[0, 0]
places = torch.cartesian_prod(*map(torch.arange, GRID))
expected = torch.cat([get_1d_rotary_pos_embed(d, places[:, n].float()) for n, d in enumerate(SPLIT)], 1)
off = float((came - expected).abs().max())

print(f"expected: {SPLIT[0]} channels for frames, {SPLIT[1]} for rows and {SPLIT[2]} for columns")
print(f"came:     rotations off by up to {off:.2g}")
raise SystemExit(off > 1e-5)
