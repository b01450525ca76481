"""Computes the numbers by which the page draws a scheme that it has no JavaScript of: the user's own, compositions, and
most of the catalog."""

import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any, get_args

import torch
from torch import Tensor

import posenc
from posenc.encoding.encoding import Encoding
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes import query_scale
from posenc.schemes.cameras import around
from posenc.schemes.catalog import CATALOG, entries_of, scheme_from_names
from posenc.schemes.entry import Entry, Shape
from posenc_lab.explore import data
from posenc_lab.explore.catalog import Option, options
from posenc_lab.kit.titles import titled
from posenc_lab.laws.table import audit
from posenc_lab.plot import overview, panels

JAVASCRIPT = frozenset(
    """nope learned sinusoidal axial_rope mrope p_rope partial_rope rope rope_3d alibi cope distance_aware fox
    relative_2d shaw t5""".split()  # noqa: SIM905 (a line for each would be eighteen)
)
"""The schemes that ``static/math/catalog.js`` computes: those of the lesson and of the figures of one scheme."""

TOKENS = 33  # of which every two are drawn
SIDE = 9  # patches to a side, of a scheme for images
ROWS = 64  # positions of vectors, and of biases that do not go by the distance alone
WORDS = 24  # positions of matrices: as many as a sentence has words
MAX_BIAS_DISTANCE = 512  # the largest distance of a bias that depends on it alone
DIGITS = 6

OPTION_CHOICES: dict[str, tuple[float, ...]] = {
    "base": (100.0, 1e6),
    "max_distance": (8, 64),
    "num_buckets": (8, 32),
    "share": (0.25, 1.0),
    "sigma": (0.01, 0.1),
    "cap": (5.0, 50.0),
    "window": (4, 16),
    "group": (2, 8),
    "chunk": (12, 32),
    "local": (0, 2),
    "leak": (0.2,),
    "scale_base": (32.0,),
    "longest": (100.0, 1000.0),
    "length": (16, 256),
    "extent": (32.0,),
    "seed": (1,),
}
"""The values of numeric options, beside the usual one, that a saved page has numbers of."""

BESIDE: dict[tuple[str, str], dict[Any, dict[str, Any]]] = {
    ("query_scale", "form"): {
        form: {"num_heads": 4, "length": None}
        if form in ("ssmax", "mistral_large4")
        else {"num_heads": None, "length": 16}
        for form in get_args(query_scale.Form)
    },
    ("deberta", "clamp"): {"distance": {"num_buckets": 32}, "bucket": {"num_buckets": None}},
}
"""Options that a value needs beside it, by scheme and option."""


def shape_of(axes: int) -> Shape:
    """The model that these schemes are built for: as wide as the sentence's of the page."""
    grids = {1: None, 2: (SIDE, SIDE), 3: (SIDE, SIDE, SIDE)}
    return Shape(dim=64, num_heads=4, head_dim=16, max_positions=SIDE * SIDE, grid=grids[axes])


# --- schemes of the catalog -----------------------------------------------------------------------------------------


def options_of(entry: Entry) -> tuple[Option, ...]:
    """The options of a scheme, as it is built for `shape_of`."""
    return options(entry, shape_of(entry.least_axes))


def settings(entry: Entry) -> Iterable[dict[str, Any]]:
    """The options that a saved page has numbers of: the usual ones, and each option at its other few values."""
    all_of = options_of(entry)
    usual = {option.name: option.built for option in all_of}
    yield usual
    for option in all_of:
        values = {"bool": (True, False), "choice": option.choices}.get(option.kind, OPTION_CHOICES.get(option.name, ()))
        for value in values if option.built is not None else ():
            if value != option.built:
                made = int(value) if option.kind == "int" else value
                yield usual | {option.name: made} | BESIDE.get((entry.name, option.name), {}).get(value, {})


def of_entry(entry: Entry, *, whole: bool) -> list[dict[str, Any]]:
    """The numbers of a scheme as it is usually built or, ``whole``, in all its `settings` that can be built."""
    found: list[dict[str, Any]] = []
    for given in settings(entry):
        try:
            found.append(of_options(entry, given, is_far=not found))
        except ValueError:
            if not found:
                raise
            continue
        if not whole:
            break
    return found


def of_options(entry: Entry, given: Mapping[str, Any], *, is_far: bool = False) -> dict[str, Any]:
    """{options, effect, kept} of a scheme that is built with these options. ValueError where it cannot be."""
    told = {name: tuple(x) if isinstance(x, list) else x for name, x in given.items() if x is not None}
    if entry.scheme is posenc.Cameras:  # the page has no others than those of the catalog
        told["cameras"] = around(SIDE)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        scheme = entry.scheme(**told).to(torch.float64)
    return {"options": dict(given)} | of_scheme(scheme, entry.least_axes, is_far=is_far)


