"""Where schemes and attention meet: the four doors, and what a scheme gives for each.

Position enters attention through four doors, and a scheme opens one or more:

    add      x_i <- x_i + P[p_i]                         the input                 token door
    rotate   q_i <- T(p_i) q_i,  k_j <- T(p_j) k_j       queries and keys          token door
    score    s_ij <- f(s_ij; q_i, k_j, p_i, p_j)         the logits                pair door
    value    o_i <- o_i + sum_j a_ij w(p_i, p_j)         the output                pair door

Token doors see one position, so what they give can be cached with the token (a key is rotated when it enters the cache
and never again). Pair doors see two and live inside attention. A scheme never knows how attention is executed, and a
backend never knows which scheme it runs: they share the types of this file and of `pieces.py` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from posenc.arguments import check_type, one_or, shown, whole
from posenc.encoding.features import (
    NO_FEATURES,
    NOTHING,
    Feature,
    Features,
    Projected,
    features_of,
    features_of_both,
    wanted_by_both,
)
from posenc.encoding.pieces import Fold, Piece, Row, Value, check_sequence, reads_vectors
from posenc.encoding.pytree import register, tensors_of
from posenc.encoding.staleness import MadeWith, check_fresh, is_inference
from posenc.positions.positions import Positions
from posenc.rotation.maps import TokenMap, in_bands, one_scale

DOORS = ("add", "rotate", "score", "value")
TURNED_IN_PAIRS = (
    "the encoding turns far pairs otherwise than near ones, so no query or key has one rotation of its own: leave it "
    "to attention, and keep keys as they are (a scheme's needs_raw_keys says so)"
)


@dataclass(frozen=True)
class Band:
    """Maps of queries and of keys for pairs that are far from one another: see `Rotation`."""

    reach: int
    query: TokenMap
    key: TokenMap


@dataclass(frozen=True)
class Rotation:
    """What the rotate door does to tokens: maps of queries and of keys; where values turn too, also maps of values
    and of the output (the inverse of the values' map, at the query's position).

    A map may leave channels or heads alone, and may change the width of queries and keys: then ``scale`` is the factor
    of their inner product, where the call gives none. A scheme says it as its ``scale``, and need not say it here.

    ``bands`` turn far pairs by other maps: query i and key j by those of the last band with g(p_i) - g(p_j) >= reach,
    where g(p) = p, or floor(p/chunk) with a ``chunk``; by the rotation's own where there is none. p is the one
    coordinate of a token. Such keys cannot be kept rotated. ValueError unless reaches are whole numbers that rise from
    1 or more, and the chunk is one above 0, of bands.

    ``refuses`` says of maps that do not hold for all keys after a query, given the dtype of q and k and how many places
    ahead a key is seen, why these cannot be had, or None: the words of a ValueError by `attention`. With
    ``for_each_other`` queries and keys depend on which others are in the call, and only their product does not: then a
    piece that reads them by themselves is a ValueError.
    """

    query: TokenMap
    key: TokenMap
    value: TokenMap | None = None
    output: TokenMap | None = None
    scale: float | None = None
    bands: tuple[Band, ...] = ()
    chunk: int | None = None
    refuses: Callable[[torch.dtype, float], str | None] | None = None
    for_each_other: bool = False

    def __post_init__(self) -> None:
        check_type("bands", self.bands, tuple)
        least = 1
        for band in self.bands:
            check_type("bands", band, Band)
            least = whole("reach", band.reach, least) + 1
        if self.chunk is not None:
            whole("chunk", self.chunk)
            if not self.bands:
                raise ValueError(f"chunk is what bands count distances by, and there are no bands, got {self.chunk}")


@dataclass(frozen=True, eq=False)
class Context:
    """What a scheme may need to know beyond positions, when it is bound.

    - ``heads``: which of the scheme's heads the queries hold, where they are a shard of them; None: all. Of a scheme
      whose ``heads_of`` is "key" they are those that the keys hold.
    - ``lengths`` (rows,) or (1,): the length of each row's text, for scalings that depend on it; None: it is taken from
      the positions, row by row.
    """

    heads: range | None = None
    lengths: Tensor | None = None

    def __post_init__(self) -> None:
        check_type("heads", self.heads, range, None)
        if self.heads is not None and (self.heads.step != 1 or len(self.heads) == 0):
            raise ValueError(f"heads must be a range of step 1 with a head at least, got {self.heads}")
        if self.lengths is not None and (not isinstance(self.lengths, Tensor) or self.lengths.dim() != 1):
            raise ValueError(f"lengths must be a tensor (rows,) or None, got {shown(self.lengths)}")

    def of_heads(self, parameter: Tensor, axis: int) -> Tensor:
        """A parameter of all the scheme's heads along this axis, of those that are here. ValueError for others."""
        if self.heads is None:
            return parameter
        if self.heads.stop > parameter.size(axis):
            raise ValueError(f"heads must be within the {parameter.size(axis)} of the scheme, got {self.heads}")
        return parameter.narrow(axis, self.heads.start, len(self.heads))


