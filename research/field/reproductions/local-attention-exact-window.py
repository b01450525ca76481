"""With exact_windowsize, a query of causal LocalAttention sees one key more than the window has."""

from importlib.metadata import version

import torch
from local_attention import LocalAttention

TOKENS, WINDOW = 32, 8

attention = LocalAttention(window_size=WINDOW, causal=True, look_backward=1, exact_windowsize=True)
zeros = torch.zeros(1, 1, TOKENS, TOKENS)
seen = (attention(zeros, zeros, torch.eye(TOKENS)[None, None]) > 0).sum(-1).max().item()

print(f"local-attention {version('local-attention')}, torch {torch.__version__}")
print(f'expected: "each query will see at maximum the number of keys equal to the window size", {WINDOW}')
print(f"came:     {seen} keys")
raise SystemExit(seen > WINDOW)
