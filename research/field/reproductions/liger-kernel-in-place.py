"""Liger's rotation overwrites the queries and keys it is given, unseen by autograd; it needs Triton's interpreter."""

import os
from importlib.metadata import version

os.environ["TRITON_INTERPRET"] = "1"

import torch
from liger_kernel.transformers.rope import liger_rotary_pos_emb

torch.manual_seed(0)
angles = torch.arange(5)[:, None] / 10000 ** (torch.arange(0, 16, 2) / 16)
cos, sin = (torch.cat((table, table), -1)[None] for table in (angles.cos(), angles.sin()))
hidden = torch.randn(1, 5, 2, 16, requires_grad=True)
key = torch.zeros(1, 2, 5, 16)

query = (1 * hidden).transpose(1, 2)  # heads before tokens, as models have it
before = query.detach().clone()
norm = (query * query).sum()  # whose gradient is twice the query
liger_rotary_pos_emb(query, key, cos, sin)
norm.backward()
changed = float((query.detach() - before).abs().max())
off = float((hidden.grad - 2 * hidden.detach()).abs().max())

print(f"liger-kernel {version('liger-kernel')}, torch {torch.__version__}")
print("expected: the query is what it was, and the gradient of its squares is twice the query")
print(f"came:     the query changed by {changed:.2g}, the gradient is off by {off:.2g}, and there was no error")
raise SystemExit(changed > 1e-6 or off > 1e-6)
