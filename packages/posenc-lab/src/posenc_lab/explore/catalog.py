"""Collects the catalog as plain data for the page: the schemes with their options and laws, the schedules of model
families, and the evidence."""

import inspect
import re
import types
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import permutations
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

import torch

from posenc import schedules
from posenc.positions.tiles import Chunk, Window, window_words
from posenc.rotation.scalings import Proportional
from posenc.schedule import Schedule
from posenc.scheme import Scheme
from posenc.schemes.catalog import CATALOG, entries_of, scheme_from_names
from posenc.schemes.entry import GIVEN, Entry, Law, Shape
from posenc_lab.choose.evidence import PublishedTable, tables
from posenc_lab.explore import data
from posenc_lab.explore.mathml import mathml
from posenc_lab.kit.titles import titled
from posenc_lab.laws.laws import QUESTIONS
from posenc_lab.laws.probe import SHAPE
from posenc_lab.laws.table import definition, head

GRIDS = {1: None, 2: (8, 8), 3: (4, 4, 4)}
"""The grid that schemes of images and videos are built for, by the number of axes."""


def catalog() -> dict[str, Any]:
    """The page's data on the whole catalog, as JSON values. Laws were measured before."""
    measured = data.laws()
    meanings = {law.value: law.meaning for law in Law} | {question: definition(question) for question in QUESTIONS}
    return {
        "given": GIVEN,
        "entries": [_entry(entry, measured[entry.name]) for entry in CATALOG],
        "laws": {law: {"head": head(law), "says": says} for law, says in meanings.items()},
        "schedules": families(),
        "evidence": [{**asdict(one), "strength": one.strength} for one in evidence()],
    }


# --- schemes --------------------------------------------------------------------------------------------------------


Kind: TypeAlias = Literal["int", "float", "bool", "choice", "grid", "numbers", "scaling", "other"]


@dataclass(frozen=True)
class Option:
    """An argument of a scheme's class. ``kind`` is its input on the page: a number, a check box, one of ``choices``,
    the sides of a grid, a list of numbers, a scaling of frequencies, or, for "other", none.

    ``built`` is its value in the catalog's scheme for `SHAPE`, six heads of 16 channels, and 64 positions or a grid of
    `GRIDS`.
    """

    name: str
    kind: Kind
    required: bool
    default: Any
    built: Any
    optional: bool = False  # whether None is a value
    choices: tuple[str, ...] = ()


def options(entry: Entry, shape: Shape | None = None) -> tuple[Option, ...]:
    """The arguments of a scheme's class, in order, from its signature and type hints; ``built`` for another shape."""
    shape = shape or replace(SHAPE, max_positions=64, grid=GRIDS[entry.least_axes])
    with torch.random.fork_rng(devices=()):
        built = entry.build(shape)
    parameters = inspect.signature(entry.scheme, eval_str=True).parameters.values()
    return tuple(_option(p, built) for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))


def _option(parameter: inspect.Parameter, built: Scheme) -> Option:
    name, required = parameter.name, parameter.default is parameter.empty
    default = None if required else _plain(parameter.default)
    value = _plain(getattr(built, name, None))
    hint, optional = _without_none(parameter.annotation)
    if hint is parameter.empty:
        hint = type(parameter.default)
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    return Option(name, _kind(name, hint), required, default, default if value is None else value, optional, choices)


def _kind(name: str, hint: Any) -> Kind:
    by_name: dict[str, Kind] = {"grid": "grid", "scaling": "scaling"}
    by_hint: dict[Any, Kind] = {int: "int", float: "float", bool: "bool"}
    by_origin: dict[Any, Kind] = {Literal: "choice", tuple: "numbers", Sequence: "numbers"}
    return by_name.get(name) or by_hint.get(hint) or by_origin.get(get_origin(hint), "other")


