"""With a cache, LocalMHA forgets the scale that qk_rmsnorm brings."""

from importlib.metadata import version

import torch
from local_attention import LocalMHA

torch.manual_seed(0)
layer = LocalMHA(
    dim=32, dim_head=16, heads=2, window_size=8, causal=True, qk_rmsnorm=True, use_rotary_pos_emb=False
).double()
x = torch.randn(1, 5, 32).double()

with torch.no_grad():
    at_once = layer(x)
    _, cache = layer(x[:, :4], return_cache=True)
    step, _ = layer(x[:, 4:], cache=cache, return_cache=True)
off = float((step - at_once[:, 4:]).abs().max())

print(f"local-attention {version('local-attention')}, torch {torch.__version__}")
print("expected: a token fed to a cache comes out as it does all at once, to 1e-9")
print(f"came:     off by {off:.2g}: scores are multiplied by 16 ** -0.5, and not by qk_scale, 8")
raise SystemExit(off > 1e-9)
