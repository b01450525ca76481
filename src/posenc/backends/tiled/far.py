"""Splits a call of the tiled backend into near bands, computed pair by pair, and distant parts for the fused kernel."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.backends.tiled import band, fused
from posenc.backends.tiled.lines import Lines
from posenc.encoding.horizon import skip_threshold
from posenc.positions.tiles import Tile, Tiling

CHANNELS = 16  # extra channels, a multiple that keeps rows aligned
NEVER = 2**62  # a horizon beyond all keys
SHARE = 6  # a horizon below a sixth of the keys saves more than its calls cost (measured: docs/log.md)
MIN_HEADS = 2  # the minimum number of heads per kernel call


@dataclass
class Plan:
    """The operator's integer arguments, decoded."""

    found: tuple[Tile, ...]
    width: int | None  # W; None: every distance is near
    lowest: int
    skip_below: float  # the fraction of a row's weight that may be skipped
    keeps_right: bool  # keep the results of pairs far to the right, which have learned or added terms

    @property
    def straight_from(self) -> int:
        """The lowest distance to the right that is beyond the near band."""
        assert self.width is not None
        return max(self.width, 1)


@functools.lru_cache(maxsize=16)  # all layers, forward and backward, have the same numbers
def _tiles(tiling: tuple[int, ...], rows: int) -> tuple[Tile, ...]:
    return tuple(Tiling.unflat(tiling).tiles(rows))


def planned(
    rows: int,
    tiling: Sequence[int],
    form: Sequence[int],
    skip_below: float,
) -> Plan:
    """Decodes the operator's integer arguments."""
    found = _tiles(tuple(tiling), rows)
    is_banded, width, lowest, _, keeps_right = form
    return Plan(found, None if is_banded else width, lowest, skip_below, bool(keeps_right))


@dataclass
class _Far:
    """The terms of distant pairs: slopes for each side, a constant per row to the right, and cumulative features."""

    slopes: Tensor | None  # (2, heads): to the left and to the right, per unit of distance
    constant: Tensor | None  # (batch, heads, queries), of pairs to the right
    query_clock: Tensor | None
    key_clock: Tensor | None
    heads: list[int]
    tile: Tile
    is_right: bool
    triangles: dict[tuple[str, int, int], Tensor]
    kernel_dtype: torch.dtype

    def __call__(self, part: fused.Part) -> tuple[Tensor | None, Tensor | None]:
        mask: Tensor | None = None
        row: Tensor | None = None
        if self.constant is not None and self.is_right:
            row = self.constant[self.tile.row, self.heads, part.queries]
        if self.slopes is not None:
            mask, more = self._sloped(part)
            row = row if more is None else more if row is None else row + more
        if self.query_clock is not None and self.key_clock is not None:
            here = self.query_clock[self.tile.row, self.heads, part.queries]
            there = self.key_clock[self.tile.row, self.heads, part.keys]
            corner = there[..., :1] if self.is_right else there[..., -1:]
            dtype = torch.promote_types(self.kernel_dtype, torch.float32)  # the sums may be float64
            by_key, by_row = (corner - there)[:, :, None].to(dtype), (here - corner).to(dtype)
            mask = by_key if mask is None else mask + by_key
            row = by_row if row is None else row + by_row
        return mask, row

    def _sloped(self, part: fused.Part) -> tuple[Tensor, Tensor | None]:
        assert self.slopes is not None
        assert self.tile.distance is not None
        slope = self.slopes[int(self.is_right), self.heads][:, None]
        device = slope.device
        if part.shape in ("before", "after", "band"):
            kind = (part.shape, part.stop - part.start, part.first - part.start)
            if kind not in self.triangles:
                query = torch.arange(part.start, part.stop, device=device)
                key = torch.arange(part.first, part.last, device=device)
                away = (key - query[:, None] + self.tile.distance).abs()
                self.triangles[kind] = (slope[..., None] * away)[None]
            return self.triangles[kind], None
        query = torch.arange(part.start, part.stop, device=device)
        key = torch.arange(part.first, part.last, device=device)
        if self.is_right:  # the nearest pair is the last query and the first key
            start = part.first - (part.stop - 1) + self.tile.distance
            return (slope * (key - part.first))[None, :, None], (slope * (part.stop - 1 - query + start))[None]
        start = part.start - (part.last - 1) - self.tile.distance
        return (slope * (part.last - 1 - key))[None, :, None], (slope * (query - part.start + start))[None]


