"""LocalAttention with rotations does not run on queries, keys and values in half precision."""

from importlib.metadata import version

import torch
from local_attention import LocalAttention

attention = LocalAttention(dim=64, window_size=8, causal=True).bfloat16()
query, key, value = torch.randn(3, 1, 2, 16, 64).bfloat16()
try:
    came = f"{attention(query, key, value).dtype}"
except RuntimeError as error:
    came = f"RuntimeError: {error}"

print(f"local-attention {version('local-attention')}, torch {torch.__version__}")
print("expected: torch.bfloat16")
print(f"came:     {came}")
raise SystemExit(came != "torch.bfloat16")
