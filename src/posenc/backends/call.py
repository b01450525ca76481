"""One call of attention, checked and ready to run: what every backend takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from posenc import compat
from posenc.encoding.features import NOTHING, Features
from posenc.encoding.horizon import SKIP_BELOW
from posenc.encoding.pieces import Fold, Function, Piece, Value
from posenc.lowering.block import Block
from posenc.lowering.forms import check, check_heads
from posenc.positions.layout import Layout
from posenc.positions.positions import Positions
from posenc.positions.tiles import Visibility
from posenc.positions.visibility import visible
from posenc.rotation.phases import PairRotation, in_double

# Fewer queries than this are over before anything clever has begun (measured on a CPU: docs/log.md).
FEW_QUERIES = 16


@dataclass(frozen=True, eq=False)
class Far:
    """Queries and keys as pairs have them that are ``reach`` or further apart: of the shapes of the call's own."""

    reach: int
    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch kv_heads keys head_dim"]


@dataclass(frozen=True, eq=False)
class Turn:
    """A rotation of queries and keys that is still to be done: of the same pairs of channels, in the same layout."""

    query: PairRotation
    key: PairRotation

    def part(self, queries: slice, keys: slice) -> Turn:
        """That of some of the queries and keys."""
        return Turn(self.query.of_tokens(queries), self.key.of_tokens(keys))


@dataclass(frozen=True, eq=False)
class Call:
    """Queries and keys, the terms of the pair doors, and what may be seen.

    query (B, H, M, d), key (B, H_kv, N, d), value (B, H_kv, N, d_v), H a multiple of H_kv; all of one dtype and device.
    Queries and keys are rotated already, unless ``turn`` says how they are still to be: see `turned`. ``bands`` are the
    queries and keys of far pairs, as `apart` counts; the reference alone takes a call that has some.
    """

    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch kv_heads keys head_dim"]
    value: Float[Tensor, "batch kv_heads keys value_dim"]
    query_positions: Positions
    key_positions: Positions
    pieces: tuple[Piece, ...]
    values: tuple[Value, ...]
    attn_mask: Tensor | None
    visibility: Visibility
    dropout_p: float
    scale: float
    return_lse: bool
    heads: range | None = None
    query_features: Features = field(default_factory=lambda: NOTHING)
    key_features: Features = field(default_factory=lambda: NOTHING)
    skip_below: float = SKIP_BELOW
    key_norms: Tensor | None = None
    bands: tuple[Far, ...] = ()
    chunk: int | None = None
    turn: Turn | None = None

    def turned(self) -> Call:
        """The same call with queries and keys rotated."""
        if self.turn is None:
            return self
        return replace(self, query=self.turn.query(self.query), key=self.turn.key(self.key), turn=None)

    def apart(self) -> Shaped[Tensor, "rows queries keys"]:
        """How far apart each pair is, as bands count: g(p_i) - g(p_j), in coordinates or in chunks of them."""
        x, y = (counted(positions, self.chunk) for positions in (self.query_positions, self.key_positions))
        return x[:, :, None] - y[:, None, :]

    @property
    def dtype(self) -> torch.dtype:
        """The precision to compute scores in: float32, or float64 for float64 inputs."""
        return torch.promote_types(self.query.dtype, torch.float32)

    def visible(self) -> Bool[Tensor, "#batch #heads #queries #keys"] | None:
        """Which key each query may see, by positions and by a bool ``attn_mask``; None for all."""
        seen = visible(self.query_positions, self.key_positions, self.visibility)
        masks = [] if seen is None else [seen[:, None]]
        if self.bool_mask is not None:
            masks.append(self.bool_mask)
        return reduce(and_, masks) if masks else None

    def check(self) -> None:
        """ValueError or PositionError where the positions do not suit a term."""
        for term in (*self.pieces, *self.values):
            check(getattr(term, "distance", None), self.raw_block())
            if isinstance(term, Function):
                check_heads(term.num_heads, term.scheme, self.raw_block())

    @property
    def shown(self) -> Tensor | None:
        """Which pairs ``attn_mask`` lets be seen: those that are True or, where it is float, not -inf."""
        return self.bool_mask if self.attn_mask is None or self.bool_mask is not None else self.attn_mask != -torch.inf

    @property
    def bool_mask(self) -> Tensor | None:
        """``attn_mask`` where it is bool."""
        return self.attn_mask if self.attn_mask is not None and self.attn_mask.dtype == torch.bool else None

    @property
    def layouts(self) -> tuple[Layout, Layout] | None:
        """The layouts of queries and of keys, where every token is known to lie in one of their spans or in padding."""
        both = self.query_positions.layout, self.key_positions.layout
        if any(layout.rows is None for layout in both):
            return None
        if self.key_positions.coords.dim() == 3:  # no tile goes by one of several coordinates
            return both[0].by_order(), both[1].by_order()
        return both

    @property
    def is_forward_mode(self) -> bool:
        """Whether tangents may be on their way, which an operator of one's own would lose without a word."""
        return compat.is_forward_mode()

    @property
    def has_few_queries(self) -> bool:
        """Whether this is a step of decoding. A graph compiled for all lengths must not be told apart by theirs, but
        that there is one query it knows anyway."""
        queries = self.query.size(2)
        return queries == 1 or (not torch.compiler.is_compiling() and queries < FEW_QUERIES)

    def raw_block(self) -> Block:
        """All queries against all keys, in the precision of the inputs: for what casts by itself what it reads."""
        return Block(
            self.query,
            self.key,
            self.query_positions,
            self.key_positions,
            self.scale,
            self.heads,
            self.query_features,
            self.key_features,
        )

    def block(self) -> Block:
        """All queries against all keys, in the precision of the scores."""
        return replace(self.raw_block(), query=self.query.to(self.dtype), key=self.key.to(self.dtype))

    def part(self, queries: slice, keys: slice) -> Call:
        """The same call for some queries, which see some of the keys."""
        block, mask = self.raw_block().part(queries, keys), self.attn_mask
        if mask is not None:
            mask = mask if mask.size(2) == 1 else mask[:, :, queries]
            mask = mask if mask.size(3) == 1 else mask[..., keys]
        return replace(
            self,
            query=block.query,
            key=block.key,
            value=self.value[:, :, keys],
            query_positions=block.query_positions,
            key_positions=block.key_positions,
            pieces=tuple(sliced(piece, queries, keys) for piece in self.pieces),
            attn_mask=mask,
            query_features=block.query_features,
            key_features=block.key_features,
            key_norms=None if self.key_norms is None else self.key_norms[:, :, keys],
            bands=tuple(Far(far.reach, far.query[:, :, queries], far.key[:, :, keys]) for far in self.bands),
            turn=None if self.turn is None else self.turn.part(queries, keys),
        )


