"""Attention over several processes agrees with that of another library, lucidrains' ring-attention-pytorch."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

import posenc
from posenc import Positions
from posenc.distributed import Sharding, attention
from tests.distributed.processes import in_processes

BATCH, HEADS, KV_HEADS, HEAD_DIM, TOKENS = 2, 4, 2, 8, 32


def both(_: None) -> list[tuple[str, float, float]]:
    """Of output and gradients by each method: their largest difference from the other library's, and their size.

    All get the same query, key and value of this process's run of tokens, before rotation. The library's tensors are
    (batch, tokens, heads, head_dim), its head n of queries uses head n % kv_heads of keys, and it rotates channel c
    with channel c + head_dim / 2. Gradients of keys and values are those of its attention on one process: in 0.5.20 the
    ring's backward pass returns the sum of both for keys, and another process's for values.
    """
    from ring_attention_pytorch import RingRotaryEmbedding, apply_rotary_pos_emb, default_attention, ring_flash_attn

    torch.set_default_dtype(torch.float64)  # it sums in the default dtype
    torch.manual_seed(0)
    wholes = [torch.randn(BATCH, heads, TOKENS, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    sharding = Sharding(Positions.arange(TOKENS), order="contiguous")
    mine = [sharding.shard(x, 2) for x in wholes]
    to_theirs = torch.arange(HEADS).view(KV_HEADS, -1).T.flatten()

    def theirs(tensors: list[torch.Tensor], **options: Any) -> list[torch.Tensor]:
        *leaves, d_out = (x.transpose(1, 2).clone().requires_grad_() for x in tensors)
        angles = RingRotaryEmbedding(HEAD_DIM, ring=bool(options))(leaves[0].size(1))
        query, key = (apply_rotary_pos_emb(angles, x) for x in (leaves[0][:, :, to_theirs], leaves[1]))
        attend = ring_flash_attn if options else default_attention
        out = attend(query, key, leaves[2], causal=True, **options)[:, :, to_theirs.argsort()]
        return [x.detach().transpose(1, 2) for x in (out, *torch.autograd.grad(out, leaves, d_out))]

    of_ring = theirs(mine, bucket_size=8, ring_reduce_col=True)
    of_one = [sharding.shard(x, 2) for x in theirs(wholes)]
    found = []
    for method in ("gather", "ring", "ulysses"):
        leaves = [x.clone().requires_grad_() for x in mine[:3]]
        out = attention(*leaves, posenc.RoPE(HEAD_DIM), sharding, method=method, is_causal=True)
        got = [x.detach() for x in (out, *torch.autograd.grad(out, leaves, mine[3]))]
        for kind, names, expected in (
            ("ring", ("out", "query"), of_ring[:2]),
            ("one process", ("out", "query", "key", "value"), of_one),
        ):
            for name, one, other in zip(names, got, expected, strict=False):
                found.append((f"{method}, {kind}: {name}", float((one - other).abs().max()), float(other.abs().max())))
    return found


@pytest.mark.more
def test_ring_attention_pytorch_agrees(tmp_path: Path) -> None:
    for package in ("ring_attention_pytorch", "einops"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package.replace('_', '-')}: make check-scale installs it")
    for of_process in in_processes(2, tmp_path, both, None):
        for name, apart, size in of_process:
            # Its frequencies, made in float32, differ from exact ones by a rounding, which positions multiply; the rest
            # is sums over keys and channels in float64.
            bound = 8 * TOKENS * torch.finfo(torch.float32).eps * max(size, 1)
            assert apart <= bound, (name, apart, bound)
