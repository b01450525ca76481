"""`Encoding`: the interface between schemes and attention, with its four doors.

Position enters attention through four places, called doors. A scheme uses one or more:

    add      x_i <- x_i + P[p_i]                         the input                 token door
    rotate   q_i <- T(p_i) q_i,  k_j <- T(p_j) k_j       queries and keys          token door
    score    s_ij <- f(s_ij; q_i, k_j, p_i, p_j)         the logits                pair door
    value    o_i <- o_i + sum_j a_ij w(p_i, p_j)         the output                pair door

Token doors depend on one position, so their results can be cached with the token (a key is rotated once, when it enters
the cache). Pair doors depend on two positions and act inside attention. Schemes do not know how attention is executed,
and backends do not know which scheme they run: they share only the types of this file and of `terms.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from posenc import compat
from posenc.arguments import check_type, missing_axis, number, one_or, shown, swapped_axes
from posenc.encoding.context import (
    NO_FEATURES,
    NOTHING,
    WHOLE,
    Feature,
    Features,
    Projected,
    features_of,
    features_of_both,
    wanted_by_both,
)
from posenc.encoding.context import Context as Context
from posenc.encoding.rotation import Rotation, check_unrotated, mark, mark_of
from posenc.encoding.staleness import (
    MadeWith,
    check_fresh,
    check_values,
    closed_over,
    is_inference,
    register,
    tensors_of,
)
from posenc.encoding.terms import ScoreTerm, Value, check_sequence
from posenc.positions.positions import PADDING, Positions
from posenc.rotation.norms import norm_rotate, normed, sides_of
from posenc.rotation.phases import kind_of, map_bands, several_scales

DOORS = ("add", "rotate", "score", "value")
ROTATED_IN_PAIRS = (
    "the encoding rotates distant pairs differently, so queries and keys have no single rotation: pass them unrotated "
    "to attention, and cache unrotated keys (see Scheme.needs_raw_keys)"
)


@dataclass(frozen=True, eq=False)
class Encoding:
    """A scheme bound to positions: an immutable value, made once per forward pass and passed to every layer.

    It has the values of the scheme's parameters, so it never changes; gradients reach the parameters. It must not be
    used after they change, which raises ValueError wherever PyTorch counts the change. After any other (through
    ``parameter.data`` or NumPy), `attention` on the CPU raises ValueError for what rotations and score terms read;
    elsewhere, and in a compiled graph, the encoding goes on with the values that it was made with.
    """

    query_positions: Positions
    key_positions: Positions
    tables: tuple[Float[Tensor, "rows queries dim"], ...] = ()
    rotations: tuple[Rotation, ...] = ()
    score_terms: tuple[ScoreTerm, ...] = ()
    values: tuple[Value, ...] = ()
    context: Context = WHOLE
    query_features: Features = field(default_factory=lambda: NOTHING)
    key_features: Features = field(default_factory=lambda: NOTHING)
    wanted: Mapping[str, Feature] = field(default_factory=lambda: NO_FEATURES)  # what layers must project
    looks_back: tuple[tuple[str, str], ...] = ()  # each scheme's name and `Scheme.looks_back`, where it has one
    _scale: float | None = field(default=None, repr=False)  # of rotations that were already applied
    _made_with: MadeWith = field(default=(), repr=False)
    _is_counted: bool = field(default=False, repr=False)  # whether these are all that its terms read
    _of_inference: bool = field(default_factory=is_inference, repr=False)  # made in inference mode
    _opened: set[str] = field(default_factory=set, repr=False)  # token doors that the model opened itself
    plans: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)  # `posenc.backends.plan`'s

    def __post_init__(self) -> None:
        check_type("query_positions", self.query_positions, Positions)
        check_type("key_positions", self.key_positions, Positions)
        for name in ("tables", "rotations", "score_terms", "values"):
            check_type(name, getattr(self, name), tuple)
        banded = [rotation for rotation in self.rotations if rotation.bands]
        if len(banded) > 1:
            raise ValueError("only one scheme can rotate distant pairs differently, got two that do")
        brought = [rotation.scale for rotation in self.rotations if rotation.scale is not None]
        if len(brought) > 1 or (brought and self._scale not in (None, brought[0])):
            raise ValueError(several_scales(brought if len(brought) > 1 else [self._scale, *brought]))
        if banded and any(term.reads_rows for term in self.score_terms):
            raise ValueError(
                "a score term that needs whole rows of scores cannot be composed with a scheme that rotates distant "
                "pairs differently"
            )
        check_sequence(self.score_terms)
        if any(rotation.for_each_other for rotation in self.rotations) and any(
            term.reads_vectors for term in self.score_terms
        ):
            raise ValueError(
                "a score term that reads queries or keys separately cannot be composed with a rotation relative to the "
                "queries of the call, which preserves only their product"
            )

    def __repr__(self) -> str:
        doors = ", ".join(self.doors) or "nothing"
        return f"Encoding({doors}; queries {self.query_positions}, keys {self.key_positions})"

    @property
    def doors(self) -> tuple[str, ...]:
        """The names of the doors that this encoding opens."""
        terms = zip(DOORS, (self.tables, self.rotations, self.score_terms, self.values), strict=True)
        return tuple(name for name, term in terms if term)

    @property
    def pairs(self) -> Encoding:
        """The pair doors only, for queries and keys that are already rotated, such as cached keys. It keeps the scale
        of their rotation. Raises ValueError for an encoding that rotates distant pairs differently."""
        self._check_of_tokens()
        return replace(self, tables=(), rotations=(), _scale=self.scale, _opened=set())

    def in_chunks(self, size: int) -> Encoding:
        """The same encoding where tokens attend only within their own chunk: see `Positions.in_chunks`."""
        queries, keys = self.query_positions.in_chunks(size), self.key_positions
        keys = queries if keys is self.query_positions else keys.in_chunks(size)
        return replace(self, query_positions=queries, key_positions=keys)

    def with_features(self, query: Features, key: Features | None = None) -> Encoding:
        """The same encoding with a layer's features of the queries and of all keys (default: those of the queries).
        Those of padding are replaced by zeros, so that they have no effect."""
        for side, features, positions in (("query", query, self.query_positions), ("key", key, self.key_positions)):
            n = positions.order.size(1)
            for name, x in (features or {}).items():
                if not isinstance(x, Tensor) or x.dim() < 3 or x.size(2) != n:
                    raise ValueError(f"feature {name!r} of the {side} must be (batch, heads, {n}, ...), got {shown(x)}")
        query = _without_padding(query, self.query_positions)
        key = query if key is None else _without_padding(key, self.key_positions)
        rotations = tuple(rotation.with_features(query, key) for rotation in self.rotations)
        made = replace(self, rotations=rotations, query_features=query, key_features=key, _opened=self._opened)
        object.__setattr__(made, "plans", self.plans)
        return made

    def with_projected(self, query: Projected, key: Projected | None = None) -> Encoding:
        """The same encoding with its scheme's features, computed from a layer's projections of its hidden state.

        ``query`` and ``key`` have a tensor (batch, heads, tokens[, width]) for each name in ``wanted``, of the queries
        and of all keys; ``key`` defaults to ``query``. Gates are summed up along the order of every document. Raises
        ValueError for a projection that is missing, unexpected, not floating or of the wrong shape.

        >>> encoding = posenc.FoX(12)(positions).with_projected({"forgotten": gates})
        """
        if key is None and self.key_positions is not self.query_positions:
            raise ValueError("key must be given where keys and queries are different tokens, got None")
        made = features_of(self.wanted, query, self.query_positions, key, self.key_positions, self.context._heads_of)
        return self.with_features(*made)

    def add(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        """The add door: x_i + P[p_i] at the query positions, in x's dtype. Returns x itself if nothing is added.

        Raises ValueError unless x is a floating tensor (batch, tokens, dim) that matches the positions and vectors, and
        for an x that this encoding has returned.
        """
        return self._add(x)

    def _add(self, x: Tensor, layer: int | None = None) -> Tensor:
        """`add`, in one of several layers that may hand on their input unchanged."""
        check_type("x", x, Tensor)
        self.check_fresh()
        positions = self.query_positions
        rows, tokens = positions.order.shape
        dim = self.tables[0].size(2) if self.tables else None
        if len(widths := {table.size(2) for table in self.tables}) > 1:
            raise ValueError(f"vectors that are added to one input must have one dim, got {sorted(widths)}")
        fits = x.dim() == 3 and x.size(1) == tokens and (dim is None or dim == x.size(2)) and one_or(rows, x.size(0))
        if not fits:
            shape = f"({'batch' if rows == 1 else rows}, {tokens}, {'dim' if dim is None else dim})"
            raise ValueError(f"x must be {shape} to add positions to, got {tuple(x.shape)}")
        if not x.is_floating_point():
            raise ValueError(f"x must be floating to add positions to, got {x.dtype}")
        if x.device != positions.device:
            raise ValueError(f"x must be on {positions.device} like the positions, got {x.device}")
        self.check_trained(x)
        self._note("add")
        if not self.tables:
            return x
        before = mark_of(x) or ()
        if any(table is other and layer == where for table in self.tables for other, where in before):
            raise ValueError(
                "x has these vectors already, and encoding.add would add them again: call it once, on the input, or "
                "pass x.clone() if they are to be added twice"
            )
        added = sum(self.tables, start=x)
        return mark(added.to(x.dtype), (*before, *((table, layer) for table in self.tables)))  # round only once

    def rotate(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch kv_heads keys head_dim"] | None = None,
    ) -> tuple[Float[Tensor, "batch heads queries width"], Float[Tensor, "batch kv_heads keys width"]]:
        """The rotate door: T(p_i) q_i at the query positions and T(p_j) k_j at the key positions.

        Then pass ``encoding.pairs`` to `attention`, so that nothing is rotated twice. Raises ValueError where the
        tensors do not match the positions, and where the encoding rotates values too.
        """
        if key is None:
            raise ValueError("key must be given with query, got None: for one of them call rotate_query or rotate_key")
        self._check_rotated(query, key)
        rotated = self.rotate_query(query), self.rotate_key(key)
        self._note("rotate")
        return rotated

    def _check_rotated(self, query: Tensor, key: Tensor) -> None:
        self.check(query, key)
        self._check_of_tokens()
        if any(rotation.value is not None for rotation in self.rotations):
            raise ValueError(
                "the encoding rotates values too: call rotate_query, rotate_key and rotate_value, and rotate_output on "
                "the output, or leave all rotations to attention"
            )

    def norm_rotate(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch kv_heads keys head_dim"],
        query_weight: Float[Tensor, " head_dim"] | None = None,
        key_weight: Float[Tensor, " head_dim"] | None = None,
        *,
        eps: float = 1e-6,
        key_out: Float[Tensor, "batch kv_heads keys width"] | None = None,
    ) -> tuple[Float[Tensor, "batch heads queries width"], Float[Tensor, "batch kv_heads keys width"]]:
        """The rotate door after an RMS norm of each head: T(p) (w x / sqrt(mean(x^2) + eps)), the mean over a head's
        channels. Then pass ``encoding.pairs`` to `attention`, as after `rotate`.

        It is computed in float32 or wider and rounded once to the dtype of x. A model that also rounds after the norm,
        or after the weight, differs by these roundings. On CUDA a rotation of pairs of channels takes one launch
        forward and one backward, both deterministic. Other rotations and other devices take PyTorch's operations.

        - ``query_weight``, ``key_weight``: (head_dim,), the same for all heads; None: 1. Where a model's weight w is
          used as 1 + w, as in Gemma, pass 1 + w.
        - ``key_out``: a tensor of the result's shape and dtype, such as a slice of a cache. The keys are written to it,
          and it is returned for them. Only where no gradients are recorded.

        Errors: those of `rotate`, and ValueError for a weight or ``key_out`` that does not match, and for an ``eps``
        below 0.
        Source: Zhang and Sennrich 2019, arXiv 1910.07467, equation 4 (RMS norm); Henry et al. 2020, arXiv 2010.04245
        (norms of queries and keys).
        """
        number("eps", eps, least=0)
        self._check_rotated(query, key)
        weights = {"query_weight": query_weight, "key_weight": key_weight}
        for (name, weight), x in zip(weights.items(), (query, key), strict=True):
            if weight is not None and (not isinstance(weight, Tensor) or weight.shape != x.shape[-1:]):
                raise ValueError(f"{name} must be a tensor of shape ({x.size(-1)},), got {shown(weight)}")
        if key_out is not None and torch.is_grad_enabled():
            raise ValueError("key_out needs torch.no_grad(), since what is written to it has no gradient")
        sides = None
        if len(self.rotations) == 1 and (key_out is None or key_out.stride(-1) == 1):
            maps = self.rotations[0].query, self.rotations[0].key
            sides = sides_of((query, key), (query_weight, key_weight), maps)
        if sides is None:
            wide = self.rotate_query(normed(query, query_weight, eps)), self.rotate_key(normed(key, key_weight, eps))
            known = [mark_of(x) for x in wide]
            rotated = wide[0].to(query.dtype), wide[1].to(key.dtype)
            _check_out(key_out, rotated[1])
            if key_out is not None:
                rotated = rotated[0], key_out.copy_(rotated[1])
        else:
            self.check_fresh()
            self.check_trained(query, key)
            _check_out(key_out, key)
            known = [frozenset({(name, kind_of(maps[n]))}) for n, name in enumerate(("query", "key"))]
            rotated = norm_rotate(sides, eps, (None, key_out))
        for x, kinds in zip(rotated, known, strict=True):
            mark(x, kinds)
        self._note("rotate")
        return rotated

    def rotate_query(self, query: Tensor) -> Tensor:
        """Rotates queries only. A slice of the channels is allowed if the scheme was made for its width. Raises
        ValueError, like `rotate_key`, for an encoding that rotates distant pairs differently."""
        return self._rotated("query", query)

    def rotate_key(self, key: Tensor) -> Tensor:
        """Rotates keys only, with any number of heads."""
        return self._rotated("key", key)

    def _rotated(self, name: str, x: Tensor) -> Tensor:
        """Rotated queries or keys, marked as such with the kinds of the maps that have changed them."""
        self.check_fresh()
        self.check_trained(x)
        self._check_of_tokens()
        given, x = x, self._clear_padding(x, self.query_positions if name == "query" else self.key_positions)
        if x is not given and (known := mark_of(given)):
            mark(x, known)
        for rotation in self.rotations:
            token_map, before = getattr(rotation, name), x
            x = token_map(before)
            if x is not before and not torch.compiler.is_compiling():
                mark(x, (mark_of(before) or frozenset()) | {(name, kind_of(token_map))})
        return x

    def _clear_padding(self, x: Tensor, positions: Positions) -> Tensor:
        """Queries, keys or values with zeros for padding where a rotation learns: its gradient would be a product of
        what padding holds and zero."""
        if not torch.is_grad_enabled() or not any(each.parameter.requires_grad for each in self._made_with):
            return x
        return _without_padding({"x": x}, positions)["x"]

    @property
    def banded(self) -> Rotation | None:
        """The rotation that rotates distant pairs differently, or None."""
        return next((rotation for rotation in self.rotations if rotation.bands), None)

    def rotate_bands(self, query: Tensor, key: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Queries and keys rotated for near pairs, and for each band. Maps that several of them share run once."""
        self.check_fresh()
        maps = [[(r.query, r.key), *((band.query, band.key) for band in r.bands)] for r in self.rotations]
        return map_bands(maps, query, key)

    def _check_of_tokens(self) -> None:
        """ValueError where a token has no single rotation."""
        if self.banded is not None:
            raise ValueError(ROTATED_IN_PAIRS)

    def rotate_value(self, value: Tensor) -> Tensor:
        """Rotates values, where a scheme does so; ``rotate_output`` then inverts it on the output."""
        self.check_fresh()
        self.check_trained(value)
        maps = [rotation.value for rotation in self.rotations if rotation.value is not None]
        value = self._clear_padding(value, self.key_positions) if maps else value
        for token_map in maps:
            value = token_map(value)
        return value

    def rotate_output(self, out: Tensor) -> Tensor:
        """The inverse of `rotate_value`, at the queries' positions."""
        self.check_fresh()
        for rotation in reversed(self.rotations):
            out = out if rotation.output is None else rotation.output(out)
        return out

    @property
    def scale(self) -> float | None:
        """The softmax scale that a rotation requires, or None."""
        scales = (rotation.scale for rotation in self.rotations if rotation.scale is not None)
        return next(scales, self._scale)

    def cos_sin(self) -> tuple[Tensor, Tensor]:
        """cos and sin of the angles, (rows, tokens, pairs), at the query positions, for models with their own rotation.

        Raises ValueError unless the encoding has exactly one rotation of channel pairs, the same for all heads.
        """
        self.check_fresh()
        self._check_of_tokens()
        maps = [rotation.query for rotation in self.rotations]
        if len(maps) != 1 or not hasattr(maps[0], "cos") or maps[0].cos.size(1) != 1:
            raise ValueError(f"cos_sin needs one rotation of channel pairs for all heads, got the doors {self.doors}")
        return maps[0].cos[:, 0], maps[0].sin[:, 0]  # type: ignore[attr-defined]

    def check(self, query: Tensor, key: Tensor) -> None:
        """ValueError unless query and key, (batch, heads, tokens, head_dim), match the positions, and for parameters
        that have changed since the encoding was made."""
        self.check_fresh()
        check_values(self._made_with)
        for name, x, positions in (("query", query, self.query_positions), ("key", key, self.key_positions)):
            if not isinstance(x, Tensor) or not x.is_floating_point():
                raise ValueError(f"{name} must be a floating tensor, got {shown(x)}")
            if x.dim() != 4:
                given = f"{tuple(x.shape)}{missing_axis(name, x)}"
                raise ValueError(f"{name} must be (batch, heads, tokens, head_dim), got {given}")
            if x.size(2) != positions.order.size(1):
                made_for = f"{len(positions)}{swapped_axes(name, x, len(positions))}"
                raise ValueError(f"{name} has {x.size(2)} tokens, but the encoding was made for {made_for}")
            if not one_or(positions.rows, x.size(0)):
                rows = f"the encoding's positions have {positions.rows} rows"
                raise ValueError(f"{name} has batch {x.size(0)}, but {rows}")
            if x.device != positions.device:
                raise ValueError(f"{name} is on {x.device}, but the encoding's positions are on {positions.device}")

    def _check_usable(self, query: Tensor, key: Tensor) -> None:
        """ValueError for what may have changed since the same encoding was checked with tensors of the same shapes."""
        if self._made_with:
            self.check_fresh()
            check_values(self._made_with)
        self.check_token_doors(query, key)

    def check_fresh(self) -> None:
        """ValueError if a parameter changed, or what its gradient needs was freed, after the encoding was made."""
        check_fresh(self._made_with)
        if self._made_with and not torch.compiler.is_compiling():
            self._check_checkpointed()

    def _learns(self) -> tuple[bool, ...] | None:
        """Of each parameter that it was made with, whether it has a gradient; None if its terms may read others."""
        is_known = self._is_counted or len(self.score_terms) + len(self.values) == 0
        return tuple(each.parameter.requires_grad for each in self._made_with) if is_known else None

    def check_trained(self, *tensors: Tensor) -> None:
        """ValueError if one of the tensors requires a gradient and the encoding was made in inference mode: autograd
        cannot save its tensors, and would take learned vectors for constants. Also if one is float64, and the vectors
        and rotations are not."""
        if any(x.dtype == torch.float64 for x in tensors):
            made = tensors_of((self.tables, self.rotations))
            made += [] if torch.compiler.is_compiling() else closed_over(self.rotations)  # a graph has no closures
        else:
            made = []
        if any(x.dtype == torch.float32 for x in made):
            raise ValueError(
                "the encoding was made in float32, which is too coarse for float64 tensors: make it with "
                "scheme(positions, dtype=torch.float64)"
            )
        if not self._of_inference or not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors):
            return
        learned = self.tables if any(each.parameter.requires_grad for each in self._made_with) else ()
        if any(x.is_inference() for x in (*learned, *self.tensors())):
            raise ValueError(
                "the encoding was made under torch.inference_mode() and cannot be used for training: call the scheme "
                "with the positions again, once in every forward pass"
            )

    def tensors(self) -> list[Tensor]:
        """The tensors of its rotations and terms, and those that their functions close over."""
        of_score_terms = tuple(term.tensors for term in self.score_terms)
        return [
            *tensors_of((self.rotations, of_score_terms)),
            *closed_over((*self.rotations, *self.score_terms, *self.values)),
        ]

    def _check_checkpointed(self) -> None:
        """ValueError in a layer that reentrant checkpointing computes again with numbers made before it of parameters,
        if the backward pass of an earlier layer has freed what their gradient needs."""
        if compat.is_in_reentrant_checkpoint() and any(map(compat.has_freed_graph, (*self.tables, *self.tensors()))):
            raise ValueError(
                "the encoding was made of parameters before reentrant activation checkpointing, so only one layer can "
                "compute its gradient: pass use_reentrant=False to torch.utils.checkpoint.checkpoint, or call the "
                "scheme with the positions inside each checkpointed layer"
            )

    def check_added(self) -> None:
        """ValueError if the encoding adds to the input and `add` was not called."""
        if self.tables and "add" not in self._opened and not torch.compiler.is_compiling():
            raise ValueError(
                "the encoding adds to the input, and was not added: call x = encoding.add(x), or x = step.add(x) with "
                "a ForwardPass, before query, key and value are projected from x, or pass encoding.pairs if the model "
                "adds the vectors itself"
            )

    def check_token_doors(self, query: Tensor, key: Tensor) -> None:
        """ValueError if the model forgot to add, or rotated query or key itself."""
        if torch.compiler.is_compiling():
            return
        self.check_added()
        if self.rotations and "rotate" in self._opened:
            raise ValueError(
                "the encoding has rotated query and key already, and attention would rotate them again: pass "
                "encoding.pairs with the rotated tensors, or do not call encoding.rotate"
            )
        check_unrotated(self.rotations, query, key)

    def _note(self, door: str) -> None:
        if not torch.compiler.is_compiling():
            self._opened.add(door)

    def __copy__(self) -> Encoding:
        return self  # an immutable value

    def __deepcopy__(self, memo: dict[int, Any]) -> Encoding:
        """The encoding itself. Raises ValueError where its scheme is copied too, and it reads the parameters."""
        if any(id(each.parameter) in memo for each in self._made_with):
            raise ValueError(
                "the encoding would be copied with its scheme, and still read the parameters of the original: keep no "
                "encoding in a model, and call the scheme with the positions in every forward pass"
            )
        return self

    def __getstate__(self) -> dict[str, Any]:
        """For pickle. Raises TypeError for an encoding that reads its scheme or the scheme's parameters."""
        if self._made_with or self.score_terms or self.values:
            raise TypeError(
                f"an encoding that opens {', '.join(self.doors)} refers to its scheme and cannot be pickled: pickle "
                "the scheme and the positions, and call the scheme with them"
            )
        features = {name: dict(getattr(self, name)) for name in ("query_features", "key_features", "wanted")}
        return vars(self) | features | {"plans": {}}

    def __add__(self, other: Encoding) -> Encoding:
        """The terms of both encodings, these first. Raises ValueError for different positions or heads, or for two
        different features of one name."""
        if callable(other) and hasattr(other, "doors"):
            raise TypeError("a scheme cannot be added to an encoding: add the schemes, and bind their sum to positions")
        if not isinstance(other, Encoding):
            return NotImplemented
        if other.query_positions is not self.query_positions or other.key_positions is not self.key_positions:
            raise ValueError("encodings must be of the same positions to be added, got different ones")
        heads = [each.context.heads for each in (self, other) if each.context.heads is not None]
        if len(heads) == 2 and heads[0] != heads[1]:
            raise ValueError(f"encodings must be of the same heads to be added, got {heads[0]} and {heads[1]}")
        if self._scale is not None and other._scale not in (None, self._scale):
            raise ValueError(several_scales([self._scale, other._scale]))
        return replace(
            self,
            tables=self.tables + other.tables,
            rotations=self.rotations + other.rotations,
            score_terms=self.score_terms + other.score_terms,
            values=self.values + other.values,
            context=replace(self.context, heads=heads[0] if heads else None),
            query_features=features_of_both(self.query_features, other.query_features),
            key_features=features_of_both(self.key_features, other.key_features),
            wanted=wanted_by_both(self.wanted, other.wanted),
            looks_back=self.looks_back + other.looks_back,
            _scale=self._scale if other._scale is None else other._scale,
            _made_with=self._made_with + other._made_with,
            _is_counted=self._is_counted and other._is_counted,
            _of_inference=self._of_inference or other._of_inference,
            _opened=self._opened | other._opened,
        )


def _check_out(out: Tensor | None, like: Tensor) -> None:
    """ValueError unless ``out`` has the shape, dtype and device of ``like``."""
    if out is not None and (out.shape, out.dtype, out.device) != (like.shape, like.dtype, like.device):
        raise ValueError(f"key_out must be {shown(like)} on {like.device}, got {shown(out)} on {out.device}")


def _without_padding(features: Features, positions: Positions) -> Features:
    """The features (batch, heads, tokens[, width]) with zeros for padding; themselves if there is none."""
    rows = positions.layout.rows
    if rows is not None and all(sum(s.stop - s.start for s in row) == positions.layout.tokens for row in rows):
        return features
    unseen = (positions.document == PADDING)[:, None]
    return {n: x.masked_fill(unseen.reshape(*unseen.shape, *(1,) * (x.dim() - 3)), 0.0) for n, x in features.items()}


register(Encoding, ("tables", "rotations", "context", "query_features", "key_features"), "posenc.Encoding")
