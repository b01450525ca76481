"""``posenc read``: what a model does about positions, what a port of it must reproduce, and where a port differs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc.arguments import meant
from posenc.command.files import write_whole
from posenc.command.options import failed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from posenc.huggingface.reading import ModelPositions
    from posenc.positions.positions import Positions
    from posenc.scheme import Scheme
    from posenc.schemes.rope import RoPE

AFTER = ("query_after", "key_after")
PLACES = (0, 1, 2, 5, 37, 300, 2000, 4095)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    read = commands.add_parser(
        "read",
        help="say what a model does about positions",
        description="Says layer by layer what a model of transformers does about positions: which channels turn, how "
        "fast, windows, layers without positions, scales and sinks. No weights are needed. The exit code is 1 if the "
        "model is not read, or a port differs.",
    )
    read.add_argument("model", metavar="MODEL", help="a folder, a config.json, or a family's name, such as llama")
    read.add_argument("--part", help="the part of a model of several: text, vision, encoder or decoder")
    files = read.add_mutually_exclusive_group()
    files.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw each kind of layers, as an SVG")
    files.add_argument("--golden", type=Path, metavar="FILE", help="write queries and keys before and after, as JSON")
    files.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="compare such a file, in which query_after and key_after are those of a port, and name the mistake",
    )
    read.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints, writes or compares. Returns 1 if a port differs."""
    from transformers import CONFIG_MAPPING

    from posenc.huggingface.config import scheme_from_config

    given: Any = arguments.model
    if not Path(given).exists():
        if given not in CONFIG_MAPPING:
            near = meant(given, tuple(CONFIG_MAPPING))
            raise ValueError(f"MODEL must be a folder, a config.json or a family of transformers, got {given!r}{near}")
        given = {"model_type": given}
    said = scheme_from_config(given, arguments.part)
    if arguments.picture is not None:
        if arguments.picture.suffix.lower() != ".svg":
            raise ValueError(f"--picture must end with .svg, which browsers show, got {arguments.picture.name!r}")
        from posenc.command.picture import picture

        write_whole(arguments.picture, picture(said, groups(said)).encode())
        print(f"{arguments.picture}: {len(groups(said))} kinds of layers")
        return 0
    if arguments.against is not None:
        return _compare(said, arguments.against)
    if arguments.golden is not None:
        write_whole(arguments.golden, (json.dumps(golden(said)) + "\n").encode())
        print(f"{arguments.golden}: {len(groups(said))} kinds of layers at positions {', '.join(map(str, PLACES))}")
        return 0
    print(said)
    for layers, scheme, _ in groups(said):
        print(f"\nscheme of layer {layers[0]}\n  {code(scheme)}")
    return 0


def groups(said: ModelPositions) -> list[tuple[list[int], Scheme, Any]]:
    """The layers that do the same, with their scheme and what else they have."""
    found: dict[str, tuple[list[int], Scheme, Any]] = {}
    for n, ((scheme, window), layer) in enumerate(zip(said.schedule, said.layers, strict=True)):
        found.setdefault(f"{scheme!r} {window} {layer}", ([], scheme, (window, layer)))[0].append(n)
    return list(found.values())


def code(scheme: Scheme) -> str:
    """The line of posenc that makes a scheme."""
    return " + ".join(f"posenc.{part!r}" for part in scheme.parts)


def golden(said: ModelPositions) -> dict[str, Any]:
    """What a port must reproduce: for each kind of layers random queries and keys of one head, in float64, before and
    after the model's positions. ValueError for schemes that do not only turn or scale them."""
    rows = []
    if said.input is not None:
        added = type(said.input).__name__
        raise ValueError(
            f"golden numbers are of rotated queries and keys, and {said.model_type} adds {added} to its input"
        )
    for layers, scheme, (window, layer) in groups(said):
        _check(scheme, layers)
        positions, (query, key) = _positions(scheme), _vectors(_head_dim(said, scheme))
        after = _after(scheme, positions, query, key)
        row: dict[str, Any] = {"layers": layers, "scheme": code(scheme)}
        row["window"] = window if isinstance(window, int | None) else str(window)
        row |= {"scale": layer.scale, "softcap": layer.softcap, "sinks": layer.sinks}
        row["positions"] = positions.coords[0].tolist()
        names = ("query_before", "key_before", *AFTER)
        rows.append(row | {name: x[0, 0].tolist() for name, x in zip(names, (query, key, *after), strict=True)})
    return {"model_type": said.model_type, "kinds": rows}


