"""OmniGen rotates all rows of a batch by the positions of its first row."""

import diffusers
import torch
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.transformers.transformer_omnigen import OmniGenSuScaledRotaryEmbedding

print(f"diffusers {diffusers.__version__}, torch {torch.__version__}")

DIM = 16
factors = {"short_factor": [1.0] * (DIM // 2), "long_factor": [1.0] * (DIM // 2)}
rotary = OmniGenSuScaledRotaryEmbedding(DIM, rope_scaling=factors)
x = torch.randn(1, 1, 5, DIM, generator=torch.Generator().manual_seed(0)).expand(2, -1, -1, -1)
positions = torch.tensor([[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]])  # the second prompt is shorter, and padded on the left


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return apply_rotary_emb(x, rotary(x, positions), use_real_unbind_dim=-2)


alone = rotated(x[1:], positions[1:])
off = float((rotated(x, positions)[1:] - alone).abs().max())

print("expected: the second row as it is alone")
print(f"came:     off by {off:.2g}")
raise SystemExit(off > 1e-6)
