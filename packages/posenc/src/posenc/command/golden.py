"""Golden numbers: what a port of a model must reproduce of its positions, and which mistake a port's numbers show."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import posenc
from posenc.command.options import failed
from posenc.huggingface.asking import like
from posenc.huggingface.reading import BYTES, ModelPositions
from posenc.huggingface.variants import Frequencies
from posenc.positions.positions import Positions
from posenc.rotation.phases import PairRotation, frequencies
from posenc.rotation.scalings import PositionInterpolation, YaRN, blend, ntk
from posenc.scheme import Scheme
from posenc.schemes.mrope import dealt
from posenc.schemes.rope import RoPE
from posenc.schemes.sinusoidal import Sinusoidal

Both = tuple[Tensor, Tensor]

READ = ("RoPE", "QueryScale", "ALiBi", "DividedALiBi", "NoPE")
BEFORE, AFTER = ("query_before", "key_before"), ("query_after", "key_after", "scores", "rows")
CHANNELS = 2**15
"""The most channels of all kinds of layers whose numbers are written."""

BASES = (1e4, 1e5, 1.5e5, 5e5, 1e6, 5e6, 1e7)
"""Usual bases of frequencies."""

PLACES = (0, 1, 2, 5, 37, 301, 2003, 4095)
"""Positions, of which the larger ones are no numbers of bfloat16."""


def groups(said: ModelPositions) -> list[tuple[list[int], Scheme, Any]]:
    """The layers that do the same, with their scheme and what else they have, and then their indexers, with their
    rotation and themselves."""
    found: dict[str, tuple[list[int], Scheme, Any]] = {}
    indexers: dict[str, tuple[list[int], Scheme, Any]] = {}
    for n, ((scheme, window), layer) in enumerate(zip(said.schedule, said.layers, strict=True)):
        found.setdefault(f"{scheme!r} {window} {layer}", ([], scheme, (window, layer)))[0].append(n)
        if (indexer := layer.indexer) is not None and layer.indexer_of is None:
            indexers.setdefault(repr(indexer), ([], indexer.rotation, (None, indexer)))[0].append(n)
    return [*found.values(), *indexers.values()]


def is_indexer(layer: Any) -> bool:
    """Whether a group is of indexers."""
    return hasattr(layer, "top_k")


def code(scheme: Scheme) -> str:
    """The line of posenc that makes a scheme."""
    found = []
    for part in scheme.parts:
        place, name = type(part).__module__, type(part).__name__
        scaling = repr(getattr(part, "scaling", None))
        arguments = part.extra_repr().replace(f"scaling={scaling}", f"scaling=posenc.{scaling}")
        found.append(f"{'posenc' if hasattr(posenc, name) else place}.{name}({arguments})")
    return " + ".join(found)


def numbers(said: ModelPositions) -> dict[str, Any]:
    """What a port must reproduce, in float64: the rows that are added to the input, and for each kind of layers random
    queries and keys of one head, before and after the model's positions, and their scores before the mask, with the
    bias of the last head. What is learned is named instead. ValueError for other schemes."""
    record: dict[str, Any] = {"model_type": said.model_type}
    if said.input is not None:
        record["input"] = {"scheme": code(said.input), "positions": [*places_of(said)], **_learned(said.input)}
        if not _learned(said.input):
            record["input"]["rows"] = _table(said.input, 0)
    channels = sum(_head_dim(said, scheme) for _, scheme, _ in groups(said) if not _learned(scheme))
    if channels > CHANNELS:
        raise ValueError(
            f"golden numbers must be of at most {CHANNELS} channels in all, and {said.model_type} has {channels}"
        )
    kinds = record["kinds"] = []
    for layers, scheme, (window, layer) in groups(said):
        row: dict[str, Any] = {"layers": layers, "scheme": code(scheme), **_learned(scheme)}
        if is_indexer(layer):
            row |= {"part": "indexer", "heads": layer.num_heads, "top_k": layer.top_k}
        else:
            row["window"] = window if isinstance(window, int | None) else str(window)
            row |= {"scale": layer.scale, "softcap": layer.softcap, "sinks": layer.sinks}
        if not _learned(scheme):
            if others := [type(part).__name__ for part in scheme.parts if type(part).__name__ not in READ]:
                raise ValueError(f"golden numbers are of {', '.join(READ)}, and layer {layers[0]} has {others[0]}")
            positions, before = _positions(scheme), _vectors(_head_dim(said, scheme))
            after = _after(scheme.parts, positions, *before)
            scores = _scores(*after, _scale(layer, after), _bias(scheme, positions), getattr(layer, "softcap", None))
            count = len(places_of(said))
            row |= {"scale": _scale(layer, after), "positions": positions.coords[0, :count].tolist()}
            names = zip((*BEFORE, *AFTER), (*before, *after, *[scores] * (not is_indexer(layer))), strict=False)
            row |= {name: x[0, 0, :count, : count if name == "scores" else None] for name, x in names}
        kinds.append(row)
    return record


def places_of(said: ModelPositions) -> tuple[int, ...]:
    """The places that a table which is added to the input has rows for."""
    return tuple(place for place in PLACES if place < getattr(said.input, "max_positions", math.inf))


def _learned(scheme: Scheme) -> dict[str, str]:
    """What is said of a scheme with parameters."""
    return {"learned": "a port takes it from the weights"} if any(True for _ in scheme.parameters()) else {}


def _head_dim(said: ModelPositions, scheme: Scheme) -> int:
    """That of the scheme, else of any other layer's, else 16: schemes that do not turn take any."""
    parts: list[Any] = [*scheme.parts, *(part for each, _ in said.schedule for part in each.parts)]
    return next((int(part.head_dim) for part in parts if hasattr(part, "head_dim")), 16)


