"""Attention to the keys of other processes, block by block: a block travels while the one before it is computed. Where
a bias decays, a head sees no further than its horizon."""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from posenc.backends.blockwise import using_global_lse
from posenc.distributed.sharding import Needs, Shards
from posenc.encoding.encoding import Encoding
from posenc.encoding.terms import differences, skip_threshold, skipped_by_default
from posenc.models.forward_pass import LayerCall
from posenc.positions.layout import Layout
from posenc.positions.tiles import Chunk, Visibility

MIN_TOKENS_FOR_HORIZONS = 256  # texts for which finding horizons pays off
MIN_HORIZON = 64  # horizons are rounded up to powers of two from here on, so that many heads have the same


@dataclass(frozen=True, eq=False)
class Part:
    """Neighbouring heads that need the same keys: heads of keys, the heads of queries that share them, and how far
    they see."""

    keys: slice
    queries: slice
    visibility: Visibility
    needs: Needs


def parts(call: LayerCall, encoding: Encoding, visibility: Visibility, sharding: Shards) -> list[Part]:
    """The heads of a call in parts, the same on all processes of the group, which must all call this.

    What is beyond a head's horizon has at most half of ``skip_below`` of every row's weight; the other half is for the
    blocks. There is one part without a causal mask, or if a term has no known bound.
    """
    heads, kv_heads, tokens = call.query.size(1), call.key.size(1), len(sharding.whole)
    chunk = call.window.size if isinstance(call.window, Chunk) else None
    reaches = _reaches(call, encoding, visibility, sharding)
    if reaches is None:
        return [Part(slice(0, kv_heads), slice(0, heads), visibility, sharding.needs(visibility, chunk))]
    shared = heads // kv_heads
    found = []
    for reach, alike in groupby(range(kv_heads), key=lambda h: max(reaches[h * shared : (h + 1) * shared])):
        keys = list(alike)
        left = tokens if visibility.left is None else visibility.left
        left = min(left, tokens if reach >= tokens else reach - 1)
        seen = Visibility(visibility.is_causal, None if left == tokens else left, visibility.right)
        of = slice(keys[0], keys[-1] + 1)
        found.append(Part(of, slice(of.start * shared, of.stop * shared), seen, sharding.needs(seen)))
    return found


@torch.no_grad()
def _reaches(call: LayerCall, encoding: Encoding, visibility: Visibility, sharding: Shards) -> list[int] | None:
    """How many keys each head of queries needs, with the query's own; None if that is not known."""
    tokens, score_terms = len(sharding.whole), encoding.score_terms
    skip_below = skipped_by_default(call.query.dtype) if call.skip_below is None else call.skip_below
    # What a row holds at least is the score of the query's own key, so every query must see its own.
    sees_itself = call.attn_mask is None and visibility.furthest == 0 and not isinstance(call.window, Chunk)
    fades = any(term.fades for term in score_terms) and not encoding.rotations
    pays = sharding.world > 1 and tokens >= MIN_TOKENS_FOR_HORIZONS and skip_below > 0
    nothing = torch.arange(1, device=call.query.device)
    if not (pays and sees_itself and fades and _rises(sharding.whole.layout)):
        return None
    if differences(score_terms, nothing, 0.0, 0.0, 1.0) is None:
        return None
    norms = torch.stack([_longest(x) for x in (call.query, call.key)])
    dist.all_reduce(norms, dist.ReduceOp.MAX, sharding.group)
    # The norms of vectors of float32 are rounded.
    query, key = ((1 + call.query.size(-1) * torch.finfo(torch.float32).eps) * norms.double()).tolist()
    scale = call.scale if call.scale is not None else encoding.scale
    scale = abs(scale) if scale is not None else 1 / math.sqrt(call.query.size(-1))
    found = differences(score_terms, -torch.arange(tokens, device=nothing.device), query, key, scale)
    assert found is not None
    counts = ~(found[0] + found[1] < skip_threshold(skip_below / 2, tokens))  # with NaN, nothing is left out
    last = torch.where(counts, torch.arange(tokens), 0).amax(-1)
    own = encoding.context.heads
    last = last if own is None or len(last) == 1 else last[own.start : own.stop]
    # Each process's own, since processes that send by different horizons would wait for ever.
    last = last.expand(call.query.size(1)).contiguous().to(norms.device)
    dist.all_reduce(last, dist.ReduceOp.MAX, sharding.group)
    return [max(MIN_HORIZON, 2 ** int(n).bit_length()) for n in last.tolist()]


def _longest(x: Tensor) -> Tensor:
    """The greatest norm; infinite with NaN."""
    norms = torch.linalg.vector_norm(x.detach(), dim=-1, dtype=torch.promote_types(x.dtype, torch.float32))
    longest = norms.amax() if norms.numel() else norms.new_zeros(())
    return longest.nan_to_num(nan=math.inf, posinf=math.inf)


