"""Frequencies, or phases, in buffers that are cast with the model: Kandinsky 5 and 6, Ideogram 4, MiniMax H3."""

import diffusers
import torch
from diffusers.models.transformers.transformer_ideogram4 import Ideogram4MRoPE
from diffusers.models.transformers.transformer_kandinsky import Kandinsky5RoPE1D
from diffusers.models.transformers.transformer_kandinsky6 import Kandinsky6RoPE1D
from diffusers.models.transformers.transformer_minimax_h3 import MiniMaxH3RotaryPosEmbed

print(f"diffusers {diffusers.__version__}, torch {torch.__version__}")

line, image = torch.arange(1000), 65536 + torch.arange(64)  # where Ideogram 4 begins its images
cases = {
    "Kandinsky 5": (Kandinsky5RoPE1D(32), line),
    "Kandinsky 6": (Kandinsky6RoPE1D(32), line),
    "Ideogram 4": (Ideogram4MRoPE(32, 10_000, (8, 4, 4)), image[None, :, None].expand(-1, -1, 3)),
    "MiniMax H3": (MiniMaxH3RotaryPosEmbed(), line[:, None].expand(-1, 3)),
}
off = {}
for name, (rotary, positions) in cases.items():
    exact = rotary(positions)
    cast = rotary.to(torch.bfloat16)(positions)
    exact, cast = (x[0] if isinstance(x, tuple) else x for x in (exact, cast))
    off[name] = float((exact - cast.float()).abs().max())

print("expected: cosines off by less than 0.01, which is what bfloat16 holds")
print("came:     off by", ", ".join(f"{by:.2g} in {name}" for name, by in off.items()))
raise SystemExit(max(off.values()) > 0.01)
