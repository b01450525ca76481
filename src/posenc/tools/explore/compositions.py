"""Which two schemes posenc does not compose, and why."""

from __future__ import annotations

from itertools import permutations

import torch

from posenc.schemes.catalog import CATALOG
from posenc.schemes.entry import Shape
from posenc.tools.explore.catalog import GRIDS


def refused() -> dict[str, str]:
    """By "first+second", posenc's own words. Schemes that take another number of coordinates are left out."""
    said = {}
    with torch.random.fork_rng(devices=()):
        built = {(entry.name, axes): entry.build(_shape(axes)) for entry in CATALOG for axes in _axes(entry.axes)}
    for (first, axes), (second, others) in permutations(built, 2):
        if axes != others:
            continue
        try:
            built[first, axes] + built[second, axes]
        except ValueError as error:
            said[f"{first}+{second}"] = str(error)
    return said


def _shape(axes: int) -> Shape:
    """A small model; its heads can be shared out to up to three axes in pairs of channels."""
    return Shape(dim=96, num_heads=4, head_dim=24, max_positions=64, grid=GRIDS[axes])


def _axes(takes: str) -> tuple[int, ...]:
    """The numbers of coordinates that a scheme can be built for."""
    return {"one": (1,), "two": (2,), "three": (3,), "any": (1, 2, 3)}[takes]