def _positions(scheme: Scheme, offset: int = 0) -> Positions:
    """The places; of several axes, each with others."""
    line = torch.tensor(PLACES) + offset
    axes = max(getattr(part, "axes", 1) for part in scheme.parts)
    coords = line if axes == 1 else torch.stack([line // (axis + 1) for axis in range(axes)], -1)
    return Positions(coords[None], order=torch.arange(len(PLACES))[None])


def _vectors(head_dim: int) -> Both:
    draw = torch.Generator().manual_seed(47)
    both = torch.randn(2, 1, 1, len(PLACES), head_dim, generator=draw, dtype=torch.float64)
    return both[0], both[1]


def _after(parts: Any, positions: Positions, query: Tensor, key: Tensor) -> Both:
    for part in parts:
        query, key = part.tokens(positions, dtype=torch.float64).rotate(query, key)
    return query, key


def _table(scheme: Any, offset: int) -> Tensor:
    table: Tensor = scheme.table(_positions(scheme, offset), dtype=torch.float64)[0]
    return table


def _scale(layer: Any, after: Both) -> float:
    return float(after[0].size(-1) ** -0.5 if layer.scale is None else layer.scale)


def _bias(scheme: Scheme, positions: Positions) -> Any:
    """What the last head of ALiBi adds to scores, else 0."""
    alibi: Any = next((part for part in scheme.parts if hasattr(part, "slopes")), None)
    if alibi is None:
        return 0.0
    zeros = torch.zeros(1, alibi.num_heads, len(PLACES), 2, dtype=torch.float64)
    return posenc.logits(zeros, zeros, alibi, query_positions=positions, key_positions=positions)[:, -1:]


def _scores(query: Tensor, key: Tensor, scale: float, bias: Any, cap: float | None) -> Tensor:
    scores = query @ key.mT * scale + bias
    return scores if cap is None else cap * (scores / cap).tanh()


def _rows(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries that have numbers, by name."""
    kinds = {f"kinds.{n}": row for n, row in enumerate(record["kinds"])}
    return kinds | ({"input": record["input"]} if "input" in record else {})


def written(record: dict[str, Any], path: Path) -> bytes:
    """JSON, or safetensors, whose metadata has the rest as JSON."""
    if path.suffix != ".safetensors":
        return (json.dumps(record, default=Tensor.tolist) + "\n").encode()
    from safetensors.torch import save

    every = {f"{name}.{each}": x for name, row in _rows(record).items() for each, x in row.items()}
    tensors = {name: x.clone().contiguous() for name, x in every.items() if isinstance(x, Tensor)}
    return save(tensors, {"posenc": json.dumps(record, default=lambda _: None)})


def _load(path: Path) -> dict[str, Any]:
    """What `written` wrote, with numbers from a port."""
    if path.suffix != ".safetensors":
        return dict(json.loads(path.read_text(encoding="utf-8")))
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            record = dict(json.loads((file.metadata() or {})["posenc"]))
            for name, row in _rows(record).items():
                row |= {x: file.get_tensor(at) for x in (*BEFORE, *AFTER) if (at := f"{name}.{x}") in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    return record


def _read(path: Path, expected: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries of a port's file, in float64 and of the shapes that are expected."""
    if path.stat().st_size > BYTES:
        raise ValueError(f"{path} must have at most {BYTES} bytes, and has {path.stat().st_size}")
    try:
        record = _load(path)
        rows, layers = _rows(record), [row["layers"] for row in record["kinds"]]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} must be a file that --golden wrote, with a port's numbers: {error!r}") from None
    if layers != (wanted := [row["layers"] for row in expected["kinds"]]):
        raise ValueError(f"{path} must have the layers {wanted}, got {layers}")
    for at, right in _rows(expected).items():
        where = "the input" if at == "input" else f"layer {right['layers'][0]}"
        row = rows.get(at, {})
        if not isinstance(row, dict):
            raise ValueError(f"{path} must have an object for {where}, got {row!r}")
        for name in (each for each in (*BEFORE, *AFTER) if each in right):
            if name not in row and name in (*BEFORE, "scores"):
                continue
            try:
                row[name] = torch.as_tensor(row[name], dtype=torch.float64)
            except (KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
                raise ValueError(f"{path} must have numbers in {name} of {where}: {error!r}") from None
            if row[name].shape != right[name].shape:
                raise ValueError(f"{name} of {path} must be {tuple(right[name].shape)}, got {tuple(row[name].shape)}")
            if not bool(row[name].isfinite().all()):
                at_row, channel = torch.nonzero(~row[name].isfinite())[0].tolist()
                raise ValueError(f"{name} of {path} is not finite: row {at_row} has {row[name][at_row, channel]}")
            if name in BEFORE and not bool(((row[name] - right[name]).abs() <= 2**-22 * right[name].abs()).all()):
                raise ValueError(f"{name} of {path} must be what --golden wrote: a port computes what comes after")
        if row.get("positions") != right.get("positions"):
            raise ValueError(f"positions of {path} must be what --golden wrote: a port computes what comes after")
    return rows


def compare(said: ModelPositions, path: Path) -> int:
    """Compares a port's file, prints a line for each kind of layers, and returns 1 if one differs."""
    expected = numbers(said)
    rows, kinds, wrong = _read(path, expected), groups(said), 0
    for n, (at, right) in enumerate(_rows(expected).items()):
        name, scheme = "input", said.input
        if at != "input":
            layers, scheme, (_, layer) = kinds[n]
            name = f"layer {layers[0]}" + (f" and {len(layers) - 1} more" if len(layers) > 1 else "")
            name = f"the indexer of {name}" if is_indexer(layer) else name
        assert scheme is not None
        off = {x: float((rows[at][x] - right[x]).abs().max()) for x in AFTER if x in right and x in rows[at]}
        differ = [x for x in off if not _equal(rows[at], {x: right[x]}, right)]
        if not differ:
            print(f"{name}: {'learned, and not compared' if 'learned' in right else 'equal'}")
            continue
        wrong += 1
        if at == "input":
            made: Any = ((words, {"rows": x}) for words, x in _of_input(scheme))
        elif differ == ["scores"]:
            made = ((words, {"scores": x[0, 0]}) for words, x in _of_scores(scheme, layer, right))
        else:
            both = _mistakes(said, scheme, *_vectors(right["key_before"].size(-1)))
            made = ((words, {"query_after": x[0, 0], "key_after": y[0, 0]}) for words, (x, y) in both)
        found = [*dict.fromkeys(words for words, each in made if _equal(rows[at], each, right, " cos" in words))]
        largest = max(off[x] for x in differ)
        print(
            f"{name}: {' or '.join(found) or 'no mistake that is known'} (off by {largest:.3g}; right: {code(scheme)})"
        )
    return failed(f"{path} differs in {wrong} of {len(kinds)} kinds of layers") if wrong else 0


def _equal(theirs: Any, made: dict[str, Tensor], right: Any, coarse: bool = False) -> bool:
    """Whether a port's numbers are these, whose phases, cos and sin may be of float32: off by p 2^-22 + 2^-20. With
    ``coarse`` cos and sin are of fewer bits, of which far from 0 float32's phases can change the last."""
    count = len(theirs[next(iter(made))])
    places = torch.tensor(PLACES[:count], dtype=torch.float64)
    bound = places * 2**-22 + 2**-20 + (2**-7 * (places > 100) if coarse else 0)
    for name, x in ((name, x[:count]) for name, x in made.items()):
        size = x.norm(dim=-1) if name != "rows" else torch.ones_like(places)
        most = (bound * size)[:, None]
        if name == "scores":
            size = right["query_after"].norm(dim=-1)[:, None] * right["key_after"].norm(dim=-1)
            most = right["scale"] * size * (bound[:, None] + bound) + 2**-20 * x.abs()
        if not bool(((theirs[name] - x).abs() <= most).all()):
            return False
    return True


def _of_input(scheme: Scheme) -> Iterator[tuple[str, Tensor]]:
    """Mistakes of what is added to the input."""
    assert isinstance(scheme, Sinusoidal)
    start = getattr(scheme, "offset", 0)
    for offset in sorted({1, -1, -start} - {0}):
        yield f"positions off by {offset:+d}", _table(scheme, offset)
    layouts: tuple[Any, ...] = ("interleaved", "concatenated", "tensor2tensor")
    for layout in (each for each in layouts if each != scheme.layout):
        yield f"{layout} for {scheme.layout}", _table(Sinusoidal(scheme.dim, scheme.base, layout), start)
    for base in (each for each in BASES if each != scheme.base):
        yield f"a base of {base:.7g}", _table(Sinusoidal(scheme.dim, base, scheme.layout), start)


def _of_scores(scheme: Scheme, layer: Any, right: Any) -> Iterator[tuple[str, Tensor]]:
    """Mistakes of scores, where queries and keys are right."""
    places = _positions(scheme)
    both = right["query_after"][None, None], right["key_after"][None, None]
    scale, bias = right["scale"], _bias(scheme, places)
    plain = both[0].size(-1) ** -0.5
    scales = {"no scale": 1.0, "the scale twice": scale**2, "a scale of 1/sqrt(head_dim)": plain}
    parts: list[Any] = [*scheme.parts]
    for rope in (part for part in parts if hasattr(part, "frequencies")):
        factor = _theta(rope, places)[1]
        scales |= {"the factor of cos and sin in the scale too": scale * factor**2, "the factor once": scale / factor}
    for words, other in scales.items():
        yield words, _scores(*both, other, bias, layer.softcap)
    if layer.softcap is not None:
        yield "without the softcap", _scores(*both, scale, bias, None)
    for alibi in (part for part in parts if hasattr(part, "slopes")):
        last = [*alibi.slopes, alibi.slopes[-1]][-3:]
        times = {"without ALiBi": 0.0, "its bias the other way": -1.0, "its bias times the scale": scale}
        times |= {"its slopes off by a head": last[0] / last[1], "slopes 2^(-8h/H)": 2.0**-8 / last[1]}
        times["its bias not divided"] = math.sqrt(getattr(alibi, "head_dim", 1))
        for words, many in times.items():
            yield words, _scores(*both, scale, bias * many, layer.softcap)


def _mistakes(said: ModelPositions, scheme: Scheme, query: Tensor, key: Tensor) -> Iterator[tuple[str, Both]]:
    """Mistakes of ports, in words, with the queries and keys that each gives."""
    places, parts = _positions(scheme), list(scheme.parts)
    right = _after(parts, places, query, key)
    rope = next((part for part in parts if isinstance(part, RoPE)), None)
    for offset in (1, -1) if rope is not None and rope.axes == len(parts) == 1 else (1,):  # others refuse -1
        moved = _after(parts, _positions(scheme, offset), query, key)
        yield f"positions off by {offset:+d}", moved
        yield f"positions of keys off by {offset:+d}", (right[0], moved[1])
    yield "nothing turns or grows", (query, key)
    yield "keys do not turn", (right[0], key)
    yield "queries do not turn", (query, right[1])
    for layers, other, (_, layer) in groups(said):
        if other is not scheme and _head_dim(said, other) == query.size(-1):
            yield (
                f"what {'the indexer of ' * is_indexer(layer)}layer {layers[0]} does",
                _after(other.parts, _positions(other), query, key),
            )
    for part in parts if len(parts) > 1 else ():
        yield f"without {type(part).__name__}", _after([x for x in parts if x is not part], places, query, key)
    if rope is None:
        return
    query, key = _after([part for part in parts if part is not rope], places, query, key)
    for words, other in _rotations(said, rope, places):
        yield words, _after([other], places, query, key)
    for words, turned in _rounded(rope, places):
        yield words, (turned(query), turned(key))


def _theta(rope: RoPE, places: Positions) -> tuple[Tensor, float]:
    """The frequency of each pair, and the factor of cos and sin."""
    theta, factor = rope.frequencies(lengths=places.lengths if rope.needs_lengths else None)
    return theta[0], float(factor)


def _rounded(rope: RoPE, places: Positions) -> Iterator[tuple[str, Any]]:
    """The rotation in half precision."""
    theta, factor = _theta(rope, places)
    p = places.coords[0].reshape(len(PLACES), -1)[:, list(rope.allocation or [0])]
    for dtype in (torch.bfloat16, torch.float16):
        exact, near = p * theta, p.to(dtype)
        angles = {"positions": near * theta, "angles": (near * theta.to(dtype)).double(), "cos and sin": exact}
        angles |= {"inv_freq": p * theta.to(dtype).double(), "exact angles": exact.to(dtype).double()}
        for words, angle in angles.items():
            made = PairRotation.by(
                angle[None], angle, torch.float64, rope.layout, rope.head_dim, rope.first_channel, factor
            )
            rounded = replace(made, cos=made.cos.to(dtype).double(), sin=made.sin.to(dtype).double())
            name = f"{words} rounded to {str(dtype)[6:]}"
            yield from [(name, made)] * (words != "cos and sin")
            yield name if words == "cos and sin" else f"{name}, and cos and sin", rounded


def _rotations(said: ModelPositions, rope: RoPE, places: Positions) -> Iterator[tuple[str, RoPE]]:
    """Rotations that ports confuse with this one."""
    found, scale = _theta(rope, places)
    theta, plain = tuple(found.tolist()), frequencies(2 * len(found), rope.base)
    other = "half" if rope.layout == "interleaved" else "interleaved"
    yield f"{other} pairs for {rope.layout}", like(rope, layout=other)
    yield "turned the other way", like(rope, scaling=Frequencies(tuple(-each for each in theta), scale))
    if scale != 1.0:
        yield "the factor of cos and sin twice", like(rope, scaling=Frequencies(theta, scale**2))
        yield "without the factor of cos and sin", like(rope, scaling=Frequencies(theta, 1.0))
    if rope.scaling is not None:
        yield "without the scaling", like(rope, scaling=None)
    if isinstance(rope.scaling, YaRN):
        usual = 0.1 * math.log(rope.scaling.factor) + 1
        yield f"a factor of {usual:.4g} of cos and sin", like(rope, scaling=Frequencies(theta, usual))
        mixed = blend(ntk(plain, rope.scaling.factor), plain / rope.scaling.factor, rope.scaling._gamma(plain))
        yield "NTK's base for the fast pairs", like(rope, scaling=Frequencies(tuple(mixed.tolist()), scale))
    ropes = [(at[0], part) for at, scheme, _ in groups(said) for part in scheme.parts if isinstance(part, RoPE)]
    named: list[tuple[str, float, Any]] = []
    for layer, each in ropes:
        if each is not rope:
            named.append((f"the base of layer {layer}", each.base, rope.scaling))
            named.append((f"the scaling of layer {layer}", rope.base, each.scaling))
            named.append((f"the base and scaling of layer {layer}", each.base, each.scaling))
    bases = {rope.base, *(each.base for _, each in ropes)}
    named += [(f"a base of {base:.7g}", base, rope.scaling) for base in BASES if base not in bases]
    named += [(f"frequencies divided by {by:g}", rope.base, PositionInterpolation(by)) for by in (2.0, 4.0, 8.0, 16.0)]
    for words, base, scaling in named:
        with suppress(ValueError):  # of scalings for another number of pairs
            theirs, times = _theta(RoPE(2 * len(theta), base, scaling=scaling), places)
            yield words, like(rope, scaling=Frequencies(tuple(theirs.tolist()), times))
    turning = 2 * sum(each != 0 for each in theta)
    if 0 < turning < 2 * len(theta):
        some = Frequencies(theta[: turning // 2], scale)
        yield f"pairs within the first {turning} channels", like(rope, rotary_dim=turning, scaling=some)
        yield f"only the first {turning} channels turned", like(rope, rotary_dim=turning, scaling=None)
    axes, room = rope.allocation, rope.head_dim - rope.first_channel
    for width in (room // 4, room // 2, 3 * room // 4) if axes is None else ():
        if width % 2 == 0 and 0 < width < rope.rotary_dim:
            yield f"only the first {width} channels turned", like(rope, rotary_dim=width, scaling=None)
            some = Frequencies(theta[: width // 2], scale)
            yield f"pairs within the first {width} channels", like(rope, rotary_dim=width, scaling=some)
    if rope.rotary_dim < room and room % 2 == 0:
        more = {} if axes is None else {"allocation": [*axes, *[0] * (room // 2 - len(axes))]}
        yield f"all {room} channels turned", like(rope, rotary_dim=room, scaling=None, **more)
        wide = tuple(frequencies(room, rope.base)[: rope.rotary_dim // 2].tolist())
        yield f"the frequencies of {room} channels on {rope.rotary_dim}", like(rope, scaling=Frequencies(wide, scale))
    if axes is not None:
        yield "the time axis for all pairs", like(rope, allocation=[0] * len(axes))
        yield "row and column swapped", like(rope, allocation=[(0, 2, 1)[axis] for axis in axes])
        yield "axes in sections", like(rope, allocation=sorted(axes))
        yield "axes interleaved", like(rope, allocation=dealt("interleaved", *(axes.count(axis) for axis in range(3))))
    if rope.first_channel:
        yield "the first channels for the last", like(rope, first_channel=0)
    elif rope.rotary_dim < room:
        yield "the last channels for the first", like(rope, first_channel=room - rope.rotary_dim)
    if rope.rotary_dim < rope.head_dim and rope.allocation is None:  # an indexer beside an attention of another layout
        first, where = (0, "first") if rope.first_channel else (rope.head_dim - rope.rotary_dim, "last")
        yield f"{other} pairs of the {where} channels", like(rope, layout=other, first_channel=first)
