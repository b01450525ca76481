"""The one meeting place of schemes and attention: the four doors, what a scheme is, and what it gives.

Position enters attention through four doors, and a scheme opens one or more:

    add      x_i <- x_i + P[p_i]                         the input                 token door
    rotate   q_i <- T(p_i) q_i,  k_j <- T(p_j) k_j       queries and keys          token door
    score    s_ij <- f(s_ij; q_i, k_j, p_i, p_j)         the logits                pair door
    value    o_i <- o_i + sum_j a_ij w(p_i, p_j)         the output                pair door

Token doors see one position, so what they give can be cached with the token (a key is rotated when it enters the cache
and never again). Pair doors see two and live inside attention. A scheme never knows how attention is executed, and a
backend never knows which scheme it runs: they share the types of this file and nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from posenc.arguments import check_type, shown
from posenc.positions import Positions, check_reach

TokenMap: TypeAlias = Callable[[Tensor], Tensor]
"""A linear map per token: x (batch, heads, tokens, head_dim) to the same shape and dtype."""

ScoreFunction: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(score, b, h, i, j) -> score, the form of FlexAttention: b, h, i, j are int64 indices of batch row, query head, query
and key. It indexes the tensors it closes over and does plain arithmetic, so it runs on broadcast index tensors (dense,
in blocks) and on single indices under vmap alike. It computes in the dtype of the score it is given."""

RowFunction: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, "Tensor | None"], Tensor]
"""(scores, b, h, i, j, visible) -> scores, where j runs over all keys of the row and visible (or None: all) broadcasts
against the scores."""

DOORS = ("add", "rotate", "score", "value")


@dataclass(frozen=True)
class Rotation:
    """What the rotate door does to queries and to keys. Most schemes do the same to both; xPos does not."""

    query: TokenMap
    key: TokenMap


@dataclass(frozen=True, eq=False)
class Block:
    """Some queries against some keys, with their positions: all of a call, or the part a backend is working on.

    ``query`` (B, H, m, d) and ``key`` (B, H or fewer, n, d) are as they enter the inner product, already rotated.
    ``scale`` is the factor of that inner product. Positions have a row per batch row.
    """

    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch kv_heads keys head_dim"]
    query_positions: Positions
    key_positions: Positions
    scale: float

    def __post_init__(self) -> None:
        batch = self.query.size(0)
        object.__setattr__(self, "query_positions", self.query_positions.expand(batch))
        object.__setattr__(self, "key_positions", self.key_positions.expand(batch))

    @property
    def dtype(self) -> torch.dtype:
        """The precision of scores: float32, or float64 for float64 inputs."""
        return torch.promote_types(self.query.dtype, torch.float32)

    @property
    def indices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """b, h, i, j as index tensors that broadcast to (batch, heads, queries, keys)."""
        sizes = (*self.query.shape[:3], self.key.size(2))
        b, h, i, j = (
            torch.arange(n, device=self.query.device).view([-1 if axis == a else 1 for a in range(4)])
            for axis, n in enumerate(sizes)
        )
        return b, h, i, j

    def check_heads(self, scheme: str, num_heads: int | None, head_dim: int | None = None) -> None:
        """ValueError in the scheme's name unless the queries have so many heads of that width; None: any."""
        if num_heads is not None and num_heads != self.query.size(1):
            raise ValueError(f"{scheme} was made for {num_heads} heads, got queries of {self.query.size(1)}")
        if head_dim is not None and head_dim != self.query.size(3):
            raise ValueError(f"{scheme} was made for head_dim {head_dim}, got queries of head_dim {self.query.size(3)}")

    def table_coordinates(
        self, scheme: str, reach: tuple[int, ...] | None = None, axes: int = 1
    ) -> tuple[Int[Tensor, "batch queries *axes"], Int[Tensor, "batch keys *axes"]]:
        """Coordinates of queries and keys, as int64, for schemes that look distances up in a table.

        ``reach`` says how many distances from 0 on the table has along each axis. ValueError for fractional coordinates
        or another number of axes; PositionError where two tokens of one document are further apart than the table.
        """
        x, y = self.query_positions, self.key_positions
        for positions in (x, y):
            if positions.coords.dtype != torch.int64:
                raise ValueError(
                    f"{scheme} looks distances up in a table and needs int64 coordinates, got {positions.coords.dtype}"
                )
        if axes == 1:
            pair = (x.scalar(scheme), y.scalar(scheme))
        else:
            pair = (x.coords, y.coords)
            for coords in pair:
                if coords.dim() != 3 or coords.size(2) != axes:
                    found = 1 if coords.dim() == 2 else coords.size(2)
                    raise ValueError(f"{scheme} takes {axes} coordinates per token, got positions of {found}")
        if reach is not None:
            check_reach(x, y, reach, scheme)
        return pair


