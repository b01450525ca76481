"""Which pairs are near, and computed in blocks, and which are far."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from posenc.backends.tiled.lines import Inputs
from posenc.backends.tiled.near import NearBlock, blocks
from posenc.positions.tiles import Tile, Tiling


@dataclass
class Plan:
    """The operator's numbers."""

    found: tuple[Tile, ...]
    width: int | None  # W; None: every distance is near
    lowest: int
    is_last: bool  # the function of the score comes after what is added
    keeps_right: bool  # pairs far to the right are accumulated separately, since their terms are learned or nonzero
    skip_below: float  # the fraction of a row's weight that may be skipped
    tiling: tuple[int, ...]  # a `Tiling`

    @staticmethod
    def read(rows: int, tiling: Sequence[int], form: Sequence[int], skip_below: float) -> Plan:
        """Of the lists that the operator takes: a `Tiling`, and whether all is near, W, and the next three fields."""
        is_near, width, lowest, is_last, keeps_right = form
        return Plan(
            _tiles(tuple(tiling), rows),
            None if is_near else width,
            lowest,
            bool(is_last),
            bool(keeps_right),
            skip_below,
            tuple(tiling),
        )

    @property
    def straight_from(self) -> int:
        """The smallest far distance to the right."""
        assert self.width is not None
        return max(self.width, 1)


@functools.lru_cache(maxsize=16)  # all layers, forward and backward, have the same numbers
def _tiles(tiling: tuple[int, ...], rows: int) -> tuple[Tile, ...]:
    return tuple(Tiling.unflat(tiling).tiles(rows))


def near_blocks(plan: Plan, inputs: Inputs) -> Iterator[NearBlock]:
    """The blocks of pairs that are computed one by one."""
    for tile in plan.found:
        distance = tile.distance or 0
        if plan.width is None:
            low, high = tile.first - tile.stop, tile.last - tile.start
        else:
            assert plan.width == 0 or tile.distance is not None
            low, high = 1 - plan.width - distance, plan.width - 1 - distance
        if low <= high:
            yield from blocks(tile, low, high, distance - plan.lowest, inputs.query, inputs.key, inputs.dtype)
