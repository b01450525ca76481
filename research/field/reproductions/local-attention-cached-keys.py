"""LocalMHA keeps the rotated keys in its cache and rotates them again at every step."""

from importlib.metadata import version

import torch
from local_attention import LocalMHA

torch.manual_seed(0)
layer = LocalMHA(dim=32, dim_head=16, heads=2, window_size=8, causal=True).double().eval()
x = torch.randn(1, 8, 32).double()

with torch.no_grad():
    at_once = layer(x)
    _, cache = layer(x[:, :4], return_cache=True)
    steps = []
    for n in range(4, 8):
        out, cache = layer(x[:, n : n + 1], cache=cache, return_cache=True)
        steps.append(out)
off = (torch.cat(steps, 1) - at_once[:, 4:]).abs().amax((0, 2)).tolist()

print(f"local-attention {version('local-attention')}, torch {torch.__version__}")
print("expected: tokens fed one by one to a cache come out as they do all at once, to 1e-9")
print("came:     step by step, off by " + ", ".join(f"{value:.2g}" for value in off))
raise SystemExit(max(off) > 1e-9)
