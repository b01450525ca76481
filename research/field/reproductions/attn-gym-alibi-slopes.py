"""generate_alibi_bias of attention-gym has other slopes than ALiBi's code, unless heads are a power of two."""

from importlib.metadata import version

import torch
from attn_gym.mods import generate_alibi_bias

HEADS = 12

head, query, key = torch.arange(HEADS), torch.tensor(1), torch.tensor(0)
came = -generate_alibi_bias(HEADS)(torch.zeros(HEADS), torch.tensor(0), head, query, key)
# attention_with_linear_biases, get_slopes: those of 8 heads, then every other one of 16.
expected = torch.tensor([2.0**-n for n in range(1, 9)] + [2.0 ** -(n / 2) for n in (1, 3, 5, 7)])
off = float((came - expected).abs().max())

print(f"attn-gym {version('attn-gym')}, torch {torch.__version__}")
print(f"expected: the slopes of {HEADS} heads {[round(x, 4) for x in expected.tolist()]}")
print(f"came:     {[round(x, 4) for x in came.tolist()]}")
raise SystemExit(off > 1e-6)