def _without_none(hint: Any) -> tuple[Any, bool]:
    """A type hint without None, and whether None was part of it."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    some = [part for part in get_args(hint) if part is not type(None)]
    return some[0] if len(some) == 1 else hint, len(some) < len(get_args(hint))


def _plain(value: Any) -> Any:
    """The value if it is one of JSON, or the scaling of a scheme of the catalog; else None."""
    if isinstance(value, Proportional):
        return {"kind": "proportional", "share": value.share}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float) else None


def formula(entry: Entry) -> str:
    """Its formula, in which the page finds the symbols of its options and of the head."""
    symbols = {option.name: "|".join(option.choices) or option.name for option in options(entry)}
    return mathml(entry.formula, symbols | {"head": "h", "num_heads": "H"} | dict(entry.symbols))


def _entry(entry: Entry, measured: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": entry.name,
        "title": titled(entry.name),
        "signature": entry.signature,
        "options": [asdict(option) for option in options(entry)],
        "doors": entry.doors,
        "axes": entry.axes,
        "for_decoders": entry.for_decoders,
        "needs_segments": entry.needs_segments,
        "does": entry.does,
        "limits": entry.limits,
        "learned": entry.learned,
        "cost": entry.cost,
        "formula": formula(entry),
        "example": entry.example,
        "paper": entry.paper,
        "url": entry.url,
        "users": entry.users,
        "claims": sorted(entry.laws),
        "measured": measured,
    }


# --- schedules ------------------------------------------------------------------------------------------------------


def families() -> list[dict[str, Any]]:
    """The default schedule of each model family of `posenc.schedules`."""
    made_there = [m for m in vars(schedules).values() if inspect.isfunction(m) and m.__module__ == schedules.__name__]
    makers = [maker for maker in made_there if not maker.__name__.startswith("_")]
    return [_family(maker.__name__, inspect.getdoc(maker) or "", maker()) for maker in makers]


def _family(name: str, doc: str, schedule: Schedule) -> dict[str, Any]:
    kinds: dict[tuple[int, Window], list[int]] = {}
    for layer, (_, window) in enumerate(schedule):
        kinds.setdefault((schedule.number(layer), window), []).append(layer)
    title, _, does = doc.partition("\n")[0].partition(": ")
    return {
        "name": name,
        "title": title,
        "does": does,
        "call": f"posenc.schedules.{name}()",
        "num_layers": len(schedule),
        "kinds": [
            {
                "layers": layers,
                "scheme": " + ".join(
                    f"{type(part).__name__}({part.extra_repr()})" for part in _parts(schedule, layers)
                ),
                "names": [_named(part) for part in _parts(schedule, layers)],
                "window": re.sub(r"\d+", lambda size: f"{int(size[0]):,}", window_words(window)),
                "keys": window if isinstance(window, int) else None,
                "chunk": window.size if isinstance(window, Chunk) else None,
            }
            for (_, window), layers in kinds.items()
        ],
    }


def _parts(schedule: Schedule, layers: Sequence[int]) -> Sequence[Scheme]:
    parts: Any = schedule[layers[0]][0].parts
    return parts


def _named(scheme: Scheme) -> str:
    return next(entry.name for entry in CATALOG if entry.title == type(scheme).__name__)


# --- compositions -----------------------------------------------------------------------------------------------------


def refused(own: Sequence[str] = ()) -> dict[str, str]:
    """posenc's error for each "first+second" that it refuses, of the catalog and of the user's ``own``. Pairs with
    different numbers of coordinates are left out."""
    said = {}
    with torch.random.fork_rng(devices=()):
        built = {(entry.name, axes): entry.build(_shape(axes)) for entry in CATALOG for axes in _axes(entry.axes)}
        for name in own:
            axes = max(entry.least_axes for entry in entries_of(name))
            built[name, axes] = scheme_from_names(name, _shape(axes))
    for (first, axes), (second, others) in permutations(built, 2):
        if axes != others:
            continue
        try:
            built[first, axes] + built[second, axes]
        except ValueError as error:
            said[f"{first}+{second}"] = str(error)
    return said


def _shape(axes: int) -> Shape:
    """A small model whose heads can be divided into pairs of channels for up to three axes."""
    return Shape(dim=96, num_heads=4, head_dim=24, max_positions=64, grid=GRIDS[axes])


def _axes(takes: str) -> tuple[int, ...]:
    """The numbers of coordinates that a scheme can be built for, from ``Entry.axes``."""
    return {"one": (1,), "two": (2,), "three": (3,), "any": (1, 2, 3)}[takes]


# --- evidence -------------------------------------------------------------------------------------------------------


def evidence() -> tuple[PublishedTable, ...]:
    """The tables of `posenc_lab.choose`. ValueError for one that names an unknown scheme."""
    known = {entry.name for entry in CATALOG}
    found = tables()
    for table in found:
        if unknown := {name for row in table.rows for name in row.schemes} - known:
            raise ValueError(f"{table.name}: schemes must be names of the catalog, got {', '.join(sorted(unknown))}")
    return found
