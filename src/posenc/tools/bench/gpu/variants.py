"""Sizes and stages of the kernels beside those that are taken, and flex on every scheme that it takes."""

import itertools
from functools import partial
from typing import Any

import torch

from posenc.backends.triton import launch as of_launch
from posenc.schemes.catalog import catalog
from posenc.tools.bench.gpu import ways
from posenc.tools.bench.gpu.agreement import Case, compared
from posenc.tools.bench.gpu.clocks import timed
from posenc.tools.bench.gpu.place import PHASES, Place
from posenc.tools.bench.gpu.step import Result, Step
from posenc.tools.bench.gpu.timing import compiled_by
from posenc.tools.bench.measure import LeftOutError, Work

TAKEN = "as taken"
BLOCKS = ((128, 64, 64), (128, 128, 64), (64, 64, 64), (128, 32, 32))
HOW = ((8, 2), (8, 1), (8, 3), (4, 2))  # warps and stages
TRIED = ("nope", "alibi", "t5", "shaw")
"""With the first blocks and each of `HOW`, and with each of the blocks and the first of it."""


def _items(place: Place) -> tuple[str, ...]:
    length = place.sizes.lengths[0]
    pairs = [(BLOCKS[0], how) for how in HOW] + [(blocks, HOW[0]) for blocks in BLOCKS[1:]]
    if place.is_dry:
        pairs = [((32, 16, 16), HOW[1])]
    names = [TAKEN, *(f"{'x'.join(map(str, blocks))} {warps} {stages}" for blocks, (warps, stages) in pairs)]
    tried = TRIED[1:2] if place.is_dry else TRIED
    return tuple(f"{length} {phase} {scheme} {name}" for phase, scheme, name in itertools.product(PHASES, tried, names))


def _work(place: Place, name: str) -> Work:
    length, phase, scheme, how = name.split(" ", 3)
    launch: dict[str, Any] = {}
    if how != TAKEN:
        blocks, warps, stages = how.split()
        launch = {
            "sizes_of": lambda _: (of_launch.Sizes(*map(int, (*blocks.split("x"), warps, stages))),),
        }
    return ways.Way(scheme, "triton", lambda: launch).work(place, place.inputs(int(length), phase))


COMPILED = Step("compiled", "Sizes and stages compiled, on all cores", 240, 120, _items, partial(compiled_by, _work), 0)
VARIANTS = Step("variants", "Sizes and stages", 280, 45, _items, lambda place, name: timed(place, _work(place, name)))


# -- flex -------------------------------------------------------------------------------------------------------------


def _flexed(place: Place) -> tuple[str, ...]:
    names = tuple(entry.name for entry in catalog() if set(entry.doors) & {"score"} and entry.least_axes == 1)
    return names[:1] if place.is_dry else names


def _agrees(place: Place, name: str) -> Result:
    case = Case(name, min(300, place.sizes.real), 4, 2, 16 if place.is_dry else 64, torch.float32, backend="flex")
    try:
        return compared(place, case)
    except ValueError as error:
        if "cannot run this" in str(error):
            raise LeftOutError(str(error)) from None
        raise


FLEX = Step("flex", "Flex against double precision", 540, 90, _flexed, _agrees, workers=0)
