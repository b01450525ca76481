"""Attention to the keys of other processes, block by block: a block travels while the one before it is computed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from posenc.backends.custom import of_whole_rows
from posenc.distributed.horizons import Part

Block = Callable[[Part, int, Tensor, Tensor, Tensor, Sequence[Tensor]], tuple[Tensor, Tensor]]
"""Attention of a part of the heads to one process's keys: (part, its rank, query, key, value, leaves) -> output and
log-sum-exp."""

Parts = list[list[Tensor]]
"""For each part of the heads its tensors, or none."""


class Transfer:
    """Messages on their way: what was sent, which must not be freed before, and what is received."""

    def __init__(self, requests: Sequence[Any] = (), sent: Any = (), into: Parts | None = None) -> None:
        self._requests, self._sent, self._into = requests, sent, into or []

    def received(self) -> Parts:
        """What was received, once it is there."""
        for request in self._requests:
            request.wait()
        self._requests, self._sent = (), ()
        return self._into


class Ring:
    """The blocks of one call, on every process: which keys travel where. At step s process r sends to r + s and
    receives from r - s, so that each pair of processes meets once, and what nobody attends to is not sent.

    ``parts`` are of the heads; ``run`` computes a block of one part, in one call of a kernel if ``is_one_call``.
    """

    def __init__(
        self, parts: Sequence[Part], run: Block, rank: int, world: int, group: Any, is_one_call: bool = False
    ) -> None:
        self.is_one_call = is_one_call
        self.parts, self.run, self.rank, self.world, self.group = parts, run, rank, world, group

    def source(self, step: int) -> int:
        """The process whose keys this one attends to at a step."""
        return (self.rank - step) % self.world

    def target(self, step: int) -> int:
        """The process that attends to this one's keys at a step."""
        return (self.rank + step) % self.world

    def transfer(self, sent: Parts, to: int, into: Parts, of: int) -> Transfer:
        """Begins to send tensors to one process and to receive from another."""
        sent = [[x.contiguous() for x in part] for part in sent]
        operations = []
        for tensors, how, peer in ((sent, dist.isend, to), (into, dist.irecv, of)):
            place = dist.get_global_rank(self.group, peer)
            operations += [dist.P2POp(how, x, place, self.group) for part in tensors for x in part]
        return Transfer(dist.batch_isend_irecv(operations) if operations else [], sent, into)

    def kept(self, queries_of: int, keys_of: int, *tensors: Tensor) -> Parts:
        """Views of what queries of one process need of the keys and values of another, which holds ``tensors``."""
        found = []
        for part in self.parts:
            keys = part.needs.keys(queries_of, keys_of)
            found.append([] if keys is None else [x[:, part.keys, keys] for x in tensors])
        return found

    def room(self, queries_of: int, keys_of: int, *like: Tensor) -> Parts:
        """Empty tensors for these."""
        found = []
        for part in self.parts:
            keys, heads = part.needs.keys(queries_of, keys_of), part.keys.stop - part.keys.start
            tokens = 0 if keys is None else keys.stop - keys.start
            found.append([x.new_empty((x.size(0), heads, tokens, x.size(3))) for x in like] if tokens else [])
        return found

    def blocks(self, key: Tensor, value: Tensor) -> Generator[tuple[int, Parts]]:
        """Each step, with the keys and values to attend to. Close it where a step may fail, so that no message is left
        on its way."""
        here, coming = self.kept(self.rank, self.rank, key, value), Transfer()
        try:
            for step in range(self.world):
                if step:
                    here = coming.received()
                if step + 1 < self.world:
                    to, of = self.target(step + 1), self.source(step + 1)
                    sent, into = self.kept(to, self.rank, key, value), self.room(self.rank, of, key, value)
                    coming = self.transfer(sent, to, into, of)
                yield step, here
        finally:
            coming.received()


