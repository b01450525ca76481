"""`Call`: a checked call of attention, as backends take it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from posenc import compat
from posenc.encoding.features import NOTHING, Features
from posenc.encoding.horizon import SKIP_BELOW
from posenc.encoding.pieces import Piece, Value
from posenc.lowering.block import Block
from posenc.lowering.distances import check, check_heads
from posenc.positions.layout import Layout
from posenc.positions.positions import Positions
from posenc.positions.tiles import Visibility
from posenc.positions.visibility import visible
from posenc.rotation.phases import PairRotation, in_double

# Below this many queries the simple path is faster (measured on a CPU).
FEW_QUERIES = 16


@dataclass(frozen=True, eq=False)
class RotatedBand:
    """A band's queries and keys, rotated for pairs at a distance of at least ``reach``, shaped like the call's own."""

    reach: int
    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch kv_heads keys head_dim"]


@dataclass(frozen=True, eq=False)
class Turn:
    """A rotation of queries and keys that is not applied yet, of the same channel pairs in the same layout."""

    query: PairRotation
    key: PairRotation

    def part(self, queries: slice, keys: slice) -> Turn:
        """The rotation of some of the queries and keys."""
        return Turn(self.query.of_tokens(queries), self.key.of_tokens(keys))


@dataclass(frozen=True, eq=False)
class Call:
    """Query, key, value, the pair terms and the mask of one call.

    query (B, H, M, d), key (B, H_kv, N, d), value (B, H_kv, N, d_v), H a multiple of H_kv; all of one dtype and device.
    Queries and keys are already rotated, unless ``turn`` is the rotation to apply: see `turned`. ``bands`` are the
    queries and keys for distant pairs, by the distance of `apart`; only the reference backend runs a call with bands.
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
    bands: tuple[RotatedBand, ...] = ()
    chunk: int | None = None
    turn: Turn | None = None
    is_clear: bool = False  # see `posenc.backends.unseen`
    kept: dict[str, Any] | None = field(default=None, init=False)  # see `keeping`; a call made of this one has none

    def keeping(self, kept: dict[str, Any] | None) -> Call:
        """Gives the call, just made, a place for what a backend derives of it that no number in its tensors changes:
        other calls of the same plan are given it too."""
        object.__setattr__(self, "kept", kept)
        return self

    def turned(self) -> Call:
        """The same call with queries and keys rotated."""
        if self.turn is None:
            return self
        return replace(self, query=self.turn.query(self.query), key=self.turn.key(self.key), turn=None)

    def apart(self) -> Shaped[Tensor, "rows queries keys"]:
        """The distance of each pair that bands refer to: g(p_i) - g(p_j), in coordinates or in chunks of them."""
        x, y = (counted(positions, self.chunk) for positions in (self.query_positions, self.key_positions))
        return x[:, :, None] - y[:, None, :]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of scores: float32, or float64 for float64 inputs."""
        return torch.promote_types(self.query.dtype, torch.float32)

    def visible(self) -> Bool[Tensor, "#batch #heads #queries #keys"] | None:
        """The mask by positions and a bool ``attn_mask``; None for all True."""
        seen = visible(self.query_positions, self.key_positions, self.visibility)
        masks = [] if seen is None else [seen[:, None]]
        if self.bool_mask is not None:
            masks.append(self.bool_mask)
        return reduce(and_, masks) if masks else None

    def check(self) -> None:
        """ValueError or PositionError if the positions do not match a term."""
        for term in (*self.pieces, *self.values):
            check(term.distance, self.raw_block())
            if term.num_heads is not None:
                check_heads(term.num_heads, term.scheme, self.raw_block())

    @property
    def bool_attn_mask(self) -> Tensor | None:
        """``attn_mask`` as bool: a float mask is True where it is not -inf."""
        return self.bool_mask if self.attn_mask is None or self.bool_mask is not None else self.attn_mask != -torch.inf

    @property
    def bool_mask(self) -> Tensor | None:
        """``attn_mask`` if it is bool, else None."""
        return self.attn_mask if self.attn_mask is not None and self.attn_mask.dtype == torch.bool else None

    @property
    def layouts(self) -> tuple[Layout, Layout] | None:
        """The layouts of queries and keys, if the spans of both are known; else None."""
        both = self.query_positions.layout, self.key_positions.layout
        if any(layout.rows is None for layout in both):
            return None
        if self.key_positions.coords.dim() == 3:  # tiles use only order and document
            return both[0].by_order(), both[1].by_order()
        return both

    @property
    def is_forward_mode(self) -> bool:
        """Whether forward-mode AD is active, whose tangents custom operators would drop without an error."""
        return compat.is_forward_mode()

    @property
    def has_few_queries(self) -> bool:
        """Whether this is a decoding step. A dynamic graph must not be specialized by comparing lengths, but dynamo
        always specializes a size of 1."""
        queries = self.query.size(2)
        return queries == 1 or (not torch.compiler.is_compiling() and queries < FEW_QUERIES)

    def raw_block(self) -> Block:
        """All queries against all keys, in the dtype of the inputs, for code that casts what it reads."""
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
        """All queries against all keys, in the dtype of the scores."""
        return replace(self.raw_block(), query=self.query.to(self.dtype), key=self.key.to(self.dtype))

    def part(self, queries: slice, keys: slice) -> Call:
        """The call of some of the queries and keys."""
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
            bands=tuple(RotatedBand(b.reach, b.query[:, :, queries], b.key[:, :, keys]) for b in self.bands),
            turn=None if self.turn is None else self.turn.part(queries, keys),
        )


def counted(positions: Positions, chunk: int | None) -> Shaped[Tensor, "rows tokens"]:
    """g(p) of every token: its coordinate, or the number of its chunk."""
    coords = positions.scalar("a rotation with bands")
    if chunk is None:
        return coords if coords.dtype == torch.int64 else in_double(coords)
    return coords.div(chunk, rounding_mode="floor").long()


def sliced(piece: Piece, queries: slice, keys: slice) -> Piece:
    """A piece for some of the queries and keys: slices tensors that it has for each of them."""
    part = {"query": queries, "key": keys}
    return piece.mapped(lambda side, x: x if x.size(2) == 1 else x[:, :, part[side]])
