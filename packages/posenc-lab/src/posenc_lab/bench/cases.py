"""Builds the benchmark's groups of competitors, which are timed in interleaved rounds with a baseline."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import posenc
from posenc.backends.choose import BACKENDS, Explanation
from posenc.encoding.context import Projected, projected_at_random
from posenc.encoding.encoding import Encoding
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.catalog import catalog, entries_of, scheme_from_names
from posenc.schemes.entry import Entry, Shape
from posenc.schemes.shaw import Shaw
from posenc_lab.bench.measure import Inputs, LeftOutError, Make, Work
from posenc_lab.bench.settings import AUTO, Settings

PLAIN = "plain"  # causal scaled_dot_product_attention, without positions: the baseline
PHASES = ("forward", "training")
SEEN = ("causal", "both ways")
SHAW_KEYS = "shaw_keys"  # without the values of the catalog's shaw
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
    probe: Callable[[str, int], Work]
    """Sets up a competitor at another length, which tells the calls that would need too much memory or time."""


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


def prices(settings: Settings) -> Iterator[Group]:
    """A group per length, phase and scheme, short ones first."""
    backends = settings.backends or (AUTO, *(backend.name for backend in BACKENDS))
    schemes = settings.schemes or all_schemes()
    for length, phase, scheme in itertools.product(settings.lengths, PHASES, schemes):
        training = phase == "training"
        build = partial(priced, settings, scheme, length, training, backends)
        work = 1 + (3.5 if training else 1) * (length / 2048) ** 2
        yield Group(f"price {phase}", scheme, length, build, work, partial(probed, settings, scheme, training))


def regrets(settings: Settings) -> Iterator[Group]:
    """A group per length, phase, direction and scheme, with encodings bound before, short ones first."""
    backends = settings.backends or (AUTO, *(backend.name for backend in BACKENDS))
    schemes = settings.schemes or all_schemes()
    for length, phase, seen, scheme in itertools.product(settings.lengths, PHASES, SEEN, schemes):
        training, is_causal = phase == "training", seen == "causal"
        build = partial(priced, settings, scheme, length, training, backends, once=True, is_causal=is_causal)
        probe = partial(probed, settings, scheme, training, once=True, is_causal=is_causal)
        work = 1 + (3.5 if training else 1) * (length / 2048) ** 2
        yield Group(f"regret {phase} {seen}", scheme, length, build, work, probe)


def probed(
    settings: Settings,
    name: str,
    training: bool,
    backend: str,
    length: int,
    once: bool = False,
    is_causal: bool = True,
) -> Work:
    """The call at another length."""
    inputs = Inputs.draw(settings, length, length, training)
    return attention_work(settings, name, length, inputs, backend, once, is_causal)


def priced(
    settings: Settings,
    name: str,
    length: int,
    training: bool,
    backends: tuple[str, ...],
    once: bool = False,
    is_causal: bool = True,
) -> Built:
    """Plain attention and the scheme with these backends. Auto's choice is measured once, by its own name."""
    inputs = Inputs.draw(settings, length, length, training)
    facts: dict[str, Any] = {}
    if AUTO in backends:
        scheme = build_scheme(name, settings, length)
        try:
            found = explained(scheme, name, inputs, is_causal)
        except ValueError as error:  # of a scheme for keys up to the query
            return Built({PLAIN: inputs.plain, AUTO: partial(_left_out, str(error))}, {"auto": AUTO, "why": str(error)})
        facts = {"auto": found.backend, "why": found.why}
    makes: dict[str, Make] = {PLAIN: inputs.plain}
    for backend in dict.fromkeys(facts["auto"] if backend == AUTO else backend for backend in backends):
        makes[backend] = partial(attention_work, settings, name, length, inputs, backend, once, is_causal)
    return Built(makes, facts)


def _left_out(why: str) -> Work:
    raise LeftOutError(why)


def attention_work(
    settings: Settings, name: str, length: int, inputs: Inputs, backend: str, once: bool = False, is_causal: bool = True
) -> Work:
    """A call of `posenc.attention`, including the binding to positions and the addition to the input. With ``once``,
    both are done before, as a model does for all its layers.

    Raises LeftOutError, with the reason, if the backend refuses the call.
    """
    scheme = build_scheme(name, settings, length)
    refusals = {} if backend == AUTO else explained(scheme, name, inputs, is_causal).refusals
    if backend in refusals:
        raise LeftOutError(refusals[backend])

    projected = projected_by_a_layer(scheme, inputs.query)
    ahead = bound(scheme, name, inputs.query, projected) if once else None

    def attend() -> Tensor:
        query, encoding = ahead or bound(scheme, name, inputs.query, projected)
        out = posenc.attention(query, inputs.key, inputs.value, encoding, is_causal=is_causal, backend=backend)
        assert isinstance(out, Tensor)
        return out

    return inputs.work(attend, tuple(scheme.parameters()))


def explained(scheme: Scheme, name: str, inputs: Inputs, is_causal: bool = True) -> Explanation:
    """The backend that auto chooses for this call, and why the others do not apply."""
    with torch.set_grad_enabled(inputs.training):
        query, encoding = bound(scheme, name, inputs.query, projected_by_a_layer(scheme, inputs.query))
        return posenc.explain(query, inputs.key, inputs.value, encoding, is_causal=is_causal)


def projected_by_a_layer(scheme: Scheme, query: Tensor) -> dict[str, Tensor]:
    """Projections for the scheme's features, of the queries instead of a hidden state. They belong to the layer and are
    not timed; the scheme's functions of them are."""
    return projected_at_random(scheme.features, query.detach().transpose(1, 2).flatten(2))


def bound(scheme: Scheme, name: str, query: Tensor, projected: Projected) -> tuple[Tensor, Encoding]:
    """The queries after the add door, and the encoding."""
    length = query.size(2)
    encoding = scheme(positions_of(name, length, query.device), dtype=torch.promote_types(query.dtype, torch.float32))
    encoding = encoding.with_projected(projected) if encoding.wanted else encoding
    if not encoding.tables:
        return query, encoding
    # The queries stand for the input, which has the same size, so the time is the same.
    return encoding.add(query.view(1, length, -1)).view(query.shape), encoding
