"""Which two schemes posenc does not compose, and why."""

from __future__ import annotations

from itertools import permutations

import torch

from posenc.explorer.options import SIZES
from posenc.schemes.catalog import CATALOG


def refused() -> dict[str, str]:
    """By "first+second", posenc's own words. Schemes that take another number of coordinates are left out."""
    said = {}
    with torch.random.fork_rng(devices=()):
        built = {(entry.name, axes): entry.build(SIZES[axes]) for entry in CATALOG for axes in _axes(entry.axes)}
    for (first, axes), (second, others) in permutations(built, 2):
        if axes != others:
            continue
        try:
            built[first, axes] + built[second, axes]
        except ValueError as error:
            said[f"{first}+{second}"] = str(error)
    return said


def _axes(takes: str) -> tuple[int, ...]:
    """The numbers of coordinates that a scheme can be built for."""
    return {"one": (1,), "two": (2,), "three": (3,), "any": (1, 2, 3)}[takes]
