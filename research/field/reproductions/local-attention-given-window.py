"""exact_windowsize goes by the window of the constructor, whatever window the call is given."""

from importlib.metadata import version

import torch
from local_attention import LocalAttention

TOKENS, TRAINED, GIVEN = 64, 8, 16

attention = LocalAttention(dim=TOKENS, window_size=TRAINED, causal=True, exact_windowsize=True, use_xpos=True)
zeros = torch.zeros(1, 1, TOKENS, TOKENS)
values = torch.eye(TOKENS)[None, None]
seen = (attention(zeros, zeros, values, window_size=GIVEN) > 0).sum(-1).max().item()

print(f"local-attention {version('local-attention')}, torch {torch.__version__}")
print(f"expected: about {GIVEN} keys for a call with window_size={GIVEN}")
print(f"came:     {seen}, as with the {TRAINED} of the constructor")
raise SystemExit(seen < GIVEN)
