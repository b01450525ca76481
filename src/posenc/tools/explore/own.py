"""Collects the user's own schemes, and compositions, as data for the page: like an entry of the catalog, with the
numbers of the scheme in place of its mathematics."""

import inspect
from typing import Any

import torch
from torch import Tensor

import posenc
from posenc.encoding.encoding import Encoding
from posenc.scheme import Scheme
from posenc.schemes.catalog import CATALOG, entries_of, scheme_from_names
from posenc.schemes.entry import Entry, Shape
from posenc.tools.explore import data
from posenc.tools.explore.seen import seen
from posenc.tools.laws.table import audit

TOKENS = 64
SIDE = 9  # patches to a side, of a scheme for images


def shape_of(axes: int) -> Shape:
    """The model that own schemes are built for: as wide as the sentence's of the page."""
    grids = {1: None, 2: (SIDE, SIDE), 3: (SIDE, SIDE, SIDE)}
    return Shape(dim=64, num_heads=4, head_dim=16, max_positions=SIDE * SIDE, grid=grids[axes])


def effect(names: str) -> dict[str, Any]:
    """What the scheme does to every two tokens, as `seen`."""
    return seen(built(names), names)


def own(names: str) -> dict[str, Any]:
    """An entry for the page of ``"my.py:MyScheme"`` or ``"rope+alibi"``: its laws, measured here, and as ``own`` its
    Python and its numbers. ValueError for a name that cannot be read."""
    entries = entries_of(names)
    scheme = built(names)
    shape = shape_of(_axes(entries))
    learned = sum(parameter.numel() for parameter in scheme.parameters())
    sizes = ("dim", "num_heads", "head_dim", "max_positions")
    return {
        "name": names,
        "title": " + ".join(entry.title for entry in entries),
        "signature": " + ".join(entry.signature for entry in entries),
        "options": [_fixed(name, getattr(shape, name)) for name in sizes],
        "doors": list(scheme.doors),
        "axes": {1: "one", 2: "two", 3: "three"}[shape.axes],
        "for_decoders": scheme.for_decoders,
        "needs_segments": any(entry.needs_segments for entry in entries),
        "does": "; ".join(filter(None, (entry.does or _summary(entry.scheme) for entry in entries))),
        "limits": "; ".join(filter(None, (entry.limits for entry in entries))),
        "learned": f"{learned:,} numbers" if learned else "nothing",
        "cost": "; ".join(dict.fromkeys(entry.cost for entry in entries)),
        "formula": "",
        "example": "",
        "paper": "; ".join(dict.fromkeys(entry.paper for entry in entries)),
        "url": "",
        "users": "",
        "claims": [],
        "measured": data.shown(audit(names)),
        "own": {"imports": _imports(entries), "call": _call(scheme), **numbers(scheme, shape)},
    }


def numbers(scheme: Scheme, shape: Shape) -> dict[str, Any]:
    """What the page computes attention of at the positions 0 .. 63: the vectors that are added, the matrices that turn
    queries and keys, and the bias of every score. ``missing`` says why not, where the scheme does more than that."""
    if shape.axes > 1:
        return {"missing": "it takes several coordinates of each token: see it in the view Scores"}
    positions = posenc.Positions.arange(TOKENS)
    encoding = scheme(positions, dtype=torch.float64)
    if encoding.wanted:
        return {"missing": "it reads what a layer projects: see it in the view Scores"}
    others = "it does more than add vectors, turn queries and keys, and add a bias: see it in the view Scores"
    turns_values = any(rotation.value is not None for rotation in encoding.rotations)
    if encoding.banded is not None or turns_values or "value" in scheme.doors:
        return {"missing": others}
    with torch.no_grad():
        found: dict[str, Any] = {"tokens": TOKENS}
        table = encoding.add(torch.zeros(1, TOKENS, shape.dim, dtype=torch.float64))[0]
        if "add" in scheme.doors:
            found["table"] = _flat(table)
        maps = [_maps(turn, shape) for turn in (encoding.rotate_query, encoding.rotate_key)]
        zeros = torch.zeros(1, shape.num_heads, TOKENS, shape.head_dim, dtype=torch.float64)
        bias = posenc.logits(zeros, zeros, encoding)[0]
        if not all((x < torch.inf).all() for x in (table, *maps, bias)):
            return {"missing": "some of its numbers are NaN or infinite: see it in the view Scores"}
        if not _is_all(maps, bias, encoding, shape):
            return {"missing": others}
    if "rotate" in scheme.doors:
        found |= {name: _heads(each) for name, each in zip(("query", "key"), maps, strict=True)}
        found["scale"] = encoding.scale
    if "score" in scheme.doors:
        found["bias"] = _heads(_by_distance(bias))
    return found


