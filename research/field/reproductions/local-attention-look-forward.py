"""LocalAttention that looks forward rotates queries as if they stood look_forward windows later."""

from importlib.metadata import version

import torch
from local_attention import LocalAttention

TOKENS, WINDOW, DIM = 64, 8, 64

# Tokens that are all the same: a rotation gives the highest score to the key that stands where the query does.
attention = LocalAttention(dim=DIM, window_size=WINDOW, causal=False)
same = torch.full((1, 1, TOKENS, DIM), 1.0)
weights = attention(same, same, torch.eye(TOKENS)[None, None])[0, 0]
most = weights.argmax(-1)
asked = [WINDOW, 2 * WINDOW + 3, 4 * WINDOW]

print(f"local-attention {version('local-attention')}, torch {torch.__version__}")
print(f"expected: among equal tokens, tokens {asked} weigh tokens {asked} most")
print(f"came:     tokens {most[asked].tolist()}, {WINDOW} later, which is the window size")
raise SystemExit(most[asked].tolist() != asked)
