"""What every backend is tried on: all schemes of the catalog and some beside it, positions and ways to ask of every
kind, and which backend is to refuse what."""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import (
    KERPLE,
    ALiBi,
    DeBERTa,
    DistanceAware,
    Encoding,
    Positions,
    Relative1D,
    Relative2D,
    RoPE,
    Scheme,
    Shaw,
    Swin,
)
from posenc.backends import chunked
from posenc.backends.choose import BACKENDS
from posenc.encoding.terms import (
    AddedVector,
    Bias,
    ChannelDecay,
    CumulativeBias,
    Function,
    RelativeDot,
    Row,
    ScoreTerm,
    Value,
    gives_weights,
)
from posenc.schemes.catalog import CATALOG, Entry, Shape
from posenc.schemes.t5 import T5
from tests import user_schemes

HEADS, KV_HEADS = 6, 2
NAMES = tuple(backend.name for backend in BACKENDS)
FAST = tuple(name for name in NAMES if name not in ("reference", "flex", "flex_flash", "triton"))
"""The backends that are compared with the reference in double precision. The others have none: see their own tests."""
LINEAR = ("native", "chunked")
"""The backends that claim memory linear in the tokens."""


# --- schemes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A scheme for a model of some shape, and the positions that it takes."""

    build: Callable[[Shape], Scheme]
    fractional: bool = True
    axes: int = 1
    needs_segments: bool = False
    looks_back: bool = False  # it encodes keys behind the query alone
    reach: int | None = None  # tokens further apart have no encoding
    normalises: bool = True  # its weights sum to 1, so that sinks can take a share

    def at(self, positions: Positions) -> Positions:
        """The same tokens, with the coordinates and segments that the scheme asks for: 16 places make a row of the
        grid."""
        if self.axes == 2 and positions.coords.dim() == 2:
            c = positions.coords
            coords = torch.stack((c.div(16, rounding_mode="floor"), c % 16), -1)
            positions = Positions(coords, order=positions.order, document=positions.document)
        if self.axes == 3 and positions.coords.dim() == 2:
            c = positions.coords
            coords = torch.stack((c.div(8, rounding_mode="floor"), c % 8, c), -1)
            positions = Positions(coords, order=positions.order, document=positions.document)
        if self.needs_segments:
            positions = positions.with_segment(positions.order % 2)
        return positions


def _grid(shape: Shape) -> tuple[int, int]:
    return shape.max_positions // 16 + 1, 16


def _of_entry(entry: Entry) -> Kind:
    has_grid = entry.axes == "two"
    kind = Kind(
        (lambda shape: entry.build(replace(shape, grid=_grid(shape)))) if has_grid else entry.build,
        "fractional" in entry.laws,
        2 if has_grid else entry.least_axes,
        entry.needs_segments,
    )
    found = kind.build(Shape(HEADS * 6, HEADS, 6, max_positions=16))(kind.at(Positions.arange(3)))
    return replace(kind, looks_back=bool(found.looks_back), normalises=not gives_weights(found.score_terms))


