"""Without exact_windowsize, the cache of LocalMHA loses a window at the last token of each."""

from importlib.metadata import version

import torch
from local_attention import LocalMHA

WINDOW, TOKENS = 4, 16

torch.manual_seed(0)
layer = LocalMHA(
    dim=32, dim_head=16, heads=2, window_size=WINDOW, causal=True, exact_windowsize=False, use_rotary_pos_emb=False
).double()
x = torch.randn(1, TOKENS, 32).double()

with torch.no_grad():
    at_once = layer(x)
    _, cache = layer(x[:, :1], return_cache=True)
    off = []
    for n in range(1, TOKENS):
        step, cache = layer(x[:, n : n + 1], cache=cache, return_cache=True)
        off.append(float((step - at_once[:, n : n + 1]).abs().max()))
wrong = [n for n, value in enumerate(off, 1) if value > 1e-9]

print(f"local-attention {version('local-attention')}, torch {torch.__version__}")
print("expected: tokens fed one by one to a cache come out as they do all at once, to 1e-9")
print(f"came:     tokens {wrong} do not, off by up to {max(off):.2g}")
raise SystemExit(bool(wrong))
