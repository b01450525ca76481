"""Stable Audio 3 counts its positions in the dtype of the model."""

import diffusers
import torch
from diffusers.models.transformers.transformer_stable_audio3 import StableAudio3RotaryEmbedding

print(f"diffusers {diffusers.__version__}, torch {torch.__version__}")

TOKENS = 1000
rotary = StableAudio3RotaryEmbedding(32)
exact = rotary(TOKENS, torch.device("cpu"))
cast = rotary.bfloat16()(TOKENS, torch.device("cpu"))
different, off = len(cast[:, 0].unique()), float((cast.float() - exact).abs().max())

print(f"expected: {TOKENS} positions, and phases that are right to 0.01 radians")
print(f"came:     {different} positions, and phases off by up to {off:.2g} radians")
raise SystemExit(different < TOKENS or off > 0.01)
