"""Collects the pairs of schemes that posenc refuses to compose, with the reasons."""

from collections.abc import Sequence
from itertools import permutations

import torch

from posenc.schemes.catalog import CATALOG, entries_of, scheme_from_names
from posenc.schemes.entry import Shape
from posenc_lab.explore.catalog import GRIDS


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