@dataclass
class _Region:
    """The distant part of a tile for some query heads, with the same index in the groups of consecutive key heads."""

    far: _Far
    kv_heads: slice
    low: int | None
    high: int | None

    def of_queries(self, x: Tensor) -> Tensor:
        """Their rows of (batch, heads, ...), a view."""
        heads = self.far.heads
        step = heads[1] - heads[0] if len(heads) > 1 else 1
        return x[self.far.tile.row, heads[0] : heads[-1] + 1 : step]

    def of_keys(self, x: Tensor) -> Tensor:
        """Their rows of (batch, kv_heads, ...), a view."""
        return x[self.far.tile.row, self.kv_heads]

    def parts(self) -> Iterator[fused.Part]:
        """The parts to call the kernel for."""
        tile = self.far.tile
        return fused.parts(tile.start, tile.stop, tile.first, tile.last, self.low, self.high)


def regions(
    plan: Plan,
    query: Tensor,
    key: Tensor,
    slopes: Tensor | None,
    constant: Tensor | None,
    query_clock: Tensor | None,
    key_clock: Tensor | None,
    scale: float,
) -> Iterator[_Region]:
    assert plan.width is not None
    groups = query.size(1) // key.size(1)
    sided = slopes is not None or constant is not None or plan.width > 0
    # A cumulative feature could outweigh the decay of the slope.
    horizons = _horizons(query, key, slopes if query_clock is None else None, scale, plan)
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
            for g in range(groups):
                for kv, horizon in _alike(horizons[int(is_right)][g]):
                    heads = [h * groups + g for h in range(kv.start, kv.stop)]
                    shared = triangles.setdefault((tuple(heads), is_right, tile.distance), {})
                    far = _Far(slopes, constant, query_clock, key_clock, heads, tile, is_right, shared, query.dtype)
                    yield _Region(far, kv, *_within(tile, low, high, horizon, is_right))


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


def _horizons(
    query: Tensor, key: Tensor, slopes: Tensor | None, scale: float, plan: Plan
) -> tuple[list[list[int]], list[list[int]]]:
    """For each side, group and key head: the distance beyond the nearest key from which on keys can be skipped.

    Two scores of a query differ by at most 2 scale |q| |k|, so a key whose bias is lower than the nearest key's by more
    than that, plus the threshold of ``skip_below``, is negligible.
    """
    kv_heads, groups = key.size(1), query.size(1) // key.size(1)
    below = -skip_threshold(plan.skip_below, key.size(2))
    if slopes is None or below == math.inf:
        never = [[NEVER] * kv_heads for _ in range(groups)]
        return never, never
    longest_q = torch.linalg.vector_norm(query.flatten(2, 2), dim=-1, dtype=slopes.dtype).amax((0, 2))
    longest_k = torch.linalg.vector_norm(key, dim=-1, dtype=slopes.dtype).amax((0, 2)).repeat_interleave(groups)
    steps = (2 * abs(scale) * longest_q * longest_k + below) / -slopes
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


def near(plan: Plan, query: Tensor, key: Tensor, dtype: torch.dtype) -> Iterator[band.Band]:
    """The bands of pairs that are computed one by one."""
    for tile in plan.found:
        if plan.width is None:
            low, high = tile.first - tile.stop, tile.last - tile.start
        else:
            assert plan.width == 0 or tile.distance is not None
            low, high = 1 - plan.width - (tile.distance or 0), plan.width - 1 - (tile.distance or 0)
        if low <= high:
            yield from band.bands(tile, low, high, (tile.distance or 0) - plan.lowest, query, key, dtype)


def constant_of(query: Tensor, lines: Lines, slopes: Tensor | None, plan: Plan, scale: float) -> Tensor | None:
    """What every key far to the right adds to its row's scores in addition to the slope, (batch, heads, queries)."""
    if plan.width is None or (lines.bias is None and lines.vectors is None):
        return None
    constant = query.new_zeros(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))
    if lines.bias is not None:
        constant += lines.bias[:, -1:]
        if slopes is not None:
            constant -= slopes[1][:, None] * plan.width
    if lines.vectors is not None:
        meeting = query.to(constant.dtype) * scale if lines.meeting is None else lines.meeting
        constant += (meeting @ lines.vectors[:, -1, :, None])[..., 0]
    return constant


