"""Sizes and stages of the kernels beside those that are taken, and flex on every scheme that it takes."""

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from posenc.backends.triton import launch, operator, skipping
from posenc.schemes.catalog import catalog
from posenc.tools.bench.gpu.agreement import Case, compared
from posenc.tools.bench.gpu.place import Place
from posenc.tools.bench.gpu.step import Result, Step, called
from posenc.tools.bench.gpu.timing import compiled_by, profiled
from posenc.tools.bench.gpu.ways import call_of
from posenc.tools.bench.measure import LeftOutError, Work

TAKEN, UNSKIPPED = "as taken", "nothing skipped"
# Blocks of the far loops or of the near kernels, and the warps and stages of these.
FAR = ("64x64 4w2", "64x64 4w4", "64x64 8w3", "64x128 4w2", "128x64 8w2", "128x64 8w3", "128x128 8w2", "128x128 8w3")
WIDE = ("128x64 8w2", "128x32 8w3", "128x32 4w3", "64x64 4w2", "64x64 4w3", "64x64 8w3", "128x128 8w2")
NEAR = ("64 4w1", "64 4w2", "64 8w1", "64 8w2", "32 4w1", "32 4w2")
FEWEST = 2**30  # keys, more than any call has
FAR_SCHEMES, NEAR_SCHEMES = ("nope", "alibi", "t5"), ("shaw", "transformer_xl")


def _items(place: Place) -> tuple[str, ...]:
    """A scheme, channels of a head, and blocks."""
    width = place.sizes.head_dim
    if place.is_dry:
        return f"alibi {width} {TAKEN}", f"alibi {width} far 32x16 8w1"
    tried = (
        (width, FAR_SCHEMES, "far", FAR),
        (width, NEAR_SCHEMES, "near", NEAR),
        (place.sizes.wide, FAR_SCHEMES[:2], "far", WIDE),
        (place.sizes.wide, NEAR_SCHEMES, "near", NEAR[::2]),
    )
    return tuple(
        f"{scheme} {channels} {how}"
        for channels, schemes, which, blocks in tried
        for scheme in schemes
        for how in (TAKEN, *([UNSKIPPED] if scheme == "alibi" else []), *(f"{which} {each}" for each in blocks))
    )


def _launch(how: str) -> dict[str, Any]:
    """The names of the kernels' launch, and what they are instead."""
    which, blocks, rest = how.split()
    warps, stages = map(int, rest.split("w"))
    fresh: dict[str, Any] = {"_FITTING": {}}  # what fits is another matter then
    if which == "far":
        long, short = map(int, blocks.split("x"))
        sizes = launch.Sizes(long, short, min(long, 64), warps, stages)
        return fresh | {"sizes_of": lambda *how: (sizes,)}
    taken = launch.sizes_of
    return fresh | {
        "sizes_of": lambda *how: (taken(*how)[0]._replace(square=int(blocks)),),
        "squares_of": lambda *how: {"num_warps": warps, "num_stages": stages},
    }


def _work(place: Place, name: str) -> Work:
    """A training step, its kernels launched as the name says."""
    scheme, channels, how = name.split(" ", 2)
    work, _ = call_of(place, f"{place.sizes.lengths[0]} training/{channels} {scheme}, triton")
    if how == TAKEN:
        return work
    other = {"_FITTING": {}} if how == UNSKIPPED else _launch(how)
    squares_of = other.get("squares_of", launch.squares_of)
    fewest = FEWEST if how == UNSKIPPED else skipping.FEWEST_KEYS

    def otherwise() -> tuple[Tensor, ...]:
        with (
            patch.multiple(launch, **other),
            patch.object(operator, "squares_of", squares_of),
            patch.object(skipping, "FEWEST_KEYS", fewest),
        ):
            return work()

    return otherwise


COMPILED = Step("compiled", "Sizes and stages compiled, on all cores", 240, 120, _items,
                called(lambda place, name: compiled_by(place, _work(place, name))), workers=0)  # fmt: skip
VARIANTS = Step("variants", "Sizes and stages", 260, 45, _items,
                called(lambda place, name: profiled(place, _work(place, name))))  # fmt: skip


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


FLEX = Step("flex", "Flex against double precision", 500, 90, _flexed, called(_agrees), workers=0)
