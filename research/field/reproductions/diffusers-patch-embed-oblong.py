"""PatchEmbed made for an oblong image holds the positions of a square one."""

import diffusers
import torch
from diffusers.models.embeddings import PatchEmbed, get_2d_sincos_pos_embed

print(f"diffusers {diffusers.__version__}, torch {torch.__version__}")

options = {"patch_size": 2, "in_channels": 1, "embed_dim": 8}
embed = PatchEmbed(height=4, width=16, **options)
expected = get_2d_sincos_pos_embed(8, (2, 8), base_size=2).float()
wrong = int(((embed.pos_embed[0] - expected).abs() > 1e-6).any(-1).sum())
try:
    PatchEmbed(height=32, width=16, **options)(torch.zeros(1, 1, 32, 16))
    ran = "runs"
except RuntimeError as error:
    ran = f"RuntimeError: {error}"

print("expected: the positions of 2 x 8 patches, which images of any other size get; 16 x 8 patches run")
print(f"came:     {wrong} of 16 patches have others; 16 x 8: {ran}")
raise SystemExit(wrong > 0 or ran != "runs")