def padded_to(x: Tensor, widest: int) -> Tensor:
    """x padded to ``widest`` channels, contiguous, which the kernel does not check."""
    x = x if x.size(-1) == widest else F.pad(x, (0, widest - x.size(-1)))
    return x if x.stride(-1) == 1 else x.contiguous()


def far_backward(
    plan: Plan,
    dout: Tensor,
    dlse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    lines: Lines,
    d_lines: Lines,
    slopes: Tensor | None,
    constant: Tensor | None,
    right: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    scale: float,
) -> None:
    """Adds the gradients through the parts of the fused kernel."""
    width = query.size(-1)
    widest = max(width, value.size(-1))
    extra = dlse is not None or lines.key_clock is not None
    wide = widest + CHANNELS if extra else widest
    q, k, v, do, o = (padded_to(x, wide) for x in (query, key, value, dout, out))
    o_right = o
    if right.numel() and lines.values is not None:
        # To the right of the band, the value door adds the same vector for every key. The kernel subtracts grad . out
        # from the gradient of every weight, so the vector is subtracted from the output.
        o_right = padded_to((out.to(dq.dtype) - lines.values[:, -1:]).to(out.dtype), wide)
    if extra:  # padded, so these tensors are copies
        q[..., widest] = 1.0
        if dlse is not None:
            do[..., widest] = 1.0
            o[..., widest] = -dlse.masked_fill(lse == -torch.inf, 0.0).to(o.dtype)
            o_right[..., widest] = o[..., widest]
    dq_wide, dk_wide, dv_wide = (x.new_zeros((*x.shape[:-1], wide)) if x.size(-1) != wide else x for x in (dq, dk, dv))
    for region in regions(plan, q, k, slopes, constant, lines.query_clock, lines.key_clock, scale):
        fused.backward(
            region.of_queries(do),
            region.of_queries(q),
            region.of_keys(k),
            region.of_keys(v),
            region.of_queries(o_right if region.far.is_right else o),
            region.of_queries(lse),
            region.parts(),
            region.far,
            scale,
            region.of_queries(dq_wide),
            region.of_keys(dk_wide),
            region.of_keys(dv_wide),
        )
        if d_lines.key_clock is not None:  # only of these heads, since others may share the keys
            here = region.of_keys(dk_wide)[..., widest]
            region.of_queries(d_lines.key_clock).sub_(here / scale)
            here.zero_()
    for total, part in ((dq, dq_wide), (dk, dk_wide), (dv, dv_wide)):
        if part is not total:
            total += part[..., : total.size(-1)]


def right_backward(
    dout: Tensor,
    query: Tensor,
    lse: Tensor,
    delta: Tensor,
    lines: Lines,
    d_lines: Lines,
    right: Tensor,
    right_lse: Tensor,
    dq: Tensor,
    scale: float,
) -> None:
    """Adds the gradients of the terms that pairs far to the right share: a constant per row, a vector of the value
    door."""
    share = (right_lse - lse).exp().masked_fill(right_lse == -torch.inf, 0.0)
    if lines.values is not None and d_lines.values is not None:
        of_values = torch.einsum("bhi,bhid->hd", share, dout.to(share.dtype))
        d_lines.values[:, -1] += of_values if lines.values.size(0) > 1 else of_values.sum(0, keepdim=True)
    d_constant = share * ((dout * right).sum(-1, dtype=share.dtype) - delta)
    if d_lines.bias is not None:
        d_lines.bias[:, -1] += d_constant.sum((0, 2))
    if lines.vectors is not None and d_lines.vectors is not None:
        meeting = query.to(share.dtype) * scale if lines.meeting is None else lines.meeting
        of_vectors = torch.einsum("bhi,bhid->hd", d_constant, meeting)
        d_lines.vectors[:, -1] += of_vectors if lines.vectors.size(0) > 1 else of_vectors.sum(0, keepdim=True)
        d_meeting = d_constant[..., None] * lines.vectors[:, -1:]
        if d_lines.meeting is not None:
            d_lines.meeting += d_meeting
        else:
            dq += d_meeting * scale