KINDS: dict[str, Kind] = {entry.name: _of_entry(entry) for entry in CATALOG} | {
    "alibi bidirectional": Kind(lambda s: ALiBi(s.num_heads, "bidirectional")),
    "alibi directed": Kind(lambda s: ALiBi(s.num_heads, "directed")),
    "t5 bidirectional": Kind(lambda s: T5(s.num_heads, 12, 40, bidirectional=True), fractional=False),
    "shaw keys": Kind(lambda s: Shaw(s.head_dim, 5, values=False), fractional=False),
    "shaw values": Kind(lambda s: Shaw(s.head_dim, 5, keys=False), fractional=False),
    "shaw per head": Kind(lambda s: Shaw(s.head_dim, 5, num_heads=s.num_heads), fractional=False),
    "relative_1d per head": Kind(lambda s: Relative1D(s.max_positions, s.head_dim, s.num_heads), fractional=False),
    "relative_2d per head": Kind(lambda s: Relative2D(_grid(s), s.head_dim, s.num_heads), fractional=False, axes=2),
    "rope on a grid": Kind(lambda s: RoPE(s.head_dim, axes=2, rotary_dim=4), axes=2),
    "relative_2d sam": Kind(lambda s: Relative2D(_grid(s), s.head_dim, s.num_heads, "sam"), fractional=False, axes=2),
    "swin with a class token": Kind(lambda s: Swin(_grid(s), s.num_heads, class_token=True), fractional=False, axes=2),
    "t5 along an axis": Kind(
        lambda s: T5(s.num_heads, 12, 40, True, axis=1, axes=2, factor=0.3), fractional=False, axes=2
    ),
    "kerple power": Kind(lambda s: KERPLE(s.num_heads, "power")),
    "deberta in buckets": Kind(
        lambda s: DeBERTa(s.num_heads, s.head_dim, 5, 20, num_buckets=8, normalized=True), fractional=False
    ),
    "rope+alibi": Kind(lambda s: RoPE(s.head_dim) + ALiBi(s.num_heads), looks_back=True),
    "shaw+alibi": Kind(
        lambda s: Shaw(s.head_dim, 5, num_heads=s.num_heads) + ALiBi(s.num_heads, "bidirectional"), fractional=False
    ),
    "shaw keys+t5": Kind(
        lambda s: Shaw(s.head_dim, 5, values=False) + T5(s.num_heads, 8, 20), fractional=False, looks_back=True
    ),
    "distance_aware+alibi": Kind(lambda s: DistanceAware(s.num_heads) + ALiBi(s.num_heads, "bidirectional")),
    "alibi+distance_aware": Kind(lambda s: ALiBi(s.num_heads, "bidirectional") + DistanceAware(s.num_heads)),
    "disentangled": Kind(lambda s: user_schemes.disentangled(s.head_dim, s.num_heads), fractional=False),
    "disentangled, wide": Kind(
        lambda s: user_schemes.disentangled(s.head_dim, s.num_heads, s.max_positions, tail=None), fractional=False
    ),
    "clocked": Kind(lambda s: user_schemes.clocked(s.num_heads), fractional=False),
    "featured": Kind(lambda s: user_schemes.featured(s.head_dim, s.num_heads), fractional=False),
    "capped": Kind(lambda s: user_schemes.softcap()),
    "squeezing": Kind(lambda s: user_schemes.squeezing(s.num_heads), fractional=False),
    "alibi+fire+softcap": Kind(
        lambda s: ALiBi(s.num_heads, "bidirectional") + posenc.FIRE(s.num_heads, 5, 17.0) + posenc.Softcap(1.3),
        looks_back=True,
    ),
    "capping": Kind(lambda s: user_schemes.capping(s.num_heads), fractional=False),
    "interpolated": Kind(lambda s: user_schemes.interpolated(s.num_heads)),
    "learned slope": Kind(lambda s: user_schemes.learned_slope(s.num_heads)),
    "bent line": Kind(lambda s: user_schemes.bent_line(s.num_heads), fractional=False),
    "of each key": Kind(lambda s: user_schemes.of_each_key(s.head_dim)),
    "re_rope leaky+shaw": Kind(
        lambda s: posenc.ReRoPE(s.head_dim, 7, leak=0.25) + Shaw(s.head_dim, 5), fractional=False
    ),
    "dual_chunk+alibi": Kind(lambda s: posenc.DualChunk(s.head_dim, 20, 7) + ALiBi(s.num_heads), looks_back=True),
    "of each key+shaw": Kind(lambda s: user_schemes.of_each_key(s.head_dim) + Shaw(s.head_dim, 5), fractional=False),
    "transformer_xl with segments": Kind(
        lambda s: posenc.TransformerXL(s.num_heads, s.head_dim, 6, segments=True), needs_segments=True
    ),
    "mixed heads": Kind(lambda s: user_schemes.MixedHeads(s.num_heads)),
}

TURNING = frozenset(entry.name for entry in CATALOG if "rotate" in entry.doors)
"""Those that turn channels, which come in pairs."""


