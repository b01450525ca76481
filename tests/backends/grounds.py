"""What every backend is tried on: all schemes of the catalog and some beside it, positions and calls of every kind, and
which backend is to refuse what."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import ALiBi, DistanceAware, Positions, Relative1D, Relative2D, RoPE, Scheme, Shaw
from posenc.backends import by_distance, chunked, fused, near_far
from posenc.backends.attention import BACKENDS
from posenc.schemes.catalog import CATALOG, Entry, Shape
from posenc.schemes.t5 import T5
from tests.awkward import TrialCoPE

HEADS, KV_HEADS = 12, 4
NAMES = tuple(backend.name for backend in BACKENDS)
SINGLE_ONLY = tuple(name for name in ("flex",) if name in NAMES)
"""The backends without double precision: they are held to the reference in their own tests."""

FAST = tuple(name for name in NAMES if name != "reference" and name not in SINGLE_ONLY)
"""The backends that are compared with the reference."""

LINEAR = tuple(name for name in ("near_far", "chunked") if name in NAMES)
"""The backends that claim memory linear in the tokens."""


# --- schemes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A scheme for a model of some shape, and the positions that it takes."""

    build: Callable[[Shape], Scheme]
    fractional: bool = True
    axes: int = 1
    needs_segments: bool = False

    def at(self, positions: Positions) -> Positions:
        """The same tokens, with the coordinates and segments that the scheme asks for: 16 places make a row of the
        grid."""
        if self.axes == 2:
            c = positions.coords
            coords = torch.stack((c.div(16, rounding_mode="floor"), c % 16), -1)
            positions = Positions(coords, order=positions.order, document=positions.document)
        if self.needs_segments:
            positions = positions.with_segment(positions.order % 2)
        return positions


def _grid(shape: Shape) -> tuple[int, int]:
    return shape.max_positions // 16 + 1, 16


def _of_entry(entry: Entry) -> Kind:
    fractional = "fractional" in entry.laws
    if entry.axes == "two":
        return Kind(lambda shape: entry.build(replace(shape, grid=_grid(shape))), fractional, axes=2)
    return Kind(entry.build, fractional, needs_segments=entry.needs_segments)


KINDS: dict[str, Kind] = {entry.name: _of_entry(entry) for entry in CATALOG} | {
    "alibi bidirectional": Kind(lambda shape: ALiBi(shape.num_heads, "bidirectional")),
    "alibi directed": Kind(lambda shape: ALiBi(shape.num_heads, "directed")),
    "t5": Kind(lambda shape: T5(shape.num_heads), fractional=False),
    "t5 bidirectional": Kind(lambda shape: T5(shape.num_heads, 12, 40, bidirectional=True), fractional=False),
    "shaw keys": Kind(lambda shape: Shaw(shape.head_dim, 5, values=False), fractional=False),
    "shaw values": Kind(lambda shape: Shaw(shape.head_dim, 5, keys=False), fractional=False),
    "shaw per head": Kind(lambda shape: Shaw(shape.head_dim, 5, num_heads=shape.num_heads), fractional=False),
    "shaw keys per head": Kind(
        lambda shape: Shaw(shape.head_dim, 5, values=False, num_heads=shape.num_heads), fractional=False
    ),
    "relative_1d per head": Kind(
        lambda shape: Relative1D(shape.max_positions, shape.head_dim, shape.num_heads), fractional=False
    ),
    "relative_2d per head": Kind(
        lambda shape: Relative2D(_grid(shape), shape.head_dim, shape.num_heads), fractional=False, axes=2
    ),
    "cope": Kind(lambda shape: TrialCoPE(6, shape.head_dim)),
    "rope+alibi": Kind(lambda shape: RoPE(shape.head_dim) + ALiBi(shape.num_heads)),
    "shaw+alibi": Kind(lambda shape: Shaw(shape.head_dim, 5) + ALiBi(shape.num_heads), fractional=False),
    "shaw keys+t5": Kind(
        lambda shape: Shaw(shape.head_dim, 5, values=False) + T5(shape.num_heads, 8, 20), fractional=False
    ),
    "distance_aware+alibi": Kind(lambda shape: DistanceAware(shape.num_heads) + ALiBi(shape.num_heads)),
    "alibi+distance_aware": Kind(lambda shape: ALiBi(shape.num_heads) + DistanceAware(shape.num_heads)),
}