@dataclass(frozen=True)
class ByDistance:
    """What a term does to the scores s of pairs at some distances r = p_j - p_i, part by part, None for nothing.

    Adds q_i . vectors[r] + bias[r]; or makes of the score max(s, 0) factor[r], as a term that is not additive may.
    """

    vectors: Float[Tensor, "#heads distances head_dim"] | None = None
    bias: Float[Tensor, "#heads distances"] | None = None
    factor: Float[Tensor, "#heads distances"] | None = None


@dataclass(frozen=True)
class Score:
    """A term of the score door: ``bind(block)`` gives the function that changes one score of that block.

    Binding may make of the block's queries what the function will index (q times a table), so no M x N x d tensor is
    ever needed; and since it closes over nothing but parameters, a backend may bind all of a call or a block at a time.

    The other fields are facts that backends may use and never need:

    - ``additive``: f(s) = s + f(0), so the term can be laid in an additive mask.
    - ``content_free``: the function looks at positions alone, so it is the same in every batch row whose positions are.
    - ``fold(block)``: the term factors over i and j, so it is an inner product that attention computes anyway. Gives
      (query, key) to use in place of the block's, with as many channels or more, such that scale query . key holds the
      score and the term.
    - ``by_distance(block, distances)``: the term looks at positions through p_j - p_i alone. Gives what it adds at each
      of these distances (int64, 1-D), in the block's ``dtype``, all of it finite: what hides keys by -inf has not this
      fact. With ``fold`` too, the term is the sum of what each of them gives.
    - ``constant_past``: what ``by_distance`` gives at a distance of that or more, to either side, is the same.
    - ``linear_past``: from there on, to either side, its bias, which is not learned, runs in a straight line.
    """

    bind: Callable[[Block], ScoreFunction]
    additive: bool = True
    content_free: bool = False
    fold: Callable[[Block], tuple[Tensor, Tensor]] | None = None
    by_distance: Callable[[Block, Tensor], ByDistance] | None = None
    constant_past: int | None = None
    linear_past: int | None = None


@dataclass(frozen=True)
class RowScore:
    """A term of the score door that needs the whole row of scores of a query at once (CoPE counts along it). Its blocks
    hold all keys of the call."""

    bind: Callable[[Block], RowFunction]


@dataclass(frozen=True)
class Value:
    """A term of the value door: o_i += sum_j a_ij table[bucket(i, j)].

    ``table`` is (buckets, d) or (heads, buckets, d). ``bind(block)`` gives ``bucket(b, h, i, j)``, an int64 index. A
    table and an index, not w itself: the attention mass per bucket times the table is linear in memory, where w would
    be M x N x d.

    Facts that backends may use and never need: ``by_distance(distances)``, the bucket of each distance p_j - p_i where
    nothing else decides it, and ``constant_past``, the distance from which on, to either side, the bucket is the same.
    """

    table: Float[Tensor, "*heads buckets head_dim"]
    bind: Callable[[Block], Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]]
    by_distance: Callable[[Tensor], Tensor] | None = None
    constant_past: int | None = None