def built(
    name: str, heads: int = HEADS, tokens: int = 9, dtype: torch.dtype = torch.float64, kv_heads: int | None = None
) -> Scheme:
    """The scheme for that many heads of an odd width, or of an even one where channels turn in pairs, and for
    coordinates up to three times the number of tokens. Parameters are of order 1, so that none hides behind its small
    beginning."""
    shape = replace(shape_of(name, heads, tokens), num_kv_heads=kv_heads)
    scheme = KINDS[name].build(shape).to(dtype)
    for parameter in scheme.parameters():
        torch.nn.init.normal_(parameter)
    return scheme


def shape_of(name: str, heads: int = HEADS, tokens: int = 9) -> Shape:
    """The sizes that `built` builds for."""
    head_dim = 6 if any(turning in name for turning in TURNING) else 7
    return Shape(heads * head_dim, heads, head_dim, max_positions=3 * tokens + 32)


# Attention sees nothing of what is added to the input, so one of these stands for all.
ADDING = frozenset(name for name in KINDS if built(name).doors == ("add",)) - {"learned"}
ATTENDING = tuple(name for name in KINDS if name not in ADDING)


@functools.cache
def encoded(name: str) -> Encoding:
    """What the scheme makes of three tokens."""
    return built(name)(KINDS[name].at(Positions.arange(3)))


def kind_of(term: ScoreTerm | Value) -> str:
    """The row of `TAKEN` that a term is of: not by what a backend says, but by what the term is."""
    match term:
        case Value():
            return "vectors in the output"
        case Row():
            return "a function of whole rows"
        case AddedVector():
            return "a vector added to one side"
        case CumulativeBias():
            return "a clock"
        case ChannelDecay():
            return "a clock of each channel"
        case Function() if term.broken is not None:
            return "a broken line of both coordinates"
        case Function() if term.distance is None and term.adds:
            return "a term of both coordinates"
        case Function():
            return {"relu times": "ReLU times a number", "cap": "a soft cap"}.get(term.formula or "", "a function")
    assert isinstance(term, Bias | RelativeDot)
    several = " of several coordinates" if term.distance.axis is None or term.distance.axes > 1 else ""
    several = " by segment" if term.distance.axis == "segment" else several
    if isinstance(term, Bias):
        return "a bias that hides keys" if term.masks else f"a bias{several}"
    return f"vectors that {'keys' if term.side == 'key' else 'queries'} meet{several}"


EVERY = "sdpa native triton flex"
FIXED = f"{EVERY} flex_flash"  # without gradients
TAKEN: dict[str, str] = {
    "a bias": FIXED,
    "a bias that hides keys": "sdpa native flex flex_flash",
    "a bias of several coordinates": "sdpa native flex flex_flash",
    "vectors that queries meet": EVERY,
    "vectors that queries meet of several coordinates": "sdpa native flex",
    "vectors that queries meet by segment": "sdpa flex",
    "vectors that keys meet": "sdpa native flex",
    "a vector added to one side": EVERY,
    "a clock": EVERY,
    "a clock of each channel": "sdpa",
    "ReLU times a number": "native triton flex flex_flash",
    "a soft cap": "native flex flex_flash",
    "a function": "flex flex_flash",
    "a broken line of both coordinates": "sdpa native",
    "a term of both coordinates": "sdpa",
    "a function of whole rows": "",
    "vectors in the output": "native triton",
}
"""Which backend is to take which kind of term, where positions, inputs and other terms suit it; chunked and the
reference take all. This is the only place in the tests that says so."""


def takes(backend: str, name: str) -> bool:
    """Whether the backend is to take every kind of term of the scheme."""
    return backend in ("chunked", "reference") or all(backend in TAKEN[kind].split() for kind in kinds_of(name))


def kinds_of(name: str) -> set[str]:
    """The kinds of all terms of a scheme."""
    return {kind_of(term) for term in (*encoded(name).score_terms, *encoded(name).values)}


def goes_by_one_distance(name: str) -> bool:
    """Whether a term depends only on the distance along one line, on which tokens must stand one after the other."""
    terms = (*encoded(name).score_terms, *encoded(name).values)
    kinds = {kind_of(term) for term in terms if term.distance is not None}
    return "a broken line of both coordinates" in kinds_of(name) or any("several" not in kind for kind in kinds)


