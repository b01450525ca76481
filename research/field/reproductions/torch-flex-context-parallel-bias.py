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
whole, size, off = torch.arange(49152.0).cos().view(3, 1, 4, 256, 16), (1, None, 256, 256), torch.zeros(3)
mask = create_block_mask(lambda b, h, q, k: q >= k, *size, device="cpu")
balancer = cp._create_default_load_balancer(256, 2, "cpu")  # head and tail
part = cp._context_parallel_shard(mesh, list(whole), [2] * 3, balancer)
part_mask = cp._create_cp_block_mask(lambda b, h, q, k: q >= k, *size, mesh, balancer)
for n, bias in enumerate((lambda d: 0, lambda d: d / 4, lambda d: d.clamp(-8, 8))):
    how = {"score_mod": lambda score, b, h, q, k, bias=bias: score - bias(q - k)}
    (right,) = cp._context_parallel_shard(mesh, [flex_attention(*whole, **how, block_mask=mask)], [2], balancer)
    off[n] = (attend(*part, **how, block_mask=part_mask) - right).abs().max()
dist.all_reduce(off, dist.ReduceOp.MAX)
if rank == 0:
    print(f"torch {torch.__version__}\nexpected: outputs of one process, to rounding, as without a bias: {off[0]:.1g}")
    print(f"came:     {off[1]:.1g} off with ALiBi, {off[2]:.1g} off with a bias clamped at distance 8")
raise SystemExit(rank == 0 and int(off[1:].max() > 1e-4))