@dataclass(frozen=True, eq=False)
class Encoding:
    """What a scheme gives for some positions: an immutable value, made once per forward pass, handed to every layer.

    Terms are opened from left to right; a score term sees what the terms before it made of the score.
    """

    query_positions: Positions
    key_positions: Positions
    tables: tuple[Float[Tensor, "rows queries dim"], ...] = ()
    rotations: tuple[Rotation, ...] = ()
    scores: tuple[Score | RowScore, ...] = ()
    values: tuple[Value, ...] = ()

    def __post_init__(self) -> None:
        check_type("query_positions", self.query_positions, Positions)
        check_type("key_positions", self.key_positions, Positions)
        for name in ("tables", "rotations", "scores", "values"):
            check_type(name, getattr(self, name), tuple)

    @property
    def doors(self) -> tuple[str, ...]:
        """The names of the doors this encoding opens."""
        terms = (self.tables, self.rotations, self.scores, self.values)
        return tuple(name for name, term in zip(DOORS, terms, strict=True) if term)

    @property
    def pairs(self) -> Encoding:
        """The pair doors alone: for queries and keys that are rotated already, as those of a cache are."""
        return replace(self, tables=(), rotations=())

    def add(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        """The add door: x_i + P[p_i] at the query positions, in x's dtype. Returns x itself where the door is closed.

        Raises ValueError where x is not a floating tensor (batch, tokens, dim) for the positions and vectors at hand.
        """
        check_type("x", x, Tensor)
        positions = self.query_positions
        rows, tokens = positions.order.shape
        dim = self.tables[0].size(2) if self.tables else None
        fits = x.dim() == 3 and x.size(1) == tokens and dim in (None, x.size(2)) and (rows == 1 or rows == x.size(0))
        if not fits:
            shape = f"({'batch' if rows == 1 else rows}, {tokens}, {'dim' if dim is None else dim})"
            raise ValueError(f"x must be {shape} to add positions to, got {tuple(x.shape)}")
        if not x.is_floating_point():
            raise ValueError(f"x must be floating to add positions to, got {x.dtype}")
        if x.device != positions.device:
            raise ValueError(f"x must be on {positions.device} like the positions, got {x.device}")
        added = x
        for table in self.tables:
            added = added + table
        return added.to(x.dtype)  # rounded once, however many there are

    def rotate(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch kv_heads keys head_dim"],
    ) -> tuple[Float[Tensor, "batch heads queries head_dim"], Float[Tensor, "batch kv_heads keys head_dim"]]:
        """The rotate door: T(p_i) q_i at the query positions and T(p_j) k_j at the key positions.

        Raises ValueError where the tensors are not for these positions.
        """
        self.check(query, key)
        for rotation in self.rotations:
            query, key = rotation.query(query), rotation.key(key)
        return query, key

    def check(self, query: Tensor, key: Tensor) -> None:
        """ValueError unless query and key (batch, heads, tokens, head_dim) have the tokens this was made for."""
        for name, x, positions in (("query", query, self.query_positions), ("key", key, self.key_positions)):
            if not isinstance(x, Tensor) or not x.is_floating_point():
                raise ValueError(f"{name} must be a floating tensor, got {shown(x)}")
            if x.dim() != 4:
                raise ValueError(f"{name} must be (batch, heads, tokens, head_dim), got {tuple(x.shape)}")
            if x.size(2) != positions.order.size(1):
                raise ValueError(f"{name} has {x.size(2)} tokens, but the encoding was made for {len(positions)}")
            if positions.rows not in (1, x.size(0)):
                raise ValueError(
                    f"{name} has batch {x.size(0)}, but the encoding's positions have {positions.rows} rows"
                )
            if x.device != positions.device:
                raise ValueError(f"{name} is on {x.device}, but the encoding's positions are on {positions.device}")

    def __add__(self, other: Encoding) -> Encoding:
        """Both encodings' terms, these first. They must be of the same positions."""
        if not isinstance(other, Encoding):
            return NotImplemented
        if other.query_positions is not self.query_positions or other.key_positions is not self.key_positions:
            raise ValueError("encodings can be added when they were made for the same positions, got different ones")
        return replace(
            self,
            tables=self.tables + other.tables,
            rotations=self.rotations + other.rotations,
            scores=self.scores + other.scores,
            values=self.values + other.values,
        )


class Scheme(nn.Module):
    """A positional encoding: a module that owns the parameters; called with positions, it gives an `Encoding`.

    A subclass overrides the methods of the doors that it opens, and nothing else:

    - ``table(positions)`` for add,
    - ``rotation(positions)`` for rotate,
    - ``score()`` for score,
    - ``value()`` for value.

    Each returns None where the door stays closed, which is the default. There are no buffers: what follows from the
    configuration is computed from it, so nothing can go stale, be cast with the module, or be left on ``meta``. A
    scheme with parameters initialises them in ``reset_parameters()``.

    >>> scheme = RoPE(64) + ALiBi(8)            # schemes compose
    >>> encoding = scheme(Positions.arange(5))
    """

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor | None:
        """The vectors to add, (rows, tokens, dim), in ``dtype``."""
        return None

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Rotation | None:
        """The maps of queries and of keys at these positions, with what they hold in ``dtype``."""
        return None

    def score(self) -> Score | RowScore | None:
        """The term that changes the scores; it meets the positions when a backend binds it."""
        return None

    def value(self) -> Value | None:
        """The term that adds to the output; it meets the positions when a backend binds it."""
        return None

    def reset_parameters(self) -> None:
        """Draws the parameters anew. Schemes without any have nothing to do."""

    def another(self) -> Scheme:
        """One like this for another layer, with parameters of its own, freshly drawn."""
        other = copy.deepcopy(self)
        other.reset_parameters()
        return other

    def tokens(
        self, query_positions: Positions, key_positions: Positions | None = None, *, dtype: torch.dtype = torch.float32
    ) -> Encoding:
        """The token doors alone, for positions whose vectors or rotated keys are to be kept.

        ``dtype`` is that of what the encoding holds: float32, or float64 for float64 inputs, which would otherwise lose
        digits. Half precision cannot hold a phase and is a ValueError.
        """
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype must be float32 or float64, got {dtype}")
        check_type("query_positions", query_positions, Positions)
        check_type("key_positions", key_positions, Positions, None)
        key_positions = query_positions if key_positions is None else key_positions
        table = self.table(query_positions, dtype)
        rotation = self.rotation(query_positions, dtype)
        if rotation is not None and key_positions is not query_positions:
            of_keys = self.rotation(key_positions, dtype)
            assert of_keys is not None
            rotation = Rotation(rotation.query, of_keys.key)
        return Encoding(
            query_positions,
            key_positions,
            tables=() if table is None else (table,),
            rotations=() if rotation is None else (rotation,),
        )

    def pairs(self, query_positions: Positions, key_positions: Positions | None = None) -> Encoding:
        """The pair doors alone, for queries and keys whose token doors were opened before."""
        key_positions = query_positions if key_positions is None else key_positions
        score, value = self.score(), self.value()
        return Encoding(
            query_positions,
            key_positions,
            scores=() if score is None else (score,),
            values=() if value is None else (value,),
        )

    def forward(
        self, query_positions: Positions, key_positions: Positions | None = None, *, dtype: torch.dtype = torch.float32
    ) -> Encoding:
        """Binds the scheme to positions, token doors and pair doors; keys default to the queries' positions.

        ``dtype`` is as for `tokens`.
        """
        key_positions = query_positions if key_positions is None else key_positions
        token_doors = self.tokens(query_positions, key_positions, dtype=dtype)
        return token_doors + self.pairs(query_positions, key_positions)

    @property
    def doors(self) -> tuple[str, ...]:
        """The names of the doors this scheme can open."""
        opened = (
            type(self).table is not Scheme.table,
            type(self).rotation is not Scheme.rotation,
            self.score() is not None,
            self.value() is not None,
        )
        return tuple(door for door, is_open in zip(DOORS, opened, strict=True) if is_open)

    def __add__(self, other: Scheme) -> Scheme:
        """Both schemes as one; their terms are opened from left to right."""
        if not isinstance(other, Scheme):
            return NotImplemented
        return Composition(*self.parts, *other.parts)

    @property
    def parts(self) -> tuple[Scheme, ...]:
        """The schemes that this one is composed of: itself, unless it is a composition."""
        return (self,)


class Composition(Scheme):
    """Several schemes as one: ``rope + alibi``. Terms are opened in the order of the parts.

    It opens doors by asking every part for its own encoding; one rotation, score or value of its own it has not.
    """

    def __init__(self, *parts: Scheme) -> None:
        super().__init__()
        self.schemes = nn.ModuleList(parts)

    @property
    def parts(self) -> tuple[Scheme, ...]:
        """The schemes that this one is composed of."""
        return tuple(scheme for scheme in self.schemes if isinstance(scheme, Scheme))

    @property
    def doors(self) -> tuple[str, ...]:
        """The names of the doors that any of the parts can open."""
        opened = {door for part in self.parts for door in part.doors}
        return tuple(door for door in DOORS if door in opened)

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor | None:
        """The sum of the vectors that the parts add."""
        tables = [table for part in self.parts if (table := part.table(positions, dtype)) is not None]
        return reduce(torch.add, tables) if tables else None

    def tokens(
        self, query_positions: Positions, key_positions: Positions | None = None, *, dtype: torch.dtype = torch.float32
    ) -> Encoding:
        """The token doors of every part."""
        key_positions = query_positions if key_positions is None else key_positions
        encoding = Encoding(query_positions, key_positions)
        for part in self.parts:
            encoding = encoding + part.tokens(query_positions, key_positions, dtype=dtype)
        return encoding

    def pairs(self, query_positions: Positions, key_positions: Positions | None = None) -> Encoding:
        """The pair doors of every part."""
        key_positions = query_positions if key_positions is None else key_positions
        encoding = Encoding(query_positions, key_positions)
        for part in self.parts:
            encoding = encoding + part.pairs(query_positions, key_positions)
        return encoding

    def another(self) -> Composition:
        """Another of every part."""
        return Composition(*(part.another() for part in self.parts))

    def reset_parameters(self) -> None:
        """Draws the parameters of every part anew."""
        for part in self.parts:
            part.reset_parameters()
