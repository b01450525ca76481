"""Attention to the keys of other processes, block by block: a block travels while the one before it is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from posenc.distributed.sharding import Needs

Block = Callable[[int, Tensor, Tensor, Tensor, Sequence[Tensor]], tuple[Tensor, Tensor]]
"""Attention to one process's keys: (its rank, query, key, value, leaves) -> output and log-sum-exp."""


class Ring:
    """The blocks of one call, on every process: which keys travel where. At step s process r sends to r + s and
    receives from r - s, so that each pair of processes meets once, and what nobody attends to is not sent.

    ``run`` computes a block.
    """

    def __init__(self, needs: Needs, run: Block, rank: int, group: Any) -> None:
        self.needs, self.run, self.rank, self.group = needs, run, rank, group
        self.world = len(needs)

    def source(self, step: int) -> int:
        """The process whose keys this one attends to at a step."""
        return (self.rank - step) % self.world

    def target(self, step: int) -> int:
        """The process that attends to this one's keys at a step."""
        return (self.rank + step) % self.world

    def transfer(
        self, sent: Sequence[Tensor], to: int, into: Sequence[Tensor], of: int
    ) -> tuple[list[Any], Sequence[Tensor]]:
        """Begins to send tensors to one process and to receive from another. The caller keeps both until it waited."""
        operations = [dist.P2POp(dist.isend, x, dist.get_global_rank(self.group, to), self.group) for x in sent]
        operations += [dist.P2POp(dist.irecv, x, dist.get_global_rank(self.group, of), self.group) for x in into]
        return (dist.batch_isend_irecv(operations) if operations else []), sent

    def blocks(self, key: Tensor, value: Tensor) -> Any:
        """For each step with keys to attend to: the step, and these keys and values."""
        held: list[Tensor] = []
        requests: list[Any] = []
        for step in range(self.world):
            here = held if step else self._of(self.needs.keys(self.rank, self.rank), key, value)
            for request in requests:
                request.wait()
            requests = []
            if step + 1 < self.world:
                to, of = self.target(step + 1), self.source(step + 1)
                sent = [x.contiguous() for x in self._of(self.needs.keys(to, self.rank), key, value)]
                wanted = self.needs.keys(self.rank, of)
                held = [] if wanted is None else [_like(x, wanted.stop - wanted.start) for x in (key, value)]
                requests, _sent = self.transfer(sent, to, held, of)
            if here:
                yield step, *here

    @staticmethod
    def _of(wanted: slice | None, *tensors: Tensor) -> list[Tensor]:
        return [] if wanted is None else [x[:, :, wanted] for x in tensors]


def _like(x: Tensor, tokens: int, dtype: torch.dtype | None = None) -> Tensor:
    return x.new_empty((*x.shape[:2], tokens, *x.shape[3:]), dtype=x.dtype if dtype is None else dtype)


def attend(
    ring: Ring, query: Tensor, key: Tensor, value: Tensor, leaves: Sequence[Tensor], parameters: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of this process's queries over all keys. ``leaves`` are other tensors of the blocks, such
    as features, and ``parameters`` what their encodings were made of; both get gradients, of this process's queries
    alone.
    """
    given = query, key, value, *leaves, *parameters
    found: tuple[Tensor, Tensor] = _Attend.apply(ring, len(leaves), *given)  # type: ignore[no-untyped-call]
    return found


class _Attend(torch.autograd.Function):
    """Blocks are computed again in the backward pass, with the output and log-sum-exp of whole rows, so that a process
    holds the keys of two others at most. The gradients of keys and values travel back in float32 or wider."""

    @staticmethod
    def forward(ctx: Any, ring: Ring, count: int, query: Tensor, key: Tensor, value: Tensor, *rest: Tensor) -> Any:
        wide = torch.promote_types(query.dtype, torch.float32)
        out = query.new_zeros((*query.shape[:3], value.size(-1)), dtype=wide)
        lse = query.new_full(query.shape[:3], -torch.inf, dtype=wide)
        for step, k, v in ring.blocks(key, value):
            of_block, lse_of_block = ring.run(ring.source(step), query, k, v, rest[:count])
            total = torch.logaddexp(lse, lse_of_block)
            out = _share(lse, total) * out + _share(lse_of_block, total) * of_block
            lse = total
        out = out.to(query.dtype)
        ctx.ring, ctx.count, ctx.parameters = ring, count, rest[count:]
        ctx.save_for_backward(query, key, value, out, lse, *rest[:count])
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> Any:
        query, key, value, out, lse, *leaves = ctx.saved_tensors
        ring, wide = ctx.ring, lse.dtype
        dout = torch.zeros_like(out) if dout is None else dout
        delta = (dout.to(wide) * out).sum(-1)
        delta = delta if dlse is None else delta - dlse
        d_query = torch.zeros_like(query, dtype=wide)
        d_key, d_value = torch.zeros_like(key, dtype=wide), torch.zeros_like(value, dtype=wide)
        learned = [x for x in ctx.parameters if x.requires_grad]
        d_rest: list[Tensor | None] = [None] * (len(leaves) + len(learned))
        met: dict[int, tuple[Tensor, Tensor]] = {}
        for step, k, v in ring.blocks(key, value):
            q, k, v, *of_block = (x.detach().requires_grad_(x.is_floating_point()) for x in (query, k, v, *leaves))
            with torch.enable_grad():
                out_of_block, lse_of_block = ring.run(ring.source(step), q, k, v, of_block)
            share = _share(lse_of_block, lse)
            d_lse = share[..., 0] * ((dout * out_of_block).sum(-1, dtype=wide) - delta)
            # The graph of the encodings, from parameters to tables, is that of all blocks and layers.
            dq, dk, dv, *others = torch.autograd.grad(
                (out_of_block, lse_of_block),
                [q, k, v, *of_block, *learned],
                ((share * dout).to(out_of_block.dtype), d_lse.to(lse_of_block.dtype)),
                retain_graph=True,
                allow_unused=True,
            )
            d_query += dq
            met[step] = dk.to(wide), dv.to(wide)
            for n, gradient in enumerate(others):
                before = d_rest[n]
                d_rest[n] = gradient if before is None else before if gradient is None else before + gradient
        _sent_home(ring, met, d_key, d_value)
        rest = iter(d_rest[len(leaves) :])
        of_parameters = [next(rest) if x.requires_grad else None for x in ctx.parameters]
        gradients = d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype)
        return None, None, *gradients, *d_rest[: len(leaves)], *of_parameters


def _share(of: Tensor, total: Tensor) -> Tensor:
    """exp(of - total) for each row, 0 where the row has no visible key, with an axis for channels."""
    return (of - total).exp().masked_fill(total == -torch.inf, 0.0)[..., None]


def _sent_home(ring: Ring, met: dict[int, tuple[Tensor, Tensor]], d_key: Tensor, d_value: Tensor) -> None:
    """Adds the gradients of this process's keys and values, which all processes have."""
    for step in range(ring.world):
        source, target = ring.source(step), ring.target(step)
        mine = ring.needs.keys(target, ring.rank)
        if step == 0:
            back: Sequence[Tensor] = met.get(0, ())
        else:
            back = [] if mine is None else [_like(x, mine.stop - mine.start) for x in (d_key, d_value)]
            requests, _kept = ring.transfer([x.contiguous() for x in met.get(step, ())], source, back, target)
            for request in requests:
                request.wait()
        for total, part in zip((d_key, d_value), back, strict=False):
            total[:, :, mine] += part
