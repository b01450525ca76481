"""Builds the benchmark's groups of competitors, which are timed in interleaved rounds with a baseline."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

import posenc
from posenc.backends.choice import Explanation
from posenc.backends.native.backend import NATIVE
from posenc.encoding.encoding import Encoding
from posenc.encoding.features import Projected, projected_at_random
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.catalog import catalog, entries_of, scheme_from_names
from posenc.schemes.entry import Entry, Shape
from posenc.schemes.shaw import Shaw
from posenc.tools.bench import limit, peers
from posenc.tools.bench.measure import Inputs, LeftOutError, Make, Work
from posenc.tools.bench.settings import AUTO, Settings

PLAIN = "plain"  # causal scaled_dot_product_attention, without positions: the baseline
CLONE = "clone"  # of queries and keys
PHASES = ("forward", "training")
SHAW_KEYS = "shaw_keys"  # without the values of the catalog's shaw
PEER_SCHEMES = ("alibi", "t5", SHAW_KEYS)
WINDOW = 16  # of shaw_keys, and of the catalog's shaw
INTERLEAVED, PARTIAL = "rope_interleaved", "rope_partial"
# Schemes that are not in the catalog, built for a head_dim.
BESIDE: Mapping[str, Callable[[int], Scheme]] = {
    SHAW_KEYS: lambda head_dim: Shaw(head_dim, WINDOW, values=False),
    INTERLEAVED: lambda head_dim: posenc.RoPE(head_dim, layout="interleaved"),
    PARTIAL: lambda head_dim: posenc.RoPE(head_dim, rotary_dim=head_dim // 2),
}


@dataclass(frozen=True)
class Built:
    """Competitors with their tensors, the baseline first, and further fields of the record."""

    makes: Mapping[str, Make]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """One interleaved run, and its approximate work."""

    kind: str
    scheme: str
    length: int
    build: Callable[[], Built]
    work: float
    probe: Callable[[str, int], Work] | None = None
    """Sets up a competitor at another length. If given, memory is measured too, and calls that would need too much
    memory or time are left out."""
    busy: bool = False
    """Whether other processes keep every core busy meanwhile."""


class Way(NamedTuple):
    """A scheme in attention. Positions are bound in every call or, with ``once``, before all calls, as a model does for
    all its layers. ``once`` needs a scheme without parameters, since autograd frees a graph after one backward pass."""

    scheme: str
    backend: str = AUTO
    once: bool = False


ROTATED: Mapping[str, Way] = {
    "nope": Way("nope", once=True),
    "rope": Way("rope", once=True),
    "rope, bound in the call": Way("rope"),
    "rope, interleaved": Way(INTERLEAVED, once=True),
    "rope, partial": Way(PARTIAL, once=True),
    "rope + alibi": Way("rope+alibi", once=True),
    "nope by native": Way("nope", "native", once=True),
    "rope by native": Way("rope", "native", once=True),
    "rope by sdpa": Way("rope", "sdpa", once=True),
}
DISTURBED: Mapping[str, Way] = {
    "rope": Way("rope", once=True),
    "rope, bound in the call": Way("rope"),
    **{name: Way(name) for name in ("alibi", "t5", "shaw")},
}


def all_schemes() -> tuple[str, ...]:
    """All schemes of the catalog, and Shaw without values."""
    names = [entry.name for entry in catalog()]
    names.insert(names.index("shaw") + 1, SHAW_KEYS)
    return tuple(names)


def build_scheme(name: str, settings: Settings, length: int) -> Scheme:
    """The scheme for ``length`` positions, with fixed random parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        if name in BESIDE:
            scheme = BESIDE[name](settings.head_dim)
        else:
            grid = _grid(length, axes) if (axes := _axes(name)) > 1 else None
            dim = settings.heads * settings.head_dim
            scheme = scheme_from_names(name, Shape(dim, settings.heads, settings.head_dim, length, grid=grid))
    return scheme.to(settings.device)


