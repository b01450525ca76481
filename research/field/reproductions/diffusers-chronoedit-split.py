"""ChronoEdit divides channels among the axes in two ways, unless 6 divides them or all but 2 of them."""

import diffusers
import torch
from diffusers.models.transformers.transformer_chronoedit import ChronoEditRotaryPosEmbed

print(f"diffusers {diffusers.__version__}, torch {torch.__version__}")

WIDTH = 64
off = {}
for head_dim in (128, 64):
    cos, sin = ChronoEditRotaryPosEmbed(head_dim, (1, 1, 1), max_seq_len=WIDTH)(torch.zeros(1, 1, 1, WIDTH, WIDTH))
    pairs = torch.stack((cos, sin)).view(2, WIDTH * WIDTH, head_dim // 2, 2)
    off[head_dim] = float((pairs[..., 0] - pairs[..., 1]).abs().max())  # the two channels of a pair

print("expected: the two channels of every pair turned by one angle")
print("came:    ", "; ".join(f"sines apart by up to {by:.2g} with {dim} channels" for dim, by in off.items()))
raise SystemExit(max(off.values()) > 1e-5)
