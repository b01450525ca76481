"""Without a mask, LocalAttention attends to the zeros that autopad puts at the end, unless it is causal."""

from importlib.metadata import version

import torch
from local_attention import LocalAttention

TOKENS, WINDOW = 6, 4  # padded to 8

attention = LocalAttention(window_size=WINDOW, causal=False, autopad=True)
query = key = torch.zeros(1, 1, TOKENS, 16)
out = attention(query, key, torch.ones(1, 1, TOKENS, 16))
seen = float(out[..., -1, 0])
padded = LocalAttention(window_size=WINDOW, causal=False, autopad=True)(
    query, key, torch.ones(1, 1, TOKENS, 16), mask=torch.ones(1, TOKENS).bool()
)

print(f"local-attention {version('local-attention')}, torch {torch.__version__}")
print(
    f"expected: values that are all 1 come out as {float(padded[..., -1, 0]):g}, as they do with a mask of all tokens"
)
print(f"came:     {seen:g}: {TOKENS} tokens and 2 of padding are seen")
raise SystemExit(abs(seen - 1) > 1e-6)
