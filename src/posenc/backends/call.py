"""One call of attention, checked and ready to run: what every backend takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import forward_ad

from posenc.encoding import Block, RowScore, Score, Value
from posenc.positions import Positions, key_level_with, visible

# Fewer queries than this are over before anything clever has begun (measured on a CPU: docs/log.md).
FEW_QUERIES = 16


@dataclass(frozen=True, eq=False)
class Call:
    """Queries and keys already rotated, the terms of the pair doors, and what may be seen.

    query (B, H, M, d), key (B, H_kv, N, d), value (B, H_kv, N, d_v), H a multiple of H_kv; all of one dtype and device.
    """

    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch kv_heads keys head_dim"]
    value: Float[Tensor, "batch kv_heads keys value_dim"]
    query_positions: Positions
    key_positions: Positions
    scores: tuple[Score | RowScore, ...]
    values: tuple[Value, ...]
    attn_mask: Tensor | None
    is_causal: bool
    dropout_p: float
    scale: float
    return_lse: bool

    @property
    def dtype(self) -> torch.dtype:
        """The precision to compute scores in: float32, or float64 for float64 inputs."""
        return torch.promote_types(self.query.dtype, torch.float32)

    def visible(self) -> Bool[Tensor, "#batch #heads #queries #keys"] | None:
        """Which key each query may see, by positions and by a bool ``attn_mask``; None for all."""
        seen = visible(self.query_positions, self.key_positions, is_causal=self.is_causal)
        seen = None if seen is None else seen[:, None]
        if self.attn_mask is None or self.attn_mask.dtype != torch.bool:
            return seen
        return self.attn_mask if seen is None else seen & self.attn_mask

    @property
    def is_forward_mode(self) -> bool:
        """Whether tangents may be on their way, which an operator of one's own would lose without a word."""
        return not torch.compiler.is_compiling() and forward_ad._current_level >= 0

    @property
    def wants_gradient_of_lse(self) -> bool:
        """Whether the log-sum-exp is asked for where gradients are, of which a fused kernel has none for it."""
        return self.return_lse and torch.is_grad_enabled()

    @property
    def has_few_queries(self) -> bool:
        """Whether this is a step of decoding. A graph compiled for all lengths must not be told apart by theirs, but
        that there is one query it knows anyway."""
        queries = self.query.size(2)
        return queries == 1 or (not torch.compiler.is_compiling() and queries < FEW_QUERIES)

    @property
    def folding(self) -> Score | None:
        """The score term that the inner product is to hold: the first that wholly factors.

        One alone: the product of two that were would hold terms that nobody asked for. And none after a term that does
        not add, since that one must see the score as it is. Nor for a few queries, which are cheaper to change one by
        one than all keys of a cache.
        """
        if self.has_few_queries:
            return None
        for term in self.scores:
            if isinstance(term, RowScore) or not term.additive:
                return None
            if term.fold is not None and term.by_distance is None:
                return term
        return None

    @property
    def unfolded(self) -> tuple[Score | RowScore, ...]:
        """The other score terms. They are bound to the call's own query and key."""
        folding = self.folding
        return tuple(term for term in self.scores if term is not folding)

    def inner(self) -> tuple[Tensor, Tensor]:
        """Query and key whose inner product holds the `folding` term too, in the inputs' dtype."""
        if self.folding is None or self.folding.fold is None:
            return self.query, self.key
        query, key = self.folding.fold(self.block())
        width, dtype = self.query.size(-1), self.query.dtype
        if query.size(-1) == width or dtype == query.dtype:
            return query.to(dtype), key.to(dtype)
        # What the query gives by the new channels is a bias, which half precision would round: its rounding gets
        # channels of its own. And float16 ends at 65504, where a large query meets a vector sooner.
        room = 2.0**8 if dtype == torch.float16 else 1.0
        new, held = query[..., width:] / room, key[..., width:] * room
        rounded = new.to(dtype)
        rest = (new - rounded.to(new.dtype)).to(dtype)
        query = torch.cat((query[..., :width].to(dtype), rounded, rest), -1)
        return query, torch.cat((key[..., :width], held, held), -1).to(dtype)

    @property
    def ahead(self) -> int | None:
        """Where distance is an index: query i is level with key i + ahead. None where that is not known."""
        return key_level_with(self.query_positions, self.key_positions, is_causal=self.is_causal)

    def block(self) -> Block:
        """All queries against all keys, in the precision of the scores."""
        query, key = self.query.to(self.dtype), self.key.to(self.dtype)
        return Block(query, key, self.query_positions, self.key_positions, self.scale)

    def content_free_block(self) -> Block:
        """The same for a term that looks at positions alone: in the inputs' own precision, since casting a whole cache
        for a term that never reads it would cost more than the term, and of one row where the positions have one."""
        rows = 1 if self.query_positions.rows == self.key_positions.rows == 1 else None
        return Block(self.query[:rows], self.key[:rows], self.query_positions, self.key_positions, self.scale)


@dataclass(frozen=True)
class Backend:
    """A way to run attention. ``refuses(call)`` is None where it can, else the reason in words; ``run(call)`` gives the
    output (B, H, M, d_v) in the query's dtype and, if asked for, the log-sum-exp (B, H, M) of every row of scores.

    A query that sees no key gives zeros, in the output and in every gradient, and a log-sum-exp of -inf.
    """

    name: str
    refuses: Callable[[Call], str | None]
    run: Callable[[Call], tuple[Tensor, Tensor | None]]
