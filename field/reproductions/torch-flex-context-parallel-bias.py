"""FlexAttention under PyTorch's context parallelism maps the indices of mask_mod to the whole text, not score_mod's."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.tensor.experimental._context_parallel import _attention as cp
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

path, rank = tempfile.mktemp(), int(os.fork() == 0)  # this process and another
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
mesh = dist.init_device_mesh("cpu", (2,))
cp._compiled_create_block_mask = create_block_mask  # so that no compiler is needed
attend = type("Attention", (torch.nn.Module,), {"forward": staticmethod(flex_attention)})()
cp._ContextParallel(2, cp._ContextParallel.AttentionType.FLEX)._apply(attend, mesh)
whole, size, off = (
    list(torch.linspace(0, 9999, 3 * 4 * 256 * 16).cos().view(3, 1, 4, 256, 16)),
    (1, None, 256, 256),
    torch.zeros(3),
)
mask = create_block_mask(lambda b, h, q, k: q >= k, *size, device="cpu")
balancer = cp._create_default_load_balancer(256, 2, "cpu")  # head and tail
part = cp._context_parallel_shard(mesh, whole, [2] * 3, balancer)
mask_of_part = cp._create_cp_block_mask(lambda b, h, q, k: q >= k, *size, mesh, balancer)
for n, bias in enumerate((lambda q, k: 0, lambda q, k: (q - k) / 4, lambda q, k: (q - k).clamp(-8, 8))):
    options = {"score_mod": lambda score, b, h, q, k, bias=bias: score - bias(q, k)}
    (expected,) = cp._context_parallel_shard(mesh, [flex_attention(*whole, **options, block_mask=mask)], [2], balancer)
    off[n] = (attend(*part, **options, block_mask=mask_of_part) - expected).abs().max()
dist.all_reduce(off, dist.ReduceOp.MAX)
if rank == 0:
    print(f"torch {torch.__version__}\nexpected: outputs of one process; without a bias they are {off[0]:.1g} off")
    print(f"came:     with ALiBi they are {off[1]:.1g} off, with a bias clamped at distance 8 {off[2]:.1g} off")
raise SystemExit(bool(rank == 0 and off[1:].max() > 1e-4))