def built(name: str, heads: int = HEADS, tokens: int = 9, dtype: torch.dtype = torch.float64) -> Scheme:
    """The scheme for that many heads of an odd width, or of an even one where channels turn in pairs, and for
    coordinates up to three times the number of tokens. Parameters are of order 1, so that none hides behind its small
    beginning."""
    scheme = KINDS[name].build(shape_of(name, heads, tokens)).to(dtype)
    for parameter in scheme.parameters():
        torch.nn.init.normal_(parameter)
    return scheme


def shape_of(name: str, heads: int = HEADS, tokens: int = 9) -> Shape:
    """The sizes that `built` builds for."""
    head_dim = 6 if "rope" in name else 7
    return Shape(heads * head_dim, heads, head_dim, max_positions=3 * tokens + 32)


# --- positions and calls ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where queries and keys of a call stand, for some number of tokens, and how attention is asked."""

    positions: Callable[[int], tuple[Positions, Positions]]
    kv_heads: int = KV_HEADS
    how: Callable[[int, int], dict[str, Any]] = field(default=lambda queries, keys: {})
    value_dim: int | None = None  # as wide as a head
    fractional: bool = False
    gradients: bool = True


def same(positions: Positions) -> tuple[Positions, Positions]:
    """For queries and for keys."""
    return positions, positions