def of_scheme(scheme: Scheme, axes: int, *, is_far: bool) -> dict[str, Any]:
    """{effect, kept}: what the scheme does to every two tokens, and what attention is computed of."""
    return {"effect": effect(scheme, axes), "kept": kept(scheme, shape_of(axes), is_far=is_far)}


# --- the user's own -------------------------------------------------------------------------------------------------


def own(names: str) -> dict[str, Any]:
    """An entry for the page of ``"my.py:MyScheme"`` or ``"rope+alibi"``: its laws, measured here, and as ``own`` its
    Python. ValueError for a name that cannot be read."""
    entries = entries_of(names)
    scheme = built(names)
    shape = shape_of(_axes(entries))
    learned = sum(parameter.numel() for parameter in scheme.parameters())
    sizes = ("dim", "num_heads", "head_dim", "max_positions")
    return {
        "name": names,
        "title": " + ".join(titled(entry.name) for entry in entries),
        "signature": " + ".join(entry.signature for entry in entries),
        "options": [
            {"name": name, "kind": "other", "required": True, "default": None, "built": getattr(shape, name)}
            for name in sizes  # without a control
        ],
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
        "own": {"imports": _imports(entries), "call": _call(scheme)},
    }


def of_own(names: str) -> list[dict[str, Any]]:
    """The numbers of the user's own scheme, as `of_entry`."""
    return [{"options": {}} | of_scheme(built(names), _axes(entries_of(names)), is_far=True)]


def built(names: str) -> Scheme:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return scheme_from_names(names, shape_of(_axes(entries_of(names)))).to(torch.float64)


def _axes(entries: tuple[Entry, ...]) -> int:
    return max(entry.least_axes for entry in entries)


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


# --- what it does to two tokens -------------------------------------------------------------------------------------


