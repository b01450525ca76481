"""2D and 3D rotary positions of a crop that does not begin at 0 are not a pixel apart."""

import diffusers
import torch
from diffusers.models.embeddings import get_2d_rotary_pos_embed, get_3d_rotary_pos_embed

print(f"diffusers {diffusers.__version__}, torch {torch.__version__}")

# Rows 8 ... 23 and columns 0 ... 31 of a grid of 32 x 32: what Hunyuan-DiT asks for in an image twice as wide as high.
CROP, SIZE = ((8, 0), (24, 32)), (16, 32)
expected = torch.arange(8.0, 24.0)

flat, deep = get_2d_rotary_pos_embed(16, CROP, SIZE), get_3d_rotary_pos_embed(16, CROP, SIZE, temporal_size=1)
came = {}  # the rows, by the angles of the channels whose frequency is 1
for name, (cos, sin), channel in (("2D", flat, 8), ("3D", deep, 4)):
    grid = torch.atan2(sin, cos)[:, channel].view(*SIZE)[:, 0]
    steps = torch.remainder(grid.diff(), 2 * torch.pi)
    came[name] = 8 + torch.cat((torch.zeros(1), steps.cumsum(0)))
off = max(float((one - expected).abs().max()) for one in came.values())

print("expected: rows 8, 9, 10, ..., 23")
print("came:    ", "; ".join(f"{name} 8, {r[1]:.4g}, {r[2]:.4g}, ..., {r[-1]:.4g}" for name, r in came.items()))
raise SystemExit(off > 0.01)