ROWS = frozenset(name for name in ATTENDING if "a function of whole rows" in kinds_of(name))
VALUES = frozenset(name for name in ATTENDING if "vectors in the output" in kinds_of(name))
BANDED = frozenset(name for name in ATTENDING if any(rotation.bands for rotation in encoded(name).rotations))
"""Those that turn far pairs otherwise than near ones."""
BY_LAYERS = frozenset(name for name in ATTENDING if any(rotation.feature for rotation in encoded(name).rotations))
"""Those whose rotation is of each layer."""


# --- where queries and keys stand -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where queries and keys of a call stand, for some number of tokens."""

    positions: Callable[[int], tuple[Positions, Positions]]
    fractional: bool = False
    axes: int = 1
    is_tiled: bool = True  # the tokens fall into few spans
    is_even: bool = True  # and coordinates rise by one


def same(positions: Positions) -> tuple[Positions, Positions]:
    """For queries and for keys."""
    return positions, positions


def last(positions: Positions, m: int) -> tuple[Positions, Positions]:
    """The last of them ask."""
    return positions[len(positions) - m :], positions


def padded(kinds: str, tokens: int) -> Positions:
    """A row for each letter: padding to the left, to the right, inside, nowhere, or all of it."""
    mask = torch.ones(len(kinds), tokens, dtype=torch.bool)
    for row, kind in zip(mask, kinds, strict=True):
        if kind == "l":
            row[: tokens // 3] = False
        elif kind == "r":
            row[tokens - tokens // 3 :] = False
        elif kind == "i":
            row[tokens // 7] = False
            row[tokens // 2 : tokens - tokens // 4] = False
        elif kind == "a":
            row[:] = False
    return Positions.padded(mask)


def unwritten(keys: Positions) -> tuple[Positions, Positions]:
    """The last tokens of each row ask, which is a buffer that may not be full."""
    ends = (keys.document >= 0).sum(1, keepdim=True)
    at = ends - 4 + torch.arange(4)
    return Positions(at, order=at), keys


def packed(tokens: int) -> Positions:
    """Three documents in one row, two and padding in the other."""
    third, half = tokens // 3, tokens // 2
    return Positions.packed([[third, tokens - third - tokens // 4, tokens // 4], [half, tokens - half - tokens // 8]])


def shuffled(tokens: int) -> Tensor:
    """Their indices in an order that has nothing to do with them."""
    return torch.randperm(tokens, generator=torch.Generator().manual_seed(tokens))


def with_a_gap(tokens: int) -> Positions:
    """Text of which a part was cut out: coordinates and order leap."""
    at = torch.arange(tokens)
    at = at + 7 * (at >= tokens // 3)
    return Positions(at[None], order=at[None])


def prefixed(tokens: int) -> Positions:
    """A prefix that sees itself whole, then text; in the second row it is longer."""
    order = torch.arange(tokens).repeat(2, 1)
    order[0, : tokens // 4] = 0
    order[1, : tokens // 2] = tokens // 2 - 1
    return Positions(torch.arange(tokens)[None], order=order)


def by_ids(tokens: int) -> Positions:
    """Packed documents and padding, as a tokenizer gives them."""
    third = tokens // 3
    ids = torch.cat((torch.arange(third), torch.arange(tokens - third)))[None].repeat(2, 1)
    mask = torch.ones_like(ids)
    mask[1, -third // 2 :] = 0
    return Positions.from_ids(ids, mask, packed=True)


PLACES: dict[str, Place] = {
    "text": Place(lambda n: same(Positions.arange(n))),
    "offset": Place(lambda n: same(Positions.arange(n, start=11).shift(-4))),
    "cache": Place(lambda n: last(Positions.arange(n), n // 3)),
    "decoding": Place(lambda n: last(padded("ln", n), 1)),
    "unwritten slots": Place(lambda n: unwritten(padded("nr", n))),
    "a mask of ones": Place(lambda n: same(padded("nn", n))),
    "padded left and right": Place(lambda n: same(padded("lr", n))),
    "padded inside and wholly": Place(lambda n: same(padded("ia", n))),
    "packed": Place(lambda n: same(packed(n))),
    "packed, other keys": Place(lambda n: (packed(n), Positions.packed([[n // 4, n // 2], [n // 2, n // 4 + 1]]))),
    "other keys": Place(lambda n: (Positions.arange(n, start=5), Positions.arange(n // 2 + 3, start=2).shift(-1))),
    "coordinates alone": Place(lambda n: same(Positions(torch.arange(n)[None]))),
    "position ids": Place(lambda n: same(by_ids(n))),
    "a gap": Place(lambda n: same(with_a_gap(n))),
    "a prefix": Place(lambda n: same(prefixed(n))),
    "coordinates backwards": Place(lambda n: same(Positions.arange(n).scale(-1).shift(n)), is_even=False),
    "permuted": Place(lambda n: same(Positions.arange(n)[shuffled(n)]), is_tiled=False),
    "steps of a half": Place(lambda n: same(Positions.arange(n).scale(0.5)), fractional=True, is_even=False),
    "fractional": Place(
        lambda n: same(Positions(torch.linspace(0.3, 0.9 * n, n, dtype=torch.float64)[None])),
        fractional=True,
        is_even=False,
    ),
    "grid": Place(lambda n: same(Positions.grid(-(-n // 16), 16)), axes=2, is_even=False),
}


@dataclass(frozen=True)
class Way:
    """How attention is asked."""

    how: dict[str, Any] = field(default_factory=dict)
    has_sinks: bool = False
    of_queries: bool = False  # a sink of every query, not of a head
    has_mask: bool = False

    def for_kind(self, kind: Kind) -> "Way":
        """The same, of a scheme that encodes one direction alone, or whose weights have no share for a sink."""
        mine = replace(self, has_sinks=self.has_sinks and kind.normalises)
        return replace(mine, how=mine.how | {"is_causal": True}) if kind.looks_back else mine


WAYS: dict[str, Way] = {
    "both": Way(),
    "causal": Way({"is_causal": True}),
    "causal, a window": Way({"is_causal": True, "window": 9}),
    "a window": Way({"window": (5, 3)}),
    "to the left": Way({"window": (None, 0), "scale": 0.31}),
    "causal, sinks": Way({"is_causal": True}, has_sinks=True),
    "a window, sinks": Way({"window": (None, 20)}, has_sinks=True, of_queries=True),
    "a mask": Way({"is_causal": True}, has_mask=True),
}


def fits(name: str, place: str) -> bool:
    """Whether the scheme has an encoding for coordinates of that kind."""
    kind, where = KINDS[name], PLACES[place]
    return (kind.fractional or not where.fractional) and (kind.axes == where.axes or where.axes == 1)


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
    features: dict[str, Tensor] = field(default_factory=dict)  # "query clock", "key clock"

    @property
    def leaves(self) -> dict[str, Tensor]:
        """Everything that has a gradient."""
        tensors = {"query": self.query, "key": self.key, "value": self.value, **self.features}
        more = {name: self.how[name] for name in ("sinks", "attn_mask") if self.how.get(name) is not None}
        leaves = tensors | more | dict(self.scheme.named_parameters())
        return {name: x for name, x in leaves.items() if x.requires_grad}

    def attend(self, backend: str, *tensors: Tensor, **how: Any) -> tuple[Tensor, ...]:
        """The output, and the log-sum-exp where it is asked for, of these tensors or of its own. What the scheme adds
        to the input is added to the query, the heads laid side by side."""
        out = attend(
            self.scheme,
            self.query_positions,
            self.key_positions,
            *(tensors or (self.query, self.key, self.value)),
            backend,
            features=self.features,
            **self.how | how,
        )
        return out if isinstance(out, tuple) else (out,)

    def run(self, backend: str, wanted: tuple[str, ...] | None = None) -> dict[str, Tensor]:
        """The output, the log-sum-exp where it is asked for, and the gradient of a fixed projection of them."""
        if wanted == ():
            with torch.no_grad():
                return dict(zip(("output", "log-sum-exp"), self.attend(backend), strict=False))
        return with_gradients(self, self.attend(backend), wanted)

    def to(self, to: torch.dtype | torch.device) -> "Case":
        """The same call in another precision, or elsewhere; parameters in single precision at least, as they are
        trained."""
        scheme = copy.deepcopy(self.scheme)
        scheme = scheme.to(torch.promote_types(to, torch.float32) if isinstance(to, torch.dtype) else to)

        def moved(x: Any) -> Any:
            return x.detach().to(to).requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x

        at = {"query_positions": self.query_positions, "key_positions": self.key_positions}
        if isinstance(to, torch.device):
            at = {name: positions.with_layout().to(to) for name, positions in at.items()}
        return replace(
            self,
            scheme=scheme,
            **{name: moved(getattr(self, name)) for name in ("query", "key", "value")},
            how={name: moved(x) for name, x in self.how.items()},
            features={name: moved(x) for name, x in self.features.items()},
            **at,  # type: ignore[arg-type]
        )


def with_gradients(run: Case, outs: tuple[Tensor, ...], wanted: tuple[str, ...] | None = None) -> dict[str, Tensor]:
    """Results by name, and the gradient of their projection of everything that has one."""
    leaves = {name: x for name, x in run.leaves.items() if wanted is None or name in wanted}
    # A log-sum-exp of -inf has no gradient to speak of; where the query sees something, it has.
    finite = [out.masked_fill(out == -torch.inf, 0.0) for out in outs]
    loss = sum(((out * projection(out)).sum() for out in finite), torch.zeros((), device=run.query.device))
    gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True, retain_graph=True)
    found = {f"gradient of {name}": g for name, g in zip(leaves, gradients, strict=True)}
    return {name: x.detach() for name, x in zip(("output", "log-sum-exp"), outs, strict=False)} | found


def bound(scheme: Scheme, query_positions: Positions, key_positions: Positions, like: Tensor) -> Encoding:
    """The encoding, in the precision of scores."""
    return scheme(query_positions, key_positions, dtype=torch.promote_types(like.dtype, torch.float32))


def with_features(encoding: Encoding, features: dict[str, Tensor]) -> Encoding:
    """The encoding with a case's features of queries and of keys, if it has some."""
    of = {side: {n.split()[1]: x for n, x in features.items() if n.startswith(side)} for side in ("query", "key")}
    return encoding.with_features(of["query"], of["key"]) if features else encoding


def attend(
    scheme: Scheme,
    query_positions: Positions,
    key_positions: Positions,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    backend: str,
    features: dict[str, Tensor] | None = None,
    **how: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Binds the scheme and opens all of its doors, as a model does."""
    encoding = bound(scheme, query_positions, key_positions, query)
    if "add" in encoding.doors:
        query = encoding.add(query.transpose(1, 2).flatten(2)).unflatten(2, (query.size(1), -1)).transpose(1, 2)
    encoding = with_features(encoding, features or {})
    return posenc.attention(query, key, value, encoding, **how, backend=backend)


class Model(torch.nn.Module):
    """The scheme of a case bound to the tokens at hand, which are a text, and their attention."""

    def __init__(self, it: Case, backend: str = "auto") -> None:
        super().__init__()
        self.scheme, self.at, self.backend, self.names = it.scheme, it.kind.at, backend, tuple(it.features)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *given: Tensor) -> Tensor:
        positions = self.at(Positions.arange(query.size(2), device=query.device))
        features = dict(zip(self.names, given, strict=True))
        out = attend(self.scheme, positions, positions, query, key, value, self.backend, features, is_causal=True)
        assert isinstance(out, Tensor)
        return out


def coarse(x: Tensor) -> Tensor:
    """Rounded so that bfloat16 and float16 hold it as it is."""
    return x.bfloat16().half()


def projection(out: Tensor) -> Tensor:
    """Fixed weights of order 1 for every number of a result."""
    return coarse(torch.randn(out.shape, generator=torch.Generator().manual_seed(7))).to(out.device, out.dtype)


def case(
    name: str,
    place: str,
    tokens: int,
    way: str | bool = "causal",
    heads: int = HEADS,
    kv_heads: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> Case:
    """The scheme of that name at that place, on random tensors; the same ones whenever it is asked for."""
    torch.default_generator.manual_seed(1000 * tokens)
    kind, where = KINDS[name], PLACES[place]
    kv_heads = max(1, KV_HEADS * heads // HEADS) if kv_heads is None else kv_heads
    scheme = built(name, heads, tokens, torch.promote_types(dtype, torch.float32), kv_heads)
    way = way if isinstance(way, str) else "causal" if way else "both"
    asked = WAYS[way].for_kind(kind)
    of_queries, of_keys = where.positions(tokens)
    key_positions = kind.at(of_keys)
    query_positions = key_positions if of_queries is of_keys else kind.at(of_queries)
    queries, keys = len(query_positions), len(key_positions)
    batch = max(query_positions.rows, key_positions.rows)
    head_dim = shape_of(name, heads, tokens).head_dim

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()

    tensors = [drawn(batch, h, n, head_dim) for h, n in ((heads, queries), (kv_heads, keys), (kv_heads, keys))]
    how = dict(asked.how)
    if asked.has_sinks:
        how["sinks"] = drawn(batch, heads, queries) if asked.of_queries else drawn(heads)
    if asked.has_mask:
        added = drawn(1, heads, queries, keys)
        hidden = torch.rand(1, heads, queries, keys) > 0.7
        with torch.no_grad():
            added[hidden] = -torch.inf
        how["attn_mask"] = added if kind.normalises else ~hidden
    features = {}
    encoding = bound(scheme, query_positions, key_positions, tensors[0])
    for turn in encoding.rotations:
        if turn.feature is not None:
            width = (head_dim // 2,) if encoding.wanted[turn.feature].is_clock else ()
            for side, n in (("query", queries), ("key", keys)):
                features[f"{side} {turn.feature}"] = drawn(batch, kv_heads, n, *width)
    for score_term in encoding.score_terms:
        if (feature := getattr(score_term, "feature", None)) is not None:
            width = (score_term.at(torch.zeros(1).long()).size(-1),) if isinstance(score_term, RelativeDot) else ()
            width = (head_dim,) if isinstance(score_term, ChannelDecay) else width
            for side, n in (("query", queries), ("key", keys)):
                if side == "query" or not isinstance(score_term, RelativeDot):
                    features[f"{side} {feature}"] = drawn(batch, heads, n, *width)
    return Case(kind, scheme, *tensors, query_positions, key_positions, how, features)


# --- who refuses what -------------------------------------------------------------------------------------------------


def refuses(backend: str, name: str, place: str, way: str | bool = "causal") -> bool:
    """Whether the backend is to refuse the scheme at that place; what is not said here it is to run."""
    asked, where = WAYS[way] if isinstance(way, str) else Way(), PLACES[place]
    if not takes(backend, name):
        return True
    if backend == "sdpa":
        return name in BANDED or asked.has_sinks
    if backend in ("native", "triton"):
        cut = name in BANDED and not _are_windows(name, place, asked)
        unknown = not where.is_tiled or (goes_by_one_distance(name) and not where.is_even)
        return cut or unknown or asked.has_mask
    return False


def _are_windows(name: str, place: str, asked: Way) -> bool:
    """Whether a scheme's bands are windows of the order, or of chunks, so that no mask picks their pairs."""
    where = PLACES[place]
    is_one_line = place not in ("a prefix", "other keys", "packed, other keys")
    is_cut = "dual_chunk" in name and "window" in asked.how
    return where.is_even and where.is_tiled and is_one_line and not is_cut


def small_blocks(patch: pytest.MonkeyPatch) -> None:
    """Makes `chunked` take many blocks where a hundred tokens would be one."""
    patch.setattr(chunked, "SCORES", 1)
    patch.setattr(chunked, "ROWS", 24)