@dataclass(frozen=True, eq=False)
class Encoding:
    """What a scheme gives for some positions: an immutable value, made once per forward pass, handed to every layer.

    It belongs to the parameters as they were when it was made: used after they changed it is a ValueError.
    """

    query_positions: Positions
    key_positions: Positions
    tables: tuple[Float[Tensor, "rows queries dim"], ...] = ()
    rotations: tuple[Rotation, ...] = ()
    pieces: tuple[Piece, ...] = ()
    values: tuple[Value, ...] = ()
    context: Context = Context()  # it is frozen
    query_features: Features = field(default_factory=lambda: NOTHING)
    key_features: Features = field(default_factory=lambda: NOTHING)
    wanted: Mapping[str, Feature] = field(default_factory=lambda: NO_FEATURES)  # what layers are to make
    _scale: float | None = field(default=None, repr=False)  # of rotations that are done already
    _made_with: MadeWith = field(default=(), repr=False)
    _of_inference: bool = field(default_factory=is_inference, repr=False)  # made, or changed, in inference mode
    _opened: set[str] = field(default_factory=set, repr=False)  # token doors that the model has opened by itself

    def __post_init__(self) -> None:
        check_type("query_positions", self.query_positions, Positions)
        check_type("key_positions", self.key_positions, Positions)
        for name in ("tables", "rotations", "pieces", "values"):
            check_type(name, getattr(self, name), tuple)
        banded = [rotation for rotation in self.rotations if rotation.bands]
        if len(banded) > 1:
            raise ValueError("one scheme alone can turn far pairs otherwise than near ones, got two that do")
        brought = [rotation.scale for rotation in self.rotations if rotation.scale is not None]
        if len(brought) > 1 or (brought and self._scale not in (None, brought[0])):
            both = brought if len(brought) > 1 else [self._scale, *brought]
            raise ValueError(one_scale(both))
        if banded and any(isinstance(piece, Row) for piece in self.pieces):
            raise ValueError(
                "a score term needs whole rows of scores and meets one query, but far pairs are turned otherwise than "
                "near ones: the two cannot be composed"
            )
        check_sequence(self.pieces)
        if any(rotation.for_each_other for rotation in self.rotations) and any(map(reads_vectors, self.pieces)):
            raise ValueError(
                "a score term reads queries or keys by themselves, but they are turned for one another, counted from "
                "the queries of the call, and their product alone is the same in every call: the two cannot be composed"
            )

    def __repr__(self) -> str:
        doors = ", ".join(self.doors) or "nothing"
        return f"Encoding({doors}; queries {self.query_positions}, keys {self.key_positions})"

    @property
    def doors(self) -> tuple[str, ...]:
        """The names of the doors this encoding opens."""
        terms = (self.tables, self.rotations, self.pieces, self.values)
        return tuple(name for name, term in zip(DOORS, terms, strict=True) if term)

    @property
    def pairs(self) -> Encoding:
        """The pair doors alone: for queries and keys that are rotated already, as those of a cache are. A scale that
        their rotation brings along stays. ValueError where far pairs are turned otherwise than near ones."""
        self._check_of_tokens()
        return replace(self, tables=(), rotations=(), _scale=self.scale, _opened=set())

    def in_chunks(self, size: int) -> Encoding:
        """The same encoding where each token sees its own chunk alone: see `Positions.in_chunks`."""
        queries, keys = self.query_positions.in_chunks(size), self.key_positions
        keys = queries if keys is self.query_positions else keys.in_chunks(size)
        return replace(self, query_positions=queries, key_positions=keys)

    def with_features(self, query: Features, key: Features | None = None) -> Encoding:
        """The same encoding with a layer's features of its queries, and of all keys (by default the queries' own)."""
        for name, features, positions in (("query", query, self.query_positions), ("key", key, self.key_positions)):
            for feature, x in (features or {}).items():
                if not isinstance(x, Tensor) or x.dim() < 3 or x.size(2) != positions.order.size(1):
                    tokens = positions.order.size(1)
                    raise ValueError(
                        f"feature {feature!r} of the {name} must be (batch, heads, {tokens}, ...), got {shown(x)}"
                    )
        return replace(self, query_features=query, key_features=query if key is None else key, _opened=self._opened)

    def with_projected(self, query: Projected, key: Projected | None = None) -> Encoding:
        """The same encoding with the features that its scheme wants, made of what a layer projects of its hidden state.

        ``query`` and ``key`` have a tensor for each name of ``wanted``, (batch, heads, tokens[, width]), of the queries
        and of all keys; left out, the keys are the queries' tokens. Gates become the readings of a clock that goes
        through every document in its order. Raises ValueError for one that is missing, not wanted, not floating or of
        another shape.

        >>> encoding = posenc.FoX(12)(positions).with_projected({"forgotten": gates})
        """
        if key is None and self.key_positions is not self.query_positions:
            raise ValueError("key must be given where the keys are not the queries' tokens, got None")
        made = features_of(self.wanted, query, self.query_positions, key, self.key_positions, self.context.heads)
        return self.with_features(*made)

    def add(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        """The add door: x_i + P[p_i] at the query positions, in x's dtype. Returns x itself where the door is closed.

        Raises ValueError where x is not a floating tensor (batch, tokens, dim) for the positions and vectors at hand.
        """
        check_type("x", x, Tensor)
        self.check_fresh()
        positions = self.query_positions
        rows, tokens = positions.order.shape
        dim = self.tables[0].size(2) if self.tables else None
        fits = x.dim() == 3 and x.size(1) == tokens and (dim is None or dim == x.size(2)) and one_or(rows, x.size(0))
        if not fits:
            shape = f"({'batch' if rows == 1 else rows}, {tokens}, {'dim' if dim is None else dim})"
            raise ValueError(f"x must be {shape} to add positions to, got {tuple(x.shape)}")
        if not x.is_floating_point():
            raise ValueError(f"x must be floating to add positions to, got {x.dtype}")
        if x.device != positions.device:
            raise ValueError(f"x must be on {positions.device} like the positions, got {x.device}")
        self._note("add")
        added = x
        for table in self.tables:
            added = added + table
        return added.to(x.dtype)  # rounded once, however many there are

    def rotate(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch kv_heads keys head_dim"],
    ) -> tuple[Float[Tensor, "batch heads queries width"], Float[Tensor, "batch kv_heads keys width"]]:
        """The rotate door: T(p_i) q_i at the query positions and T(p_j) k_j at the key positions.

        What is rotated here must not be rotated again: hand `attention` the encoding's ``pairs``. Raises ValueError
        where the tensors are not for these positions, and where values turn as well.
        """
        self.check(query, key)
        self._check_of_tokens()
        if any(rotation.value is not None for rotation in self.rotations):
            raise ValueError(
                "the encoding turns values too: call rotate_query, rotate_key and rotate_value, and rotate_output on "
                "the output, or leave all of it to attention"
            )
        self._note("rotate")
        return self.rotate_query(query), self.rotate_key(key)

    def rotate_query(self, query: Tensor) -> Tensor:
        """The maps of queries alone. A slice of the channels will do, if the scheme was made for its width. ValueError,
        as in `rotate_key`, where far pairs are turned otherwise."""
        self.check_fresh()
        self.check_trained(query)
        self._check_of_tokens()
        for rotation in self.rotations:
            query = rotation.query(query)
        return query

    def rotate_key(self, key: Tensor) -> Tensor:
        """The maps of keys alone, however many heads they have."""
        self.check_fresh()
        self.check_trained(key)
        self._check_of_tokens()
        for rotation in self.rotations:
            key = rotation.key(key)
        return key

    @property
    def banded(self) -> Rotation | None:
        """The rotation that turns far pairs otherwise than near ones, or None."""
        return next((rotation for rotation in self.rotations if rotation.bands), None)

    def rotate_bands(self, query: Tensor, key: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Queries and keys as near pairs have them, and as those of each band do. What several share is turned once."""
        self.check_fresh()
        maps = [[(r.query, r.key), *((band.query, band.key) for band in r.bands)] for r in self.rotations]
        return in_bands(maps, query, key)

    def _check_of_tokens(self) -> None:
        """ValueError where a token has no rotation of its own."""
        if self.banded is not None:
            raise ValueError(TURNED_IN_PAIRS)

    def rotate_value(self, value: Tensor) -> Tensor:
        """The maps of values, where a scheme turns them; ``rotate_output`` then turns the output back."""
        self.check_fresh()
        self.check_trained(value)
        for rotation in self.rotations:
            value = value if rotation.value is None else rotation.value(value)
        return value

    def rotate_output(self, out: Tensor) -> Tensor:
        """The inverse of `rotate_value`, at the queries' positions."""
        self.check_fresh()
        for rotation in reversed(self.rotations):
            out = out if rotation.output is None else rotation.output(out)
        return out

    @property
    def scale(self) -> float | None:
        """The factor of the inner product, where a map changes the width and brings a factor along; else None."""
        return next((rotation.scale for rotation in self.rotations if rotation.scale is not None), self._scale)

    def cos_sin(self) -> tuple[Tensor, Tensor]:
        """cos and sin of angles, (rows, tokens, pairs), at the query positions, for models that rotate by themselves.

        ValueError unless the encoding has one rotation of pairs of channels.
        """
        self.check_fresh()
        self._check_of_tokens()
        maps = [rotation.query for rotation in self.rotations]
        if len(maps) != 1 or not hasattr(maps[0], "cos"):
            raise ValueError(f"cos_sin needs one rotation of channel pairs, got the doors {self.doors}")
        return maps[0].cos[:, 0], maps[0].sin[:, 0]  # type: ignore[attr-defined]

    def check(self, query: Tensor, key: Tensor) -> None:
        """ValueError unless query and key (batch, heads, tokens, head_dim) have the tokens this was made for."""
        self.check_fresh()
        for name, x, positions in (("query", query, self.query_positions), ("key", key, self.key_positions)):
            if not isinstance(x, Tensor) or not x.is_floating_point():
                raise ValueError(f"{name} must be a floating tensor, got {shown(x)}")
            if x.dim() != 4:
                raise ValueError(f"{name} must be (batch, heads, tokens, head_dim), got {tuple(x.shape)}")
            if x.size(2) != positions.order.size(1):
                raise ValueError(f"{name} has {x.size(2)} tokens, but the encoding was made for {len(positions)}")
            if not one_or(positions.rows, x.size(0)):
                raise ValueError(
                    f"{name} has batch {x.size(0)}, but the encoding's positions have {positions.rows} rows"
                )
            if x.device != positions.device:
                raise ValueError(f"{name} is on {x.device}, but the encoding's positions are on {positions.device}")

    def check_fresh(self) -> None:
        """ValueError where a parameter was changed, or taken away, after the encoding was made."""
        check_fresh(self._made_with, bool(self.pieces or self.values))

    def check_trained(self, *tensors: Tensor) -> None:
        """ValueError where one of these has a gradient, which needs what the encoding holds, and PyTorch keeps nothing
        of that for a gradient, since it was made in inference mode."""
        if not self._of_inference or not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors):
            return
        folds = tuple(piece for piece in self.pieces if isinstance(piece, Fold))
        if any(x.is_inference() for x in tensors_of((self.rotations, folds))):
            raise ValueError(
                "the encoding was made under torch.inference_mode(), and what is made there cannot be trained with: "
                "call the scheme with the positions again, once in every forward pass"
            )

    def check_added(self) -> None:
        """ValueError where there are vectors to add, and `add` was not called."""
        if self.tables and "add" not in self._opened and not torch.compiler.is_compiling():
            raise ValueError(
                "the encoding adds to the input, and was not added: call x = encoding.add(x), of a ForwardPass "
                "x = step.add(x), before query, key and value are projected from x, or pass encoding.pairs where the "
                "model adds the vectors by itself"
            )

    def check_token_doors(self) -> None:
        """ValueError where `attention` would leave a token door closed, or open it twice."""
        if torch.compiler.is_compiling():
            return
        self.check_added()
        if self.rotations and "rotate" in self._opened:
            raise ValueError(
                "the encoding has rotated query and key already, and attention would rotate them again: pass "
                "encoding.pairs with tensors that are rotated, or leave encoding.rotate out"
            )

    def _note(self, door: str) -> None:
        if not torch.compiler.is_compiling():
            self._opened.add(door)

    def __add__(self, other: Encoding) -> Encoding:
        """Both encodings' terms, these first. They must be of the same positions, and of the same heads where both
        know which; what they want of a layer, or have of it, by one name must be the same."""
        if not isinstance(other, Encoding):
            return NotImplemented
        if other.query_positions is not self.query_positions or other.key_positions is not self.key_positions:
            raise ValueError("encodings can be added when they were made for the same positions, got different ones")
        heads = [each.context.heads for each in (self, other) if each.context.heads is not None]
        if len(heads) == 2 and heads[0] != heads[1]:
            raise ValueError(f"encodings can be added when they are for the same heads, got {heads[0]} and {heads[1]}")
        if self._scale is not None and other._scale not in (None, self._scale):
            raise ValueError(one_scale([self._scale, other._scale]))
        return replace(
            self,
            tables=self.tables + other.tables,
            rotations=self.rotations + other.rotations,
            pieces=self.pieces + other.pieces,
            values=self.values + other.values,
            context=replace(self.context, heads=heads[0] if heads else None),
            query_features=features_of_both(self.query_features, other.query_features),
            key_features=features_of_both(self.key_features, other.key_features),
            wanted=wanted_by_both(self.wanted, other.wanted),
            _scale=self._scale if other._scale is None else other._scale,
            _made_with=self._made_with + other._made_with,
            _of_inference=self._of_inference or other._of_inference,
            _opened=self._opened | other._opened,
        )


register(Encoding, ("tables", "rotations", "context", "query_features", "key_features"), "posenc.Encoding")