def _is_all(maps: list[Tensor], bias: Tensor, encoding: Encoding, shape: Shape) -> bool:
    """Whether the scores of Gaussian tokens follow from the matrices and the bias."""
    generator = torch.Generator().manual_seed(0)
    size = (2, shape.num_heads, TOKENS, shape.head_dim)
    query, key = torch.randn(size, generator=generator, dtype=torch.float64)
    turned, other = ((each @ x[..., None])[..., 0] for each, x in zip(maps, (query, key), strict=True))
    scale = encoding.scale if encoding.scale is not None else turned.size(-1) ** -0.5
    ours = scale * turned @ other.mT + bias
    theirs = posenc.logits(query[None], key[None], encoding)[0]
    return torch.equal(ours.isfinite(), theirs.isfinite()) and torch.allclose(
        ours.nan_to_num(neginf=0.0), theirs.nan_to_num(neginf=0.0), rtol=0, atol=1e-9
    )


def _maps(turn: Any, shape: Shape) -> Tensor:
    """The matrix (heads, tokens, width, head_dim) of each token's rotation."""
    unit = torch.eye(shape.head_dim, dtype=torch.float64)[:, None, None]
    return turn(unit.expand(-1, shape.num_heads, TOKENS, -1)).permute(1, 2, 3, 0)


def _by_distance(bias: Tensor) -> Tensor:
    """The bias (heads, queries, keys). Where it goes by the distance alone (heads, 2 tokens - 1), from the key farthest
    back on."""
    line = torch.cat([bias[:, -1], bias[:, 0, 1:]], dim=1)
    place = torch.arange(TOKENS)
    return line if torch.equal(line[:, place - place[:, None] + TOKENS - 1], bias) else bias


def _heads(x: Tensor) -> dict[str, Any]:
    """Numbers by head; of the first alone where all are alike."""
    alike = bool((x == x[:1]).all())
    kept = x[:1] if alike else x
    return {"shape": list(kept.shape), "data": _flat(kept)}


def _flat(x: Tensor) -> list[float | None]:
    """The numbers; None for a key that a bias hides."""
    return [round(number, 12) if number > -torch.inf else None for number in x.reshape(-1).tolist()]


def built(names: str) -> Scheme:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return scheme_from_names(names, shape_of(_axes(entries_of(names)))).to(torch.float64)


def _axes(entries: tuple[Entry, ...]) -> int:
    return max(entry.least_axes for entry in entries)


def _fixed(name: str, size: int) -> dict[str, Any]:
    """An option without a control."""
    return {"name": name, "kind": "other", "required": True, "default": None, "built": size}


def _summary(scheme: type[Scheme]) -> str:
    """The first line of its own docstring, not of one that it inherits."""
    return (vars(scheme)["__doc__"] or "").strip().partition("\n")[0]


def _imports(entries: tuple[Entry, ...]) -> str:
    known = {entry.scheme for entry in CATALOG}
    theirs = [entry.scheme for entry in entries if entry.scheme not in known]
    return "\n".join(f"from {scheme.__module__} import {scheme.__name__}" for scheme in theirs)


def _call(scheme: Scheme) -> str:
    """How the scheme is written in Python, its parts with the arguments that they need."""
    known = {entry.scheme for entry in CATALOG}

    def call(part: Scheme) -> str:
        parameters = inspect.signature(type(part)).parameters.values()
        needed = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        given = ", ".join(f"{name}={getattr(part, name, '...')!r}" for name in needed)
        return f"{'posenc.' if type(part) in known else ''}{type(part).__name__}({given})"

    return " + ".join(map(call, scheme.parts))