def attend_in_ring(
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
    """In the backward pass gradients of a block follow from the output and log-sum-exp of whole rows: a kernel is given
    them; otherwise the block is computed again. So a process holds the keys of two others at most. The gradients of
    keys and values travel back in float32 or wider."""

    @staticmethod
    def forward(ctx: Any, ring: Ring, count: int, query: Tensor, key: Tensor, value: Tensor, *rest: Tensor) -> Any:
        wide = torch.promote_types(query.dtype, torch.float32)
        out = query.new_zeros((*query.shape[:3], value.size(-1)), dtype=wide)
        lse = query.new_full(query.shape[:3], -torch.inf, dtype=wide)
        with closing(ring.blocks(key, value)) as blocks:
            for step, parts in blocks:
                for part, keys in zip(ring.parts, parts, strict=True):
                    if not keys:
                        continue
                    mine, (k, v) = part.queries, keys
                    of_block, lse_of_block = ring.run(part, ring.source(step), query[:, mine], k, v, rest[:count])
                    total = torch.logaddexp(lse[:, mine], lse_of_block)
                    out[:, mine] = _share(lse[:, mine], total) * out[:, mine] + _share(lse_of_block, total) * of_block
                    lse[:, mine] = total
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
        zero = lse.new_zeros(())
        d_query = torch.zeros_like(query, dtype=wide)
        d_key, d_value = torch.zeros_like(key, dtype=wide), torch.zeros_like(value, dtype=wide)
        is_wanted = ctx.needs_input_grad[5 + ctx.count :]
        learned = [x for x, wanted in zip(ctx.parameters, is_wanted, strict=True) if wanted]
        # Zeros where no block has a gradient: FSDP counts on one from every process.
        d_rest = [torch.zeros_like(x) for x in (*leaves, *learned)]
        with closing(ring.blocks(key, value)) as blocks:
            back = Transfer()
            for step, parts in blocks:
                found: Parts = []
                for part, keys in zip(ring.parts, parts, strict=True):
                    found.append([])
                    if not keys:
                        continue
                    mine = part.queries
                    q, k, v, *of_block = (
                        x.detach().requires_grad_(x.is_floating_point()) for x in (query[:, mine], *keys, *leaves)
                    )
                    dout_here, delta_here = dout[:, mine].to(wide), delta[:, mine]
                    whole = of_whole_rows(out[:, mine], lse[:, mine]) if ring.is_one_call else nullcontext()
                    with whole as rows, torch.enable_grad():
                        out_of_block, lse_of_block = ring.run(part, ring.source(step), q, k, v, of_block)
                    if rows is not None and rows.is_taken:
                        d_out, d_lse = dout_here, zero if dlse is None else dlse[:, mine]
                    else:
                        share = _share(lse_of_block, lse[:, mine])
                        d_out = share * dout_here
                        d_lse = share[..., 0] * ((dout_here * out_of_block).sum(-1) - delta_here)
                    # The graph of the encodings, from parameters to tables, is that of all blocks and layers.
                    dq, dk, dv, *others = torch.autograd.grad(
                        (out_of_block, lse_of_block),
                        [q, k, v, *of_block, *learned],
                        (d_out.to(out_of_block.dtype), d_lse.to(lse_of_block.dtype).expand_as(lse_of_block)),
                        retain_graph=True,
                        materialize_grads=True,
                    )
                    d_query[:, mine] += dq
                    found[-1] += [dk.to(wide), dv.to(wide)]
                    for total, gradient in zip(d_rest, others, strict=True):
                        total += gradient
                back = _sent_home(ring, step, found, back, (d_key, d_value))
            _add(ring, ring.world - 1, back, (d_key, d_value))
        rest = iter(d_rest[len(leaves) :])
        of_parameters = [next(rest) if wanted else None for wanted in is_wanted]
        gradients = d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype)
        return None, None, *gradients, *d_rest[: len(leaves)], *of_parameters


def _share(of: Tensor, total: Tensor) -> Tensor:
    """exp(of - total) for each row, 0 where the row has no visible key, with an axis for channels."""
    return (of - total).exp().masked_fill(total == -torch.inf, 0.0)[..., None]


def _sent_home(ring: Ring, step: int, found: Parts, back: Transfer, totals: tuple[Tensor, Tensor]) -> Transfer:
    """Adds the gradients of this process's keys and values that came back for the step before, and begins to send those
    of this step's keys to the process that holds them."""
    if step == 0:
        return Transfer(into=found)
    _add(ring, step - 1, back, totals)
    into = ring.room(ring.target(step), ring.rank, *totals)
    return ring.transfer(found, ring.source(step), into, ring.target(step))


def _add(ring: Ring, step: int, back: Transfer, totals: tuple[Tensor, Tensor]) -> None:
    for mine, came in zip(ring.kept(ring.target(step), ring.rank, *totals), back.received(), strict=True):
        for total, gradient in zip(mine, came, strict=True):
            total += gradient
