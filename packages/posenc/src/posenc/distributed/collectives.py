"""Collectives with gradients, along the tokens of tensors that processes hold unequal numbers of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def gathered(x: Tensor, dim: int, counts: Sequence[int], group: Any) -> Tensor:
    """The tensors of all processes, concatenated along ``dim`` in the order of ranks. The gradient of each part is the
    sum of the gradients that all processes have for it, added in float32 or wider."""
    if len(counts) == 1:
        return x
    whole: Tensor = _Gather.apply(x, dim, tuple(counts), group)  # type: ignore[no-untyped-call]
    return whole


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, counts: tuple[int, ...], group: Any) -> Tensor:
        ctx.dim, ctx.counts, ctx.group = dim, counts, group
        return torch.cat(_every(x.movedim(dim, 0), counts, group)).movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        return _Sum.apply(gradients[0], ctx.dim, ctx.counts, ctx.group), None, None, None  # type: ignore[no-untyped-call]


class _Sum(torch.autograd.Function):
    """The derivative of `_Gather`: this process's part, summed over processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, counts: tuple[int, ...], group: Any) -> Tensor:
        ctx.dim, ctx.counts, ctx.group = dim, counts, group
        wide = x.movedim(dim, 0).to(torch.promote_types(x.dtype, torch.float32))
        mine = counts[dist.get_rank(group)]
        received = exchanged(list(wide.split(counts)), [mine] * len(counts), group)
        return torch.stack(received).sum(0).movedim(0, dim).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        return gathered(gradients[0], ctx.dim, ctx.counts, ctx.group), None, None, None


def _every(x: Tensor, counts: Sequence[int], group: Any) -> list[Tensor]:
    """The tensors of all processes, of ``counts`` rows each."""
    most = max(counts)
    padded = x.new_zeros((most, *x.shape[1:]))  # since collectives take equal shapes
    padded[: len(x)] = x
    return [part[:count] for part, count in zip(of_each(padded, group), counts, strict=True)]


def of_each(x: Tensor, group: Any) -> list[Tensor]:
    """The tensors of all processes, which have the same shape."""
    found = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, x.contiguous(), group=group)
    return found


def exchanged(
    parts: Sequence[Tensor], counts: Sequence[int], group: Any, shape: Sequence[int] | None = None
) -> list[Tensor]:
    """All to all: what each process has for this one, of ``counts`` rows each, whose ``shape`` is by default that of
    the parts."""
    rank = dist.get_rank(group)
    shape = parts[rank].shape[1:] if shape is None else shape
    into = [parts[rank].new_empty((count, *shape)) for count in counts]
    into[rank] = parts[rank]
    sent = [part.contiguous() for part in parts]
    operations = []
    for step in range(1, len(parts)):
        to, of = (rank + step) % len(parts), (rank - step) % len(parts)
        if sent[to].numel():
            operations.append(dist.P2POp(dist.isend, sent[to], dist.get_global_rank(group, to), group))
        if into[of].numel():
            operations.append(dist.P2POp(dist.irecv, into[of], dist.get_global_rank(group, of), group))
    for request in dist.batch_isend_irecv(operations) if operations else ():
        request.wait()
    return into


def transposed(x: Tensor, split: int, sizes: Sequence[int], join: int, counts: Sequence[int], group: Any) -> Tensor:
    """All to all: x is split along one dim into ``sizes``, a part for each process, and the parts of all processes are
    joined along another, where process i has ``counts[i]``."""
    given = tuple(sizes), join, tuple(counts), group
    moved: Tensor = _Transpose.apply(x, split, *given)  # type: ignore[no-untyped-call]
    return moved


class _Transpose(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, split: int, sizes: tuple[int, ...], join: int, counts: tuple[int, ...], group: Any
    ) -> Tensor:
        ctx.how = join, counts, split, sizes, group  # the inverse
        mine = sizes[dist.get_rank(group)]
        shape = list(x.movedim(join, 0).shape)
        parts = [part.movedim(join, 0) for part in x.split(sizes, split)]
        shape[split + 1 if split < join else split] = mine
        return torch.cat(exchanged(parts, counts, group, shape[1:])).movedim(0, join)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return transposed(gradients[0], *ctx.how), None, None, None, None, None