def _check(scheme: Scheme, layers: list[int]) -> None:
    from posenc.schemes.nope import NoPE
    from posenc.schemes.query_scale import QueryScale
    from posenc.schemes.rope import RoPE

    for part in scheme.parts:
        if not isinstance(part, (NoPE, QueryScale, RoPE)):
            raise ValueError(
                f"golden numbers are of rotated queries and keys, and layer {layers[0]} has {type(part).__name__}"
            )


def _head_dim(said: ModelPositions, scheme: Scheme) -> int:
    """That of the scheme, else of any other layer's, else 16: schemes that do not turn take any."""
    parts: list[Any] = [*scheme.parts, *(part for each, _ in said.schedule for part in each.parts)]
    return next((int(part.head_dim) for part in parts if hasattr(part, "head_dim")), 16)


def _positions(scheme: Scheme, offset: int = 0) -> Positions:
    """The places; of several axes, each with others."""
    import torch

    from posenc.positions.positions import Positions

    line = torch.tensor(PLACES) + offset
    axes = max(getattr(part, "axes", 1) for part in scheme.parts)
    coords = line if axes == 1 else torch.stack([line // (axis + 1) for axis in range(axes)], -1)
    return Positions(coords[None], order=torch.arange(len(PLACES))[None])


def _vectors(head_dim: int) -> tuple[Tensor, Tensor]:
    import torch

    draw = torch.Generator().manual_seed(47)
    both = torch.randn(2, 1, 1, len(PLACES), head_dim, generator=draw, dtype=torch.float64)
    return both[0], both[1]


def _after(scheme: Scheme, positions: Positions, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    import torch

    return scheme.tokens(positions, dtype=torch.float64).rotate(query, key)


def _compare(said: ModelPositions, path: Path) -> int:
    """Compares a port's file, prints a line for each kind of layers, and returns 1 if one differs."""
    import torch

    expected = golden(said)["kinds"]
    rows = _read(path, expected)
    wrong = 0
    for row, right, (layers, scheme, _) in zip(rows, expected, groups(said), strict=True):
        theirs = tuple(
            torch.tensor(row[name], dtype=torch.float64)[None, None] for name in ("query_after", "key_after")
        )
        query, key = _vectors(theirs[0].size(-1))
        name = f"layer {layers[0]} and {len(layers) - 1} more" if len(layers) > 1 else f"layer {layers[0]}"
        if _equal(theirs, _after(scheme, _positions(scheme), query, key)):
            print(f"{name}: equal")
            continue
        wrong += 1
        found = [words for words, made in _mistakes(said, scheme, query, key) if _equal(theirs, made)]
        off = max(
            float((torch.tensor(right[part], dtype=torch.float64) - x[0, 0]).abs().max())
            for part, x in zip(AFTER, theirs, strict=True)
        )
        print(f"{name}: {' or '.join(found) or 'no mistake that is known'} (off by {off:.3g}; right: {code(scheme)})")
    return failed(f"{path} differs in {wrong} of {len(rows)} kinds of layers") if wrong else 0


def _read(path: Path, expected: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The kinds of layers of a port's file, of the shapes that are expected."""
    import torch

    from posenc.huggingface.reading import BYTES

    if path.stat().st_size > BYTES:
        raise ValueError(f"{path} must have at most {BYTES} bytes, and has {path.stat().st_size}")
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["kinds"]
        layers = [row["layers"] for row in rows]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} must be a file that --golden wrote, with a port's numbers: {error!r}") from None
    if layers != [row["layers"] for row in expected]:
        raise ValueError(f"{path} must have the layers {[row['layers'] for row in expected]}, got {layers}")
    for row, right in zip(rows, expected, strict=True):
        for name in ("positions", "query_before", "key_before"):
            if name in row and row[name] != right[name]:
                raise ValueError(f"{name} of {path} must be what --golden wrote: a port computes what comes after")
    for row, right in zip(rows, expected, strict=True):
        for name in AFTER:
            try:
                shape = tuple(torch.tensor(row[name], dtype=torch.float64).shape)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise ValueError(
                    f"{path} must have numbers in {name} of layer {right['layers'][0]}: {error!r}"
                ) from None
            if shape != (len(PLACES), len(right[name][0])):
                raise ValueError(f"{name} of {path} must be {(len(PLACES), len(right[name][0]))}, got {shape}")
    return list(rows)


def _equal(theirs: tuple[Tensor, ...], ours: tuple[Tensor, ...]) -> bool:
    """Whether a port's numbers are right, whose phases, cos and sin may be of float32: off by p 2^-22 + 2^-20."""
    import torch

    bound = (torch.tensor(PLACES, dtype=torch.float64) * 2**-22 + 2**-20)[:, None]
    return all(
        bool(((x - y).abs() <= bound * y.norm(dim=-1, keepdim=True)).all()) for x, y in zip(theirs, ours, strict=True)
    )


def _mistakes(said: ModelPositions, scheme: Scheme, query: Tensor, key: Tensor) -> Iterator[tuple[str, Any]]:
    """Mistakes of ports, in words, with the queries and keys that each gives."""
    from posenc.schemes.nope import NoPE
    from posenc.schemes.rope import RoPE

    places = _positions(scheme)
    right = _after(scheme, places, query, key)
    rope = next((part for part in scheme.parts if isinstance(part, RoPE)), None)
    for offset in (1, -1) if rope is not None and rope.axes == 1 else (1,):
        yield f"positions off by {offset:+d}", _after(scheme, _positions(scheme, offset), query, key)
    yield "nothing turns or grows", (query, key)
    yield "keys do not turn", (right[0], key)
    yield "queries do not turn", (query, right[1])
    for layers, other, _ in groups(said):
        if other is not scheme and _head_dim(said, other) == query.size(-1):
            yield f"what layer {layers[0]} does", _after(other, _positions(other), query, key)
    for part in scheme.parts if len(scheme.parts) > 1 else ():
        rest = [each for each in scheme.parts if each is not part and not isinstance(each, NoPE)]
        yield f"without {type(part).__name__}", _after(rest[0], places, query, key)
    if rope is None:
        return
    for words, other in _rotations(rope):
        made = [other if part is rope else part for part in scheme.parts]
        changed = made[0]
        for part in made[1:]:
            changed = changed + part
        yield words, _after(changed, places, query, key)


def _rotations(rope: RoPE) -> Iterator[tuple[str, Scheme]]:
    """Rotations that ports confuse with this one."""
    from posenc.huggingface.asking import like
    from posenc.huggingface.variants import Frequencies
    from posenc.rotation.phases import frequencies

    found, factor = rope.frequencies()
    theta, scale = tuple(found[0].tolist()), float(factor)
    other = "half" if rope.layout == "interleaved" else "interleaved"
    yield f"{other} pairs for {rope.layout}", like(rope, layout=other)
    yield "turned the other way", like(rope, scaling=Frequencies(tuple(-each for each in theta), scale))
    if scale != 1.0:
        yield "the factor of cos and sin twice", like(rope, scaling=Frequencies(theta, scale**2))
        yield "without the factor of cos and sin", like(rope, scaling=Frequencies(theta, 1.0))
    if rope.scaling is not None:
        yield "without the scaling", like(rope, scaling=None)
    room = rope.head_dim - rope.first_channel
    if rope.rotary_dim < room and room % 2 == 0 and rope.allocation is None:
        yield f"all {room} channels turned", like(rope, rotary_dim=room, scaling=None)
        wide = tuple(frequencies(room, rope.base)[: rope.rotary_dim // 2].tolist())
        yield f"the frequencies of {room} channels on {rope.rotary_dim}", like(rope, scaling=Frequencies(wide, scale))
    if rope.first_channel and rope.allocation is None:
        yield "the first channels for the last", like(rope, first_channel=0)
    elif rope.rotary_dim < room:
        yield "the last channels for the first", like(rope, first_channel=room - rope.rotary_dim)