def padded(kinds: str, tokens: int) -> Positions:
    """A row for each letter: padding to the left, to the right, inside, or all of it."""
    mask = torch.ones(len(kinds), tokens, dtype=torch.bool)
    for row, kind in zip(mask, kinds, strict=True):
        if kind == "l":
            row[: tokens // 3] = False
        elif kind == "r":
            row[tokens - tokens // 3 :] = False
        elif kind == "i":
            row[1::4] = False
            row[tokens // 2 : tokens - tokens // 4] = False
        else:
            row[:] = False
    return Positions.padded(mask)


def packed(tokens: int) -> Positions:
    """Three documents in one row, two and padding in the other."""
    third, half = tokens // 3, tokens // 2
    return Positions.packed([[third, tokens - third - tokens // 4, tokens // 4], [half, tokens - half - tokens // 8]])


def shuffled(tokens: int) -> Tensor:
    """Their indices in an order that has nothing to do with them."""
    return torch.randperm(tokens, generator=torch.Generator().manual_seed(tokens))


def mask_of(queries: int, keys: int) -> Tensor:
    """A bool mask for two rows that leaves the last query of the second without a key."""
    mask = torch.rand(2, 1, queries, keys, generator=torch.Generator().manual_seed(5)) > 0.3
    mask[1, :, -1] = False
    return mask


def bias_of(queries: int, keys: int) -> Tensor:
    """A float mask of every head, some of it -inf, with a gradient of its own."""
    bias = torch.randn(1, HEADS, queries, keys, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return bias.masked_fill(~mask_of(queries, keys)[:1], -torch.inf).requires_grad_()


def _last(positions: Positions, m: int) -> tuple[Positions, Positions]:
    return positions[len(positions) - m :], positions


PLACES: dict[str, Place] = {
    "plain": Place(lambda n: same(Positions.arange(n))),
    "not grouped": Place(lambda n: same(Positions.arange(n)), kv_heads=HEADS),
    "one key head": Place(lambda n: same(Positions.arange(n)), kv_heads=1),
    "shifted": Place(lambda n: same(Positions.arange(n, start=11))),
    "packed": Place(lambda n: same(packed(n))),
    "padded left and right": Place(lambda n: same(padded("lr", n))),
    "padded inside and wholly": Place(lambda n: same(padded("ia", n))),
    "cross": Place(lambda n: (Positions.arange(n, start=5), Positions.arange(n // 2 + 3, start=2))),
    "cross, some before every key": Place(
        lambda n: (Positions.arange(n), Positions.arange(n // 2 + 3, start=n // 2 + 1))
    ),
    "cross, packed": Place(lambda n: (packed(n), Positions.packed([[n // 4, n // 2], [n // 2, n // 4 + 1]]))),
    "the last of the keys": Place(lambda n: _last(Positions.arange(n), max(n // 3, 1))),
    "decoding": Place(lambda n: _last(Positions.arange(n), 1), kv_heads=1),
    "decoding, padded": Place(lambda n: _last(padded("li", n), 1)),
    "permuted": Place(lambda n: same(Positions.arange(n)[shuffled(n)])),
    "unrelated to order": Place(lambda n: same(Positions(shuffled(n)[None]))),
    "steps": Place(lambda n: same(Positions(torch.arange(n)[None] // 4 * 9))),
    "fractional": Place(
        lambda n: same(Positions(torch.linspace(0.3, 0.9 * n, n, dtype=torch.float64)[None])), fractional=True
    ),
    "bool mask": Place(lambda n: same(Positions.arange(n)), how=lambda m, n: {"attn_mask": mask_of(m, n)}),
    "float mask": Place(lambda n: same(Positions.arange(n)), how=lambda m, n: {"attn_mask": bias_of(m, n)}),
    "scaled": Place(lambda n: same(Positions.arange(n)), how=lambda m, n: {"scale": 0.31}),
    "narrow values": Place(lambda n: same(Positions.arange(n)), value_dim=5),
    "log-sum-exp": Place(lambda n: same(Positions.arange(n)), how=lambda m, n: {"return_lse": True}),
    "log-sum-exp, padded": Place(lambda n: same(padded("il", n)), how=lambda m, n: {"return_lse": True}),
    "log-sum-exp alone": Place(
        lambda n: same(Positions.arange(n)), how=lambda m, n: {"return_lse": True}, gradients=False
    ),
}


def fits(name: str, place: str) -> bool:
    """Whether the scheme has an encoding for coordinates of that kind, and for values of that width."""
    where = PLACES[place]
    return (KINDS[name].fractional or not where.fractional) and (name not in VALUES or where.value_dim is None)


@dataclass(frozen=True, eq=False)
class Case:
    """A call of attention: tensors, scheme, positions, and what else it is asked."""

    kind: Kind
    scheme: Scheme
    query: Tensor
    key: Tensor
    value: Tensor
    query_positions: Positions
    key_positions: Positions
    how: dict[str, Any]

    @property
    def leaves(self) -> dict[str, Tensor]:
        """Everything that has a gradient."""
        tensors = {"query": self.query, "key": self.key, "value": self.value}
        mask = self.how.get("attn_mask")
        if mask is not None and mask.requires_grad:
            tensors["attn_mask"] = mask
        return {name: x for name, x in (tensors | dict(self.scheme.named_parameters())).items() if x.requires_grad}

    def attend(self, backend: str, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """The output, and the log-sum-exp where it is asked for. What the scheme adds to the input is added to the
        query, the heads laid side by side."""
        out = attend(self.scheme, self.query_positions, self.key_positions, query, key, value, backend, **self.how)
        return out if isinstance(out, tuple) else (out,)

    def run(self, backend: str, wanted: tuple[str, ...] | None = None) -> dict[str, Tensor]:
        """The output and the gradient of a fixed random projection of it, of everything that has one."""
        if wanted == ():
            with torch.no_grad():
                outs = self.attend(backend, self.query, self.key, self.value)
            return dict(zip(("output", "log-sum-exp"), outs, strict=False))
        outs = self.attend(backend, self.query, self.key, self.value)
        leaves = {name: x for name, x in self.leaves.items() if wanted is None or name in wanted}
        # A log-sum-exp of -inf has no gradient to speak of; where the query sees something, it has.
        finite = [out.masked_fill(out == -torch.inf, 0.0) for out in outs]
        loss = sum((out * projection(out)).sum() for out in finite)
        assert isinstance(loss, Tensor)
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        found = {f"gradient of {name}": g for name, g in zip(leaves, gradients, strict=True)}
        return {name: x.detach() for name, x in zip(("output", "log-sum-exp"), outs, strict=False)} | found

    def to(self, dtype: torch.dtype) -> "Case":
        """The same call in another precision; parameters in single precision at least, as they are trained."""
        scheme = copy.deepcopy(self.scheme).to(torch.promote_types(dtype, torch.float32))
        query, key, value = (x.detach().to(dtype).requires_grad_() for x in (self.query, self.key, self.value))
        return replace(self, scheme=scheme, query=query, key=key, value=value)


def attend(
    scheme: Scheme,
    query_positions: Positions,
    key_positions: Positions,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    backend: str,
    **how: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Binds the scheme and opens all of its doors, as a model does."""
    encoding = scheme(query_positions, key_positions, dtype=torch.promote_types(query.dtype, torch.float32))
    if "add" in encoding.doors:
        query = encoding.add(query.transpose(1, 2).flatten(2)).unflatten(2, (query.size(1), -1)).transpose(1, 2)
    return posenc.attention(query, key, value, encoding, **how, backend=backend)


class Model(torch.nn.Module):
    """The scheme of a case bound to the tokens at hand, which are a text, and their attention."""

    def __init__(self, it: "Case", backend: str = "auto") -> None:
        super().__init__()
        self.scheme, self.at, self.backend = it.scheme, it.kind.at, backend

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        positions = self.at(Positions.arange(query.size(2), device=query.device))
        out = attend(self.scheme, positions, positions, query, key, value, self.backend, is_causal=True)
        assert isinstance(out, Tensor)
        return out


def coarse(x: Tensor) -> Tensor:
    """Rounded so that bfloat16 and float16 hold it as it is."""
    return x.bfloat16().half()


def projection(out: Tensor) -> Tensor:
    """Fixed weights of order 1 for every number of a result."""
    return coarse(torch.randn(out.shape, generator=torch.Generator().manual_seed(7))).to(out.dtype)


def case(
    name: str,
    place: str,
    tokens: int,
    causal: bool,
    heads: int = HEADS,
    dtype: torch.dtype = torch.float64,
) -> Case:
    """The scheme of that name at that place, on random tensors; the same ones whenever it is asked for."""
    torch.manual_seed(1000 * tokens + causal)
    kind, where = KINDS[name], PLACES[place]
    scheme = built(name, heads, tokens, torch.promote_types(dtype, torch.float32))
    asking, known = where.positions(tokens)
    key_positions = kind.at(known)
    query_positions = key_positions if asking is known else kind.at(asking)
    queries, keys = len(query_positions), len(key_positions)
    how = {"is_causal": causal, **where.how(queries, keys)}
    batch = max(query_positions.rows, key_positions.rows, 2 if "attn_mask" in how else 1)
    head_dim = shape_of(name, heads, tokens).head_dim
    kv_heads = where.kv_heads * heads // HEADS or 1
    query, key, value = (
        torch.randn(size, dtype=torch.float64).to(dtype).requires_grad_()
        for size in (
            (batch, heads, queries, head_dim),
            (batch, kv_heads, keys, head_dim),
            (batch, kv_heads, keys, where.value_dim or head_dim),
        )
    )
    return Case(kind, scheme, query, key, value, query_positions, key_positions, how)


# --- who refuses what -------------------------------------------------------------------------------------------------

WHOLE_ROWS = frozenset({"cope"})
PRODUCTS = frozenset({"distance_aware", "distance_aware+alibi", "alibi+distance_aware"})
VALUES = frozenset({"shaw", "shaw values", "shaw per head", "shaw+alibi"})
LSE = frozenset({"log-sum-exp", "log-sum-exp, padded", "log-sum-exp alone"})
MASKS = frozenset({"bool mask", "float mask"})
NOT_A_RUN = frozenset(
    {
        "packed",
        "padded left and right",
        "padded inside and wholly",
        "cross, packed",
        "decoding, padded",
        "permuted",
        "unrelated to order",
        "steps",
        "fractional",
        "log-sum-exp, padded",
    }
)
NOT_STRAIGHT_PAST_A_DISTANCE = frozenset(
    {
        "alibi directed",
        "transformer_xl",
        "absolute_in_attention",
        "relative_1d",
        "relative_1d per head",
        "relative_2d",
        "relative_2d per head",
        "shaw+alibi",
    }
)


@dataclass(frozen=True)
class Refusals:
    """What a backend is to refuse: these schemes wherever they are, and any scheme at these places, or at those where
    attention is causal."""

    schemes: frozenset[str] = frozenset()
    places: frozenset[str] = frozenset()
    causal_places: frozenset[str] = frozenset()


REFUSED: dict[str, Refusals] = {
    "reference": Refusals(),
    "chunked": Refusals(),
    "sdpa": Refusals(WHOLE_ROWS | PRODUCTS | VALUES, LSE),
    "near_far": Refusals(
        WHOLE_ROWS | PRODUCTS | NOT_STRAIGHT_PAST_A_DISTANCE,
        NOT_A_RUN | MASKS | {"narrow values", "log-sum-exp"},
        frozenset({"cross, some before every key"}),
    ),
}


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the backends that work in blocks take many where a hundred tokens would be one."""
    for module, name, size in (
        (chunked, "SCORES", 1),
        (chunked, "ROWS", 24),
        (by_distance, "ROWS", 16),
        (by_distance, "KEYS", 40),
        (by_distance, "SCORES", 1),
        (near_far, "GROUP", 1),
        (fused, "ROWS", 64),
        (fused, "TRIANGLE", 16),
    ):
        monkeypatch.setattr(module, name, size)


def refuses(backend: str, scheme: str, place: str, causal: bool) -> bool:
    """Whether the backend is to refuse the scheme at that place; one without a line is to run everything."""
    line = REFUSED.get(backend, Refusals())
    return scheme in line.schemes or place in line.places or (causal and place in line.causal_places)