def effect(scheme: Scheme, axes: int) -> dict[str, Any]:
    """What the scheme does to every two tokens, as ``posenc plot overview`` has it: {family, what, shape, data}.

    The numbers are (heads, 2 tokens - 1) of distances, or (heads, tokens, tokens); of a scheme for images (heads,
    patches), for the query in the middle of a frame, with three axes beside them ``times`` (heads, frames). Of a scheme
    that looks at the score alone they are what scores from -200 to 200 become. ``values``: how much of a value arrives,
    by the distance, where values turn.
    """
    if overview.is_curve(scheme):
        curve = overview.capped(scheme, torch.linspace(-200, 200, 201, dtype=torch.float64))
        return {"family": "curve", "what": "score after", "shape": [len(curve)], "data": flat(torch.from_numpy(curve))}
    frame = _frame(axes)
    found = overview.seen(scheme, frame)
    told: dict[str, Any] = {"family": overview.family_of(scheme, frame), "what": found.what}
    values = _heads(torch.from_numpy(found.values))
    if axes > 1:
        values = values[:, SIDE * SIDE // 2]
        if axes == 3:
            frames = torch.arange(SIDE)
            line = Positions(torch.stack([frames, *[torch.full_like(frames, SIDE // 2)] * 2], dim=-1)[None])
            told["times"] = flat(_heads(torch.from_numpy(overview.seen(scheme, line).values))[:, SIDE // 2])
    else:
        values = _by_distance(values)
        if any(rotation.value is not None for rotation in scheme(frame).rotations):
            told["values"] = flat(torch.from_numpy(overview.values_met(scheme, TOKENS)))
    return {**told, "shape": list(values.shape), "data": flat(values)}


def _frame(axes: int) -> Positions:
    """The tokens of a line, or the patches of an image or of the frame in the middle of a video."""
    if axes == 1:
        return panels.places(TOKENS)
    grid = Positions.grid(SIDE, SIDE)
    if axes == 2:
        return grid
    time = torch.full((1, SIDE * SIDE, 1), SIDE // 2)
    return Positions(torch.cat([time, grid.coords], dim=-1))


# --- what attention is computed of ----------------------------------------------------------------------------------


def kept(scheme: Scheme, shape: Shape, *, is_far: bool) -> dict[str, Any]:
    """What the page computes attention of: the vectors that are added at the positions 0 .. 63, the matrices that turn
    queries and keys at 0 .. 23 (``key`` is None where it is as the query), and the bias of every score; with ``is_far``
    at distances up to 512, where it depends on these alone. ``missing`` says why not, where the scheme does more."""
    if shape.axes > 1:
        return {"missing": "it takes several coordinates of each token: see it in the view Scores"}
    others = "it does more than add vectors, turn queries and keys, and add a bias: see it in the view Scores"
    try:
        encoding = scheme(posenc.Positions.arange(ROWS), dtype=torch.float64)
    except ValueError:  # it needs segments
        return {"missing": others}
    if encoding.wanted:
        return {"missing": "it reads what a layer projects: see it in the view Scores"}
    turns_values = any(rotation.value is not None for rotation in encoding.rotations)
    if encoding.banded is not None or turns_values or "value" in scheme.doors:
        return {"missing": others}
    with torch.no_grad():
        found: dict[str, Any] = {"tokens": ROWS}
        table = encoding.add(torch.zeros(1, ROWS, shape.dim, dtype=torch.float64))[0]
        if "add" in scheme.doors:
            found["table"] = flat(table)
        maps = [_maps(turn, shape) for turn in (encoding.rotate_query, encoding.rotate_key)]
        zeros = torch.zeros(1, shape.num_heads, ROWS, shape.head_dim, dtype=torch.float64)
        bias = posenc.logits(zeros, zeros, encoding)[0]
        if not all((x < torch.inf).all() for x in (table, *maps, bias)):
            return {"missing": "some of its numbers are NaN or infinite: see it in the view Scores"}
        if not _is_all(maps, bias, encoding, shape):
            return {"missing": others}
    if "rotate" in scheme.doors:
        short = [_heads(each[:, :WORDS]) for each in maps]
        query, key = ({"shape": list(x.shape), "data": flat(x)} for x in short)
        found |= {"query": query, "key": None if key == query else key, "scale": encoding.scale}
    if "score" in scheme.doors:
        line = _heads(_by_distance(bias))
        far = _far(scheme, shape) if is_far and line.dim() == 2 else None
        line = line if far is None else _heads(far)
        found["bias"] = {"shape": list(line.shape), "data": flat(line)}
    return found


def _is_all(maps: list[Tensor], bias: Tensor, encoding: Encoding, shape: Shape) -> bool:
    """Whether the scores of Gaussian tokens follow from the matrices and the bias."""
    generator = torch.Generator().manual_seed(0)
    size = (2, shape.num_heads, ROWS, shape.head_dim)
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
    return turn(unit.expand(-1, shape.num_heads, ROWS, -1)).permute(1, 2, 3, 0)


def _by_distance(bias: Tensor) -> Tensor:
    """The bias (heads, queries, keys). Where it depends only on the distance, (heads, 2 tokens - 1), from the key
    farthest back on; NaN, which is not seen, does not count."""
    n = bias.size(-1)
    line = torch.cat([bias[:, -1], bias[:, 0, 1:]], dim=1)
    place = torch.arange(n)
    slack = 1e-9 * bias[bias.isfinite()].abs().amax().item() if bias.isfinite().any() else 0.0
    along = line[:, place - place[:, None] + n - 1]
    return line if torch.allclose(along, bias, rtol=0, atol=slack, equal_nan=True) else bias


def _far(scheme: Scheme, shape: Shape) -> Tensor | None:
    """The bias (heads, 2 `MAX_BIAS_DISTANCE` + 1) at the distances of a bias, from the key farthest back on; None
    of a scheme without positions so far on."""
    zero = torch.zeros(1, shape.num_heads, 1, shape.head_dim, dtype=torch.float64)
    places = posenc.Positions.arange(2 * MAX_BIAS_DISTANCE + 1)
    try:
        query = places[MAX_BIAS_DISTANCE : MAX_BIAS_DISTANCE + 1]
        return posenc.logits(
            zero, zero.expand(-1, -1, len(places), -1), scheme, query_positions=query, key_positions=places
        )[0, :, 0]
    except posenc.PositionError:
        return None


def _heads(x: Tensor) -> Tensor:
    """Numbers by head; of the first alone where all are alike."""
    same = torch.allclose(x, x[:1].expand_as(x), rtol=1e-9, atol=1e-12, equal_nan=True)
    return x[:1] if same else x


def flat(x: Tensor) -> list[float | None]:
    """The numbers, to six digits; None for a key that is hidden, or not seen."""
    return [_rounded(number) if math.isfinite(number) else None for number in x.reshape(-1).tolist()]


def _rounded(number: float) -> float:
    shown = float(f"{number:.{DIGITS}g}")
    return int(shown) if shown == int(shown) else round(shown, 12)
