"""ESM-2 counts positions in the dtype of the model: in bfloat16 they fall together past 256, in half past 2,048."""

from importlib.metadata import version

import torch
from esm.rotary_embedding import RotaryEmbedding

found = {}
for dtype, tokens in ((torch.bfloat16, 1024), (torch.float16, 4096)):
    rotary = RotaryEmbedding(64).to(dtype)
    x = torch.zeros(1, tokens, 64, dtype=dtype)
    rotary(x, x)
    exact = torch.arange(tokens)[:, None] * RotaryEmbedding(64).inv_freq
    off = (rotary._cos_cached[0, :, :32].float() - exact.cos()).abs().max()
    found[dtype] = (tokens, float(off))

print(f"fair-esm {version('fair-esm')}, torch {torch.__version__}")
print("expected: cosines off by at most 0.01")
print(
    "came:     off by " + ", ".join(f"{off:.2g} ({dtype}, {tokens} tokens)" for dtype, (tokens, off) in found.items())
)
raise SystemExit(max(off for _, off in found.values()) > 0.01)
