"""The far pairs of a call: for which of them the fused kernel is called, and what is added to their scores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from posenc.backends.tiled import fused
from posenc.backends.tiled.lines import Inputs, Lines
from posenc.backends.tiled.plan import Plan
from posenc.compat import CPU, Fused
from posenc.encoding.horizon import skip_threshold
from posenc.positions.tiles import Tile

NEVER = 2**62  # a horizon beyond all keys
# A horizon below a sixth of the keys saves more than its calls cost (docs/decisions/008-near-and-far.md).
SHARE = 6
MIN_HEADS = 2  # the minimum number of heads per kernel call


@dataclass
class _Far:
    """The terms of far pairs: slopes for each side, a constant per row to the right, and cumulative features."""

    lines: Lines
    constant: Tensor | None  # (batch, heads, queries), of pairs to the right
    heads: slice
    tile: Tile
    is_right: bool
    triangles: dict[tuple[str, int, int], Tensor]
    kernel_dtype: torch.dtype

    def __call__(self, section: fused.Section) -> tuple[Tensor | None, Tensor | None]:
        mask: Tensor | None = None
        row: Tensor | None = None
        if self.constant is not None and self.is_right:
            row = self.constant[self.tile.row, self.heads, section.queries]
        lines = self.lines
        if lines.slopes is not None:
            mask, more = self._sloped(section)
            row = row if more is None else more if row is None else row + more
        if lines.query_clock is not None and lines.key_clock is not None:
            here = lines.query_clock[self.tile.row, self.heads, section.queries]
            there = lines.key_clock[self.tile.row, self.heads, section.keys]
            corner = there[..., :1] if self.is_right else there[..., -1:]
            dtype = torch.promote_types(self.kernel_dtype, torch.float32)  # the sums may be float64
            by_key, by_row = (corner - there)[:, :, None].to(dtype), (here - corner).to(dtype)
            mask = by_key if mask is None else mask + by_key
            row = by_row if row is None else row + by_row
        return mask, row

    def _sloped(self, section: fused.Section) -> tuple[Tensor, Tensor | None]:
        assert self.lines.slopes is not None
        assert self.tile.distance is not None
        slope = self.lines.slopes[int(self.is_right), self.heads][:, None]
        query = torch.arange(section.start, section.stop, device=slope.device)
        key = torch.arange(section.first, section.last, device=slope.device)
        if section.shape != "all":
            kind = (section.shape, section.stop - section.start, section.first - section.start)
            if kind not in self.triangles:
                away = (key - query[:, None] + self.tile.distance).abs()
                self.triangles[kind] = (slope[..., None] * away)[None]
            return self.triangles[kind], None
        if self.is_right:  # the nearest pair is the last query and the first key
            start = section.first - (section.stop - 1) + self.tile.distance
            return (slope * (key - section.first))[None, :, None], (slope * (section.stop - 1 - query + start))[None]
        start = section.start - (section.last - 1) - self.tile.distance
        return (slope * (section.last - 1 - key))[None, :, None], (slope * (query - section.start + start))[None]


@dataclass
class Region:
    """The far pairs of a tile, on one side of the diagonal, for some query heads: those with the same index in the
    groups of consecutive key heads or, if the kernel takes groups, all."""

    kernel: Fused
    far: _Far
    kv_heads: slice
    low: int | None
    high: int | None

    def of_queries(self, x: Tensor) -> Tensor:
        """Their rows of (batch, heads, ...), a view."""
        return x[self.far.tile.row, self.far.heads]

    def of_keys(self, x: Tensor) -> Tensor:
        """Their rows of (batch, kv_heads, ...), a view."""
        return x[self.far.tile.row, self.kv_heads]

    def sections(self) -> Iterator[fused.Section]:
        """The sections to call the kernel for."""
        tile = self.far.tile
        pairs = (tile.start, tile.stop, tile.first, tile.last, self.low, self.high)
        if self.kernel.is_local:
            return fused.bands(*pairs)
        is_masked = _is_masked(self.far.lines)
        sizes = None if self.kernel is CPU else fused.MASKED_ON_GPU if is_masked else fused.ON_GPU
        return fused.sections(*pairs, sizes=sizes)


def regions(plan: Plan, inputs: Inputs, constant: Tensor | None) -> Iterator[Region]:
    """The regions of a call; ``constant`` is what `constant_of` gives."""
    assert plan.width is not None
    lines, groups = inputs.lines, inputs.query.size(1) // inputs.key.size(1)
    kernel = fused.kernel_of(inputs.query, _is_masked(lines))
    sided = lines.slopes is not None or constant is not None or plan.width > 0
    horizons = _horizons(plan, inputs)
    triangles: dict[Any, Any] = {}
    for tile in plan.found:
        for is_right in (False, True) if sided else (False,):
            low, high = tile.low, tile.high
            if sided:
                assert tile.distance is not None
                if is_right:
                    low = _most(low, plan.straight_from - tile.distance)
                else:
                    high = _least(high, -plan.width - tile.distance)
                if low is not None and high is not None and low > high:
                    continue
            for g in range(1 if kernel.is_local else groups):
                for kv, horizon in _alike(horizons[int(is_right)][g]):
                    heads = slice(kv.start * groups + g, (kv.stop - 1) * groups + g + 1, groups)
                    if kernel.is_local:
                        heads = slice(kv.start * groups, kv.stop * groups, 1)
                    shared = triangles.setdefault((heads.start, heads.stop, is_right, tile.distance), {})
                    far = _Far(lines, constant, heads, tile, is_right, shared, inputs.query.dtype)
                    yield Region(kernel, far, kv, *_within(tile, low, high, horizon, is_right))


def _is_masked(lines: Lines) -> bool:
    """Whether numbers are added to the scores of far pairs, other than one for a row."""
    return lines.slopes is not None or lines.query_clock is not None


def _within(
    tile: Tile, low: int | None, high: int | None, horizon: int, is_right: bool
) -> tuple[int | None, int | None]:
    """The limits of a region without keys beyond the horizon, relative to the nearest visible key.

    Only if that key is at the same distance for every query; otherwise the limits are unchanged.
    """
    if horizon >= NEVER:
        return low, high
    if is_right:
        if low is None or tile.start + low < tile.first:
            return low, high
        return low, _least(high, low + horizon)
    if high is None or tile.stop - 1 + high > tile.last - 1:
        return low, high
    return _most(low, high - horizon), high


def _horizons(plan: Plan, inputs: Inputs) -> tuple[list[list[int]], list[list[int]]]:
    """For each side, group and key head: the distance beyond the nearest key from which on keys can be skipped.

    Two scores of a query differ by at most 2 scale |q| |k|, so a key whose bias is lower than the nearest key's by more
    than that, plus the threshold of ``skip_below``, is negligible.
    """
    query, key, slopes = inputs.query, inputs.key, inputs.lines.slopes
    kv_heads, groups = key.size(1), query.size(1) // key.size(1)
    below = -skip_threshold(plan.skip_below, key.size(2))
    # A cumulative feature could outweigh the decay of the slope. Of a GPU nothing is read.
    if slopes is None or inputs.lines.query_clock is not None or below == math.inf or fused.on_gpu(query):
        never = [[NEVER] * kv_heads for _ in range(groups)]
        return never, never
    longest_q = torch.linalg.vector_norm(query.flatten(2, 2), dim=-1, dtype=slopes.dtype).amax((0, 2))
    longest_k = torch.linalg.vector_norm(key, dim=-1, dtype=slopes.dtype).amax((0, 2)).repeat_interleave(groups)
    steps = (2 * abs(inputs.scale) * longest_q * longest_k + below) / -slopes
    steps = torch.where((slopes < 0) & steps.isfinite(), steps, float(NEVER))
    sides = []
    for side in steps.view(2, kv_heads, groups).mT.tolist():
        sides.append(
            [_together([-(-(int(min(s, NEVER)) + 1) // 64) * 64 for s in heads], key.size(2)) for heads in side]
        )
    return sides[0], sides[1]


def _together(horizons: list[int], keys: int) -> list[int]:
    """The largest horizon of each group of heads, since the kernel is called for several heads at a time to occupy all
    threads. NEVER if it would skip too few keys."""
    at_once = max(MIN_HEADS, torch.get_num_threads())
    furthest = []
    for h in range(0, len(horizons), at_once):
        most = max(horizons[h : h + at_once])
        furthest += [most if most <= keys // SHARE else NEVER] * len(horizons[h : h + at_once])
    return furthest


def _alike(horizons: list[int]) -> Iterator[tuple[slice, int]]:
    """Runs of heads with one horizon."""
    starts = [h for h in range(len(horizons)) if h == 0 or horizons[h] != horizons[h - 1]]
    for a, b in pairwise([*starts, len(horizons)]):
        yield slice(a, b), horizons[a]


def _most(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