def counted(positions: Positions, chunk: int | None) -> Shaped[Tensor, "rows tokens"]:
    """g(p) of every token: its one coordinate, or the number of the chunk that it lies in."""
    coords = positions.scalar("a rotation with bands")
    if chunk is None:
        return coords if coords.dtype == torch.int64 else in_double(coords)
    return coords.div(chunk, rounding_mode="floor").long()


def sliced(piece: Piece, queries: slice, keys: slice) -> Piece:
    """A piece for some of the queries and keys: one that holds a number for each of them is cut."""
    if not isinstance(piece, Fold):
        return piece
    query, key = piece.query, piece.key
    query = query if query is None or query.size(2) == 1 else query[:, :, queries]
    key = key if key is None or key.size(2) == 1 else key[:, :, keys]
    return replace(piece, query=query, key=key)


@dataclass(frozen=True)
class Backend:
    """A way to run attention. ``refuses(call)`` is None where it can, else the reason in words; ``run(call)`` gives the
    output (B, H, M, d_v) in the query's dtype and, if asked for, the log-sum-exp (B, H, M) of every row of scores. It
    is given rotated queries and keys, unless it ``turns`` them by itself. ``refuses`` reads no numbers of them.

    A query that sees no key gives zeros, in the output and in every gradient, and a log-sum-exp of -inf. Gradients of
    the log-sum-exp come with those of the output.
    """

    name: str
    refuses: Callable[[Call], str | None]
    run: Callable[[Call], tuple[Tensor, Tensor | None]]
    turns: bool = False

    def __call__(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """Runs the call, whose queries and keys are rotated first unless the backend turns them by itself."""
        return self.run(call if self.turns else call.turned())