def _rises(layout: Layout) -> bool:
    """Whether documents are one after another, and in each coordinates are known to be order plus a constant and rise,
    so that a horizon is a window."""
    for row in layout.rows or ():
        known: dict[int, tuple[int, int]] = {}  # how far coordinates are ahead of the order, and the next order
        last = None
        for span in row:
            line = span.line
            if line is None or span.order_step != 1 or (span.document in known and span.document != last):
                return False
            ahead, following = known.get(span.document, (line - span.order, span.order))
            if line - span.order != ahead or span.order < following:
                return False
            known[span.document] = ahead, span.order + span.stop - span.start
            last = span.document
    return layout.rows is not None


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
            global_rank = dist.get_global_rank(self.group, peer)
            operations += [dist.P2POp(how, x, global_rank, self.group) for part in tensors for x in part]
        return Transfer(dist.batch_isend_irecv(operations) if operations else [], sent, into)

    def select_keys(self, queries_of: int, keys_of: int, *tensors: Tensor) -> Parts:
        """Views of what queries of one process need of the keys and values of another, which holds ``tensors``."""
        found = []
        for part in self.parts:
            keys = part.needs.keys(queries_of, keys_of)
            found.append([] if keys is None else [x[:, part.keys, keys] for x in tensors])
        return found

    def allocate_blocks(self, queries_of: int, keys_of: int, *like: Tensor) -> Parts:
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
        here, coming = self.select_keys(self.rank, self.rank, key, value), Transfer()
        try:
            for step in range(self.world):
                if step:
                    here = coming.received()
                if step + 1 < self.world:
                    to, of = self.target(step + 1), self.source(step + 1)
                    into = self.allocate_blocks(self.rank, of, key, value)
                    coming = self.transfer(self.select_keys(to, self.rank, key, value), to, into, of)
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
                    own, (k, v) = part.queries, keys
                    of_block, lse_of_block = ring.run(part, ring.source(step), query[:, own], k, v, rest[:count])
                    total = torch.logaddexp(lse[:, own], lse_of_block)
                    out[:, own] = _share(lse[:, own], total) * out[:, own] + _share(lse_of_block, total) * of_block
                    lse[:, own] = total
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
                    own = part.queries
                    q, k, v, *of_block = (
                        x.detach().requires_grad_(x.is_floating_point()) for x in (query[:, own], *keys, *leaves)
                    )
                    dout_here, delta_here = dout[:, own].to(wide), delta[:, own]
                    whole = using_global_lse(out[:, own], lse[:, own]) if ring.is_one_call else nullcontext()
                    with whole as rows, torch.enable_grad():
                        out_of_block, lse_of_block = ring.run(part, ring.source(step), q, k, v, of_block)
                    if rows is not None and rows.is_taken:
                        d_out, d_lse = dout_here, zero if dlse is None else dlse[:, own]
                    else:
                        share = _share(lse_of_block, lse[:, own])
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
                    d_query[:, own] += dq
                    found[-1] += [dk.to(wide), dv.to(wide)]
                    for total, gradient in zip(d_rest, others, strict=True):
                        total += gradient
                back = _return_gradients(ring, step, found, back, (d_key, d_value))
            _add(ring, ring.world - 1, back, (d_key, d_value))
        rest = iter(d_rest[len(leaves) :])
        of_parameters = [next(rest) if wanted else None for wanted in is_wanted]
        gradients = d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype)
        return None, None, *gradients, *d_rest[: len(leaves)], *of_parameters


def _share(of: Tensor, total: Tensor) -> Tensor:
    """exp(of - total) for each row, 0 where the row has no visible key, with an axis for channels."""
    return (of - total).exp().masked_fill(total == -torch.inf, 0.0)[..., None]


def _return_gradients(ring: Ring, step: int, found: Parts, back: Transfer, totals: tuple[Tensor, Tensor]) -> Transfer:
    """Adds the gradients of this process's keys and values that came back for the step before, and begins to send those
    of this step's keys to the process that holds them."""
    if step == 0:
        return Transfer(into=found)
    _add(ring, step - 1, back, totals)
    into = ring.allocate_blocks(ring.target(step), ring.rank, *totals)
    return ring.transfer(found, ring.source(step), into, ring.target(step))


def _add(ring: Ring, step: int, back: Transfer, totals: tuple[Tensor, Tensor]) -> None:
    for own, received in zip(ring.select_keys(ring.target(step), ring.rank, *totals), back.received(), strict=True):
        for total, gradient in zip(own, received, strict=True):
            total += gradient
