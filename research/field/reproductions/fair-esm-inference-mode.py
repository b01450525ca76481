"""After a call under inference mode, ESM-2 cannot be trained on sequences of that length."""

from importlib.metadata import version

import torch
from esm.rotary_embedding import RotaryEmbedding

rotary = RotaryEmbedding(16)
x = torch.randn(1, 5, 16, requires_grad=True)
with torch.inference_mode():
    rotary(x, x)
try:
    rotary(x, x)[0].sum().backward()
    came = "a gradient"
except RuntimeError as error:
    came = f"RuntimeError: {str(error).partition('.')[0]}"

print(f"fair-esm {version('fair-esm')}, torch {torch.__version__}")
print("expected: a gradient")
print(f"came:     {came}")
raise SystemExit(came != "a gradient")