def positions_of(name: str, length: int, device: torch.device | str) -> Positions:
    """Positions that the scheme accepts: of text, with segments if it needs them, or of a grid."""
    if (axes := _axes(name)) > 1:
        *frames, rows, columns = _grid(length, axes)
        return Positions.grid(rows, columns, frames=frames[0] if frames else None, device=device)
    line = Positions.arange(length, device=device)
    if any(entry.needs_segments for entry in entries(name)):
        return line.with_segment((torch.arange(length, device=device) >= length // 2).long()[None])
    return line


def _axes(name: str) -> int:
    return max((entry.least_axes for entry in entries(name)), default=1)


def entries(name: str) -> tuple[Entry, ...]:
    """The catalog's entries; none for a scheme of `BESIDE`. ValueError for an unknown name."""
    return () if name in BESIDE else entries_of(name)


def _grid(length: int, axes: int = 2) -> tuple[int, ...]:
    """The sides of a grid of two or three axes, powers of two that are as equal as possible."""
    first = 2 ** ((length.bit_length() - 1) // axes)
    return (first, length // first) if axes == 2 else (first, *_grid(length // first))


# -- price and growth -------------------------------------------------------------------------------------------------


def prices(settings: Settings, kind: str, schemes: tuple[str, ...], backends: tuple[str, ...]) -> Iterator[Group]:
    """A group per length, phase and scheme, short ones first."""
    for length, phase, scheme in itertools.product(settings.lengths, PHASES, schemes):
        training = phase == "training"
        build = partial(priced, settings, scheme, length, training, backends)
        work = 1 + (3.5 if training else 1) * (length / 2048) ** 2
        yield Group(f"{kind} {phase}", scheme, length, build, work, partial(probed, settings, scheme, training))


def probed(settings: Settings, name: str, training: bool, backend: str, length: int) -> Work:
    """The call at another length."""
    return attention_work(settings, name, length, Inputs.draw(settings, length, length, training), backend)


def priced(settings: Settings, name: str, length: int, training: bool, backends: tuple[str, ...]) -> Built:
    """Plain attention and the scheme with these backends. Auto's choice is measured once, by its own name."""
    inputs = Inputs.draw(settings, length, length, training)
    facts: dict[str, Any] = {}
    if AUTO in backends:
        scheme = build_scheme(name, settings, length)
        found = explained(scheme, name, inputs)
        facts = {"auto": found.backend, "why": found.why}
        facts["multiply_adds"] = {PLAIN: limit.multiply_adds(None, inputs.query, training)}
        if found.backend == NATIVE.name:
            facts["multiply_adds"][NATIVE.name] = _multiply_adds(scheme, name, inputs, found.computed)
    makes: dict[str, Make] = {PLAIN: inputs.plain}
    for backend in dict.fromkeys(facts["auto"] if backend == AUTO else backend for backend in backends):
        makes[backend] = partial(attention_work, settings, name, length, inputs, backend)
    return Built(makes, facts)


def attention_work(
    settings: Settings, name: str, length: int, inputs: Inputs, backend: str, once: bool = False
) -> Work:
    """A call of `posenc.attention`, including the binding to positions and the addition to the input. With ``once``,
    both are done before, as a model does for all its layers.

    Raises LeftOutError, with the reason, if the backend refuses the call.
    """
    scheme = build_scheme(name, settings, length)
    refusals = {} if backend == AUTO else explained(scheme, name, inputs).refusals
    if backend in refusals:
        raise LeftOutError(refusals[backend])

    projected = projected_by_a_layer(scheme, inputs.query)
    ahead = _bound(scheme, name, inputs.query, projected) if once else None

    def attend() -> Tensor:
        query, encoding = ahead or _bound(scheme, name, inputs.query, projected)
        out = posenc.attention(query, inputs.key, inputs.value, encoding, is_causal=True, backend=backend)
        assert isinstance(out, Tensor)
        return out

    return inputs.work(attend, tuple(scheme.parameters()))


def explained(scheme: Scheme, name: str, inputs: Inputs) -> Explanation:
    """The backend that auto chooses for this call, and why the others do not apply."""
    with torch.set_grad_enabled(inputs.training):
        query, encoding = _bound(scheme, name, inputs.query, projected_by_a_layer(scheme, inputs.query))
        return posenc.explain(query, inputs.key, inputs.value, encoding, is_causal=True)


def _multiply_adds(scheme: Scheme, name: str, inputs: Inputs, computed: float) -> int:
    """The multiply-adds of the call, given the share of the visible pairs that is computed."""
    query, encoding = _bound(scheme, name, inputs.query, projected_by_a_layer(scheme, inputs.query))
    return limit.multiply_adds(encoding, query, inputs.training, computed)


def projected_by_a_layer(scheme: Scheme, query: Tensor) -> dict[str, Tensor]:
    """Projections for the scheme's features, of the queries instead of a hidden state. They belong to the layer and are
    not timed; the scheme's functions of them are."""
    return projected_at_random(scheme.features, query.detach().transpose(1, 2).flatten(2))


def _bound(scheme: Scheme, name: str, query: Tensor, projected: Projected) -> tuple[Tensor, Encoding]:
    """The queries after the add door, and the encoding."""
    length = query.size(2)
    encoding = scheme(positions_of(name, length, query.device), dtype=torch.promote_types(query.dtype, torch.float32))
    encoding = encoding.with_projected(projected) if encoding.wanted else encoding
    if not encoding.tables:
        return query, encoding
    # The queries stand for the input, which has the same size, so the time is the same.
    return encoding.add(query.view(1, length, -1)).view(query.shape), encoding


# -- rope -------------------------------------------------------------------------------------------------------------


def rotations(settings: Settings) -> Iterator[Group]:
    """The rotation of queries and keys alone, in each precision."""
    for dtype in settings.rotated_dtypes:
        yield Group(f"rope {dtype}", "rope", settings.rotated[2], partial(_rotations, settings, dtype), work=8)


def _rotations(settings: Settings, dtype: str) -> Built:
    device = torch.device(settings.device)
    generator = torch.Generator(device).manual_seed(0)
    drawn = torch.randn(2, *settings.rotated, generator=generator, device=device)
    query, key = drawn.to(getattr(torch, dtype))
    scheme = posenc.RoPE(settings.rotated[3])
    positions = Positions.arange(settings.rotated[2], device=device)
    encoding = scheme.tokens(positions)
    held = torch.empty_like(query), torch.empty_like(key)

    def ready(work: Work) -> Make:
        return lambda: work

    # A copy into existing memory shows the memory bandwidth; a clone also allocates.
    makes: dict[str, Make] = {
        CLONE: ready(lambda: (query.clone(), key.clone())),
        "copy into place": ready(lambda: (held[0].copy_(query), held[1].copy_(key))),
        "posenc": ready(lambda: encoding.rotate(query, key)),
        "posenc, bound in the call": ready(lambda: scheme.tokens(positions).rotate(query, key)),
    }
    makes |= peers.rotations(query, key)
    if settings.compiled:
        makes["posenc, compiled"] = lambda: peers.compiled(encoding.rotate, query, key)
        makes["transformers, compiled"] = lambda: peers.transformers_rotation(query, key, compile=True)
    return Built(makes, {"bytes": 2 * (query.nbytes + key.nbytes)})  # read and written


def in_attention(settings: Settings) -> Iterator[Group]:
    """RoPE in attention: its layouts, bound in the call and before, with a bias, and by backend."""
    for length, phase in itertools.product(settings.rotated_lengths, PHASES):
        build = partial(of_ways, settings, ROTATED, length, phase == "training")
        yield Group(f"rotated {phase}", "rope", length, build, work=3 + 6 * (length / 2048) ** 2)


def of_ways(settings: Settings, ways: Mapping[str, Way], length: int, training: bool) -> Built:
    """Plain attention and these competitors; ``takes`` has the backend of each."""
    inputs = Inputs.draw(settings, length, length, training)
    makes: dict[str, Make] = {PLAIN: inputs.plain}
    takes: dict[str, str] = {}
    work = {PLAIN: limit.multiply_adds(None, inputs.query, training)}
    for name, (scheme_name, backend, once) in ways.items():
        scheme = build_scheme(scheme_name, settings, length)
        found = explained(scheme, scheme_name, inputs)
        takes[name] = found.backend if backend == AUTO else backend
        if takes[name] == NATIVE.name:
            work[name] = _multiply_adds(scheme, scheme_name, inputs, found.computed)
        makes[name] = partial(attention_work, settings, scheme_name, length, inputs, backend, once)
    return Built(makes, {"takes": takes, "multiply_adds": work})


# -- busy -------------------------------------------------------------------------------------------------------------


def disturbances(settings: Settings) -> Iterator[Group]:
    """The same competitors on an idle machine, and while other processes keep every core busy."""
    for length, phase, busy in itertools.product(settings.busy_lengths, PHASES, (False, True)):
        build = partial(of_ways, settings, DISTURBED, length, phase == "training")
        kind = f"{'busy' if busy else 'quiet'} {phase}"
        yield Group(kind, "several", length, build, work=3 + 4 * (length / 2048) ** 2, busy=busy)


# -- the limit --------------------------------------------------------------------------------------------------------


def limits(settings: Settings) -> Iterator[Group]:
    """Matrix products, of which the fastest gives the processor's maximum of multiply-adds per second."""
    yield Group("limit", settings.dtype, max(settings.products), partial(_products, settings), work=2)


def _products(settings: Settings) -> Built:
    makes, work = limit.products(settings.dtype, settings.device, settings.products)
    return Built(makes, {"multiply_adds": work})


# -- peers ------------------------------------------------------------------------------------------------------------


def comparisons(settings: Settings) -> Iterator[Group]:
    """ALiBi, T5 and Shaw's keys, and other implementations of the same attention."""
    for length, phase, scheme in itertools.product(settings.peer_lengths, PHASES, PEER_SCHEMES):
        training = phase == "training"
        build = partial(compared, settings, scheme, length, training)
        yield Group(f"peers {phase}", scheme, length, build, work=4 + (4 if training else 1) * (length / 1024) ** 2)


def compared(settings: Settings, name: str, length: int, training: bool) -> Built:
    """Plain attention, posenc's, masks, FlexAttention, x-transformers."""
    inputs = Inputs.draw(settings, length, length, training)
    scheme = build_scheme(name, settings, length)
    auto = explained(scheme, name, inputs).backend
    rivals = peers.attentions(scheme, inputs)
    if not settings.compiled:
        rivals = {rival: make for rival, make in rivals.items() if rival != peers.FLEX}
    ours: Make = partial(attention_work, settings, name, length, inputs, AUTO)
    return Built({PLAIN: inputs.plain, "posenc": ours, **rivals}, {"auto": auto})


# -- decode -----------------------------------------------------------------------------------------------------------


def decodes(settings: Settings, schemes: tuple[str, ...]) -> Iterator[Group]:
    """One token against a cache, with each scheme."""
    for scheme in schemes:
        yield Group("decode", scheme, settings.cache, partial(decoded, settings, scheme), work=1)


def decoded(settings: Settings, name: str) -> Built:
    """Attention of one query to a cache, with and without positions. Keys in the cache are rotated already, unless the
    scheme needs raw keys."""
    inputs = Inputs.draw(settings, 1, settings.cache, training=False)
    query, key, value = inputs.query, inputs.key, inputs.value
    dtype = torch.promote_types(query.dtype, torch.float32)
    scheme = build_scheme(name, settings, settings.cache)
    known = positions_of(name, settings.cache, query.device)
    last = known[-1:]
    projected = projected_by_a_layer(scheme, key)
    features = scheme(known, doors=("score",)).with_projected(projected)  # a cache keeps those of keys
    of_query = {name: x[:, :, -1:] for name, x in features.query_features.items()}

    raw = scheme.needs_raw_keys
    keys, values = key, value
    if not raw:
        kept = scheme.tokens(known, dtype=dtype).with_features(features.key_features)
        with torch.no_grad():
            keys, values = kept.rotate_key(key), kept.rotate_value(value)

    def bound() -> Encoding:
        doors = ("rotate", "score", "value") if raw else ("score", "value")
        made = scheme(last, known, dtype=dtype, doors=doors)
        return made.with_features(of_query, features.key_features) if made.wanted else made

    def attend() -> Tensor:
        token = scheme.tokens(last, dtype=dtype).with_features(of_query)
        mine = token.add(query.view(1, 1, -1)).view(query.shape) if token.tables else query
        if not raw:
            # The query also stands for the new token's key and value.
            mine, _, _ = token.rotate_query(mine), token.rotate_key(query), token.rotate_value(query)
        out = posenc.attention(mine, keys, values, bound(), is_causal=True)
        assert isinstance(out, Tensor)
        return out if raw else token.rotate_output(out)

    makes: dict[str, Make] = {
        PLAIN: lambda: inputs.work(lambda: F.scaled_dot_product_attention(query, key, value)),
        "posenc": lambda: inputs.work(attend),
    }
    with torch.no_grad():
        wide = query if raw else scheme.tokens(last, dtype=dtype).with_features(of_query).rotate_query(query)
        auto = posenc.explain(wide, keys, values, bound(), is_causal=True).backend
    return Built(makes, {"auto": auto})
