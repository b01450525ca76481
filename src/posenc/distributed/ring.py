"""Attention to the keys of other processes, block by block: a block travels while the one before it is computed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from posenc.distributed.needs import Needs

Block = Callable[[int, Tensor, Tensor, Tensor, Sequence[Tensor]], tuple[Tensor, Tensor]]
"""Attention to one process's keys: (its rank, query, key, value, leaves) -> output and log-sum-exp."""


class Transfer:
    """Messages on their way: what was sent, which must not be freed before, and what is received."""

    def __init__(self, requests: Sequence[Any] = (), sent: Sequence[Tensor] = (), into: Sequence[Tensor] = ()) -> None:
        self._requests, self._sent, self._into = requests, sent, into

    def received(self) -> Sequence[Tensor]:
        """What was received, once it is there."""
        for request in self._requests:
            request.wait()
        self._requests, self._sent = (), ()
        return self._into


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

    def transfer(self, sent: Sequence[Tensor], to: int, into: Sequence[Tensor], of: int) -> Transfer:
        """Begins to send tensors to one process and to receive from another."""
        operations = [dist.P2POp(dist.isend, x, dist.get_global_rank(self.group, to), self.group) for x in sent]
        operations += [dist.P2POp(dist.irecv, x, dist.get_global_rank(self.group, of), self.group) for x in into]
        return Transfer(dist.batch_isend_irecv(operations) if operations else [], sent, into)

    def blocks(self, key: Tensor, value: Tensor) -> Generator[tuple[int, list[Tensor]]]:
        """Each step, with the keys and values to attend to, or none. Close it where a step may fail, so that no message
        is left on its way."""
        here, coming = self._of(self.needs.keys(self.rank, self.rank), key, value), Transfer()
        try:
            for step in range(self.world):
                if step:
                    here = [*coming.received()]
                if step + 1 < self.world:
                    to, of = self.target(step + 1), self.source(step + 1)
                    sent = [x.contiguous() for x in self._of(self.needs.keys(to, self.rank), key, value)]
                    wanted = self.needs.keys(self.rank, of)
                    into = [] if wanted is None else [_like(x, wanted.stop - wanted.start) for x in (key, value)]
                    coming = self.transfer(sent, to, into, of)
                yield step, here
        finally:
            coming.received()

    @staticmethod
    def _of(wanted: slice | None, *tensors: Tensor) -> list[Tensor]:
        return [] if wanted is None else [x[:, :, wanted] for x in tensors]


def _like(x: Tensor, tokens: int) -> Tensor:
    return x.new_empty((*x.shape[:2], tokens, *x.shape[3:]))


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
        with closing(ring.blocks(key, value)) as blocks:
            for step, keys in blocks:
                if not keys:
                    continue
                of_block, lse_of_block = ring.run(ring.source(step), query, keys[0], keys[1], rest[:count])
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
        is_wanted = ctx.needs_input_grad[5 + ctx.count :]
        learned = [x for x, wanted in zip(ctx.parameters, is_wanted, strict=True) if wanted]
        # Zeros where no block has a gradient: FSDP counts on one from every process.
        d_rest = [torch.zeros_like(x) for x in (*leaves, *learned)]
        with closing(ring.blocks(key, value)) as blocks:
            back = Transfer()
            for step, keys in blocks:
                found: list[Tensor] = []
                if keys:
                    q, k, v, *of_block = (
                        x.detach().requires_grad_(x.is_floating_point()) for x in (query, *keys, *leaves)
                    )
                    with torch.enable_grad():
                        out_of_block, lse_of_block = ring.run(ring.source(step), q, k, v, of_block)
                    share = _share(lse_of_block, lse)
                    d_lse = share[..., 0] * ((dout.to(wide) * out_of_block).sum(-1) - delta)
                    # The graph of the encodings, from parameters to tables, is that of all blocks and layers.
                    dq, *found = torch.autograd.grad(
                        (out_of_block, lse_of_block),
                        [q, k, v, *of_block, *learned],
                        ((share * dout).to(out_of_block.dtype), d_lse.to(lse_of_block.dtype)),
                        retain_graph=True,
                        materialize_grads=True,
                    )
                    d_query += dq
                    for total, gradient in zip(d_rest, found[2:], strict=True):
                        total += gradient
                back = _sent_home(ring, step, [x.to(wide) for x in found[:2]], back, (d_key, d_value))
            _add(ring, ring.world - 1, back, (d_key, d_value))
        rest = iter(d_rest[len(leaves) :])
        of_parameters = [next(rest) if wanted else None for wanted in is_wanted]
        gradients = d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype)
        return None, None, *gradients, *d_rest[: len(leaves)], *of_parameters


def _share(of: Tensor, total: Tensor) -> Tensor:
    """exp(of - total) for each row, 0 where the row has no visible key, with an axis for channels."""
    return (of - total).exp().masked_fill(total == -torch.inf, 0.0)[..., None]


def _sent_home(
    ring: Ring, step: int, found: Sequence[Tensor], back: Transfer, totals: tuple[Tensor, Tensor]
) -> Transfer:
    """Adds the gradients of this process's keys and values that came back for the step before, and begins to send those
    of this step's keys to the process that holds them."""
    if step == 0:
        return Transfer((), (), found)
    _add(ring, step - 1, back, totals)
    mine = ring.needs.keys(ring.target(step), ring.rank)
    into = [] if mine is None else [_like(x, mine.stop - mine.start) for x in totals]
    return ring.transfer([x.contiguous() for x in found], ring.source(step), into, ring.target(step))


def _add(ring: Ring, step: int, back: Transfer, totals: tuple[Tensor, Tensor]) -> None:
    mine = ring.needs.keys(ring.target(step), ring.rank)
    for total, part in zip(totals, back.received(), strict=False):
        total[:, :, mine] += part
