"""Attention over a band of pairs with any terms by distance, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.backends.tiled.band import Band, Work
from posenc.backends.tiled.fused import merge
from posenc.backends.tiled.lines import Lines

Pullback: TypeAlias = Callable[[Tensor], tuple[Tensor, ...]]

PIECE = 2**17  # scores that a function is applied to at a time
LOWEST_LOG_WEIGHT = -80.0  # log weights below this are set to -inf: denormal numbers are slow


def _key_meets(band: Band, keys: Tensor, table: Tensor) -> Iterator[tuple[slice, Tensor, Tensor, Tensor, Tensor]]:
    """The products of keys with their vectors, for some keys of a window at a time: the slice of keys, the products, a
    view of them by (all, rows, keys), the vectors, and their indices in the table."""
    rows, window = band.rows, band.window
    lowest = band.entry if band.is_keyed else band.entry - (rows - 1)
    # Distances outside the band have no pair: their indices are clamped to the table.
    every = torch.arange(lowest, lowest + window + rows - 1, device=table.device).clamp(0, table.size(1) - 1)
    groups, leading = band.groups, band.shape[:4]
    for first in range(0, window, rows):
        last = min(first + rows, window)
        entries = every[first : last + rows - 1]
        entries = entries if band.is_keyed else entries.flip(0)
        vectors = table[band.heads if table.size(0) > 1 else slice(None)][:, entries]
        split = (1, 1) if table.size(0) == 1 else (-1, groups)
        wide = vectors.unflatten(0, split)[None, :, None].expand(*leading, -1, -1)
        met = keys[:, :, :, None, first:last].expand(-1, -1, -1, groups, -1, -1)
        products = (met @ wide.mT).contiguous()
        places = products.size(-1)
        step, offset = (places + 1, 0) if band.is_keyed else (places - 1, last - first - 1)
        view = products.as_strided((*leading, rows, last - first), (*products.stride()[:4], 1, step), offset)
        yield slice(first, last), products, view, vectors, entries


def _scores(
    band: Band, work: Work, q: Tensor, key: Tensor, scale: float, lines: Lines, is_backward: bool
) -> tuple[Tensor, list[Pullback]]:
    """The scores of a band, (..., rows, columns), contiguous for fast exponentials; and, for the backward pass, the
    pullbacks of ``apply``."""
    shifted = q if lines.shift is None else q + band.of_each_query(lines.shift)
    met: Tensor | None = None
    if lines.vectors is not None:
        met = band.meet_line(work, q * scale if lines.meeting is None else band.queries(lines.meeting), lines.vectors)
    scores = band.meet_keys(work, "scores", shifted * scale, band.windows(key), None if lines.is_first else met)
    pullbacks: list[Pullback] = []
    if lines.is_first:
        pullbacks = _apply(band, scores, lines, is_backward)
        if met is not None:
            scores += met
    if lines.key_vectors is not None:
        _add_key_meets(band, work, scores, band.windows(key, fill=True) * scale, lines.key_vectors)
    if lines.key_clock is not None and lines.query_clock is not None:
        # Relative to the tile's first key, in the sums' dtype: the sums grow with the text, their differences do not.
        start = lines.key_clock[..., band.tile.first, None]
        scores += band.queries(lines.query_clock - start)[..., None]
        scores -= band.of_keys(lines.key_clock - start)
    if lines.bias is not None:
        scores += band.of_line(lines.bias)
    if lines.apply is not None and not lines.is_first:
        pullbacks = _apply(band, scores, lines, is_backward)
    band.hide(scores)
    return scores, pullbacks


def _add_key_meets(band: Band, work: Work, scores: Tensor, keys: Tensor, table: Tensor) -> None:
    by_key = scores if band.is_keyed else work("products", *band.shape, band.window).zero_()
    for where, _, view, _, _ in _key_meets(band, keys, table):
        by_key[..., where] += view
    if not band.is_keyed:
        scores += band.diagonals(by_key)


def _parts(band: Band) -> Iterator[tuple[slice, slice]]:
    """Batch rows and key heads of a band, a few at a time: the function allocates its results, which should be small
    enough for the allocator to reuse memory."""
    batch, kv_heads, blocks, groups, rows = band.shape
    scores = blocks * groups * rows * band.columns  # of one key head
    heads = min(kv_heads, max(1, PIECE // scores))
    at_once = max(1, PIECE // (heads * scores)) if heads == kv_heads else 1
    for b in range(0, batch, at_once):
        for h in range(0, kv_heads, heads):
            yield slice(b, min(b + at_once, batch)), slice(h, min(h + heads, kv_heads))


@dataclass
class _Derivative:
    """The pullback of a function with a given derivative."""

    derivative: Callable[..., tuple[Tensor, ...]]
    given: tuple[Tensor, ...]

    def __call__(self, gradient: Tensor) -> tuple[Tensor, ...]:
        found = self.derivative(gradient, *self.given)
        return tuple(d.sum_to_size(x.shape) for d, x in zip(found, self.given, strict=True))


def _apply(band: Band, scores: Tensor, lines: Lines, is_backward: bool) -> list[Pullback]:
    """Applies the function to the scores in place; for the backward pass, returns the pullback of each part."""
    assert lines.apply is not None
    coefficients = () if lines.coefficients is None else tuple(band.of_line(c) for c in lines.coefficients)
    pullbacks: list[Pullback] = []
    for part in _parts(band):
        given = tuple(c[:, part[1]] if c.size(1) > 1 else c for c in coefficients)
        if not is_backward:
            scores[part] = lines.apply(scores[part], *given)
            continue
        bare = scores[part].clone()
        if lines.derivative is None:
            scores[part], pullback, *_ = torch.func.vjp(lines.apply, bare, *given)
        else:
            scores[part], pullback = lines.apply(bare, *given), _Derivative(lines.derivative, (bare, *given))
        pullbacks.append(pullback)
    return pullbacks


def _pull(band: Band, d_scores: Tensor, pullbacks: list[Pullback], d_lines: Lines) -> None:
    """Replaces the gradient of the function's result by that of its input, in place, and adds those of coefficients."""
    for part, pullback in zip(_parts(band), pullbacks, strict=True):
        d_bare, *d_given = pullback(d_scores[part])
        for n, d in enumerate(d_given):
            assert d_lines.coefficients is not None
            band.give_of_line(d_lines.coefficients[n], d, part[1])
        d_scores[part] = d_bare  # last, since the gradient of a coefficient may be the same memory


def _weights(scores: Tensor, offset: Tensor, lines: Lines) -> Tensor:
    """e^(scores - offset) in place; if the bias is so low that weights would be denormal, they are 0."""
    scores.sub_(offset)
    if lines.falls:
        F.threshold(scores, LOWEST_LOG_WEIGHT, -torch.inf, inplace=True)
    return scores.exp_()


def forward(
    band: Band,
    work: Work,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    lines: Lines,
    out: Tensor,
    lse: Tensor,
) -> None:
    """Merges the attention of a band into ``out`` and ``lse``."""
    scores, _ = _scores(band, work, band.queries(query), key, scale, lines, False)
    highest = scores.amax(-1, keepdim=True)
    highest = highest.masked_fill_(highest == -torch.inf, 0.0)
    weights = _weights(scores, highest, lines)
    sums = weights.sum(-1, keepdim=True)
    result = band.over_keys(band.by_key(work, "by key", weights), band.windows(value))
    if lines.values is not None:
        result += band.over_line(band.by_distance(work, "by distance", weights), lines.values)
    result.div_(sums.clamp(min=torch.finfo(sums.dtype).tiny))
    where = (band.tile.row, band.heads, slice(band.start, band.stop))
    merge(out[where], lse[where], band.unfold(result), band.unfold((highest + sums.log())[..., 0]))


def backward(
    band: Band,
    work: Work,
    dout: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lse: Tensor,
    delta: Tensor,
    scale: float,
    lines: Lines,
    grads: tuple[Tensor, Tensor, Tensor, Lines],
) -> None:
    """Adds the gradients through a band. ``delta`` is what the softmax backward subtracts for every pair of a row."""
    dq, dk, dv, d_lines = grads
    q, do, keys = band.queries(query), band.queries(dout), band.windows(key)
    scores, pullbacks = _scores(band, work, q, key, scale, lines, True)
    row_lse = band.queries(lse, past=torch.inf)[..., None]
    weights = _weights(scores, row_lse.masked_fill(row_lse == -torch.inf, 0.0), lines)
    band.give_windows(dv, band.over_queries(band.by_key(work, "by key", weights), do))
    d_scores = band.meet_keys(work, "d_scores", do, band.windows(value), -band.queries(delta)[..., None])
    if lines.values is not None and d_lines.values is not None:
        d_scores += band.meet_line(work, do, lines.values)
        band.give_vectors(d_lines.values, band.by_distance(work, "by distance", weights), do)
    d_scores.mul_(weights)

    if lines.apply is not None and not lines.is_first:
        _pull(band, d_scores, pullbacks, d_lines)
    by_distance = d_scores
    if lines.bias is not None or lines.vectors is not None:
        by_distance = band.by_distance(work, "by distance", d_scores)
    if lines.bias is not None and d_lines.bias is not None:
        band.give_line(d_lines.bias, by_distance.sum((0, 2, 4)).flatten(0, 1))
    dq_rows = torch.zeros_like(q)
    if lines.vectors is not None and d_lines.vectors is not None:
        d_meeting = band.over_line(by_distance, lines.vectors)
        if lines.meeting is None:
            dq_rows += d_meeting
        else:
            assert d_lines.meeting is not None
            band.give(d_lines.meeting, d_meeting)
        meeting = q * scale if lines.meeting is None else band.queries(lines.meeting)
        band.give_vectors(d_lines.vectors, by_distance, meeting)
    dk_windows: Tensor | None = None
    if lines.key_vectors is not None and d_lines.key_vectors is not None:
        by_key = band.by_key(work, "by key", d_scores)
        filled = band.windows(key, fill=True)
        dk_windows = torch.zeros_like(filled, memory_format=torch.contiguous_format)
        _key_meets_backward(band, filled * scale, lines.key_vectors, by_key, dk_windows, d_lines.key_vectors)
    if lines.query_clock is not None and d_lines.query_clock is not None and d_lines.key_clock is not None:
        band.give(d_lines.query_clock, d_scores.sum(-1))
        per_key = band.by_key(work, "by key", d_scores).sum(-2)
        for g in range(band.groups):
            total = d_lines.key_clock.unflatten(1, (-1, band.groups))[:, :, g]
            band.give_windows(total, -per_key[:, :, :, g, :])
    if lines.apply is not None and lines.is_first:
        _pull(band, d_scores, pullbacks, d_lines)
    by_key = band.by_key(work, "by key", d_scores)
    dq_part = band.over_keys(by_key, keys)
    if lines.shift is not None and d_lines.shift is not None:
        d_lines.shift[band.heads] += dq_part.sum((0, 2, 4)).flatten(0, 1) * scale
        q = q + band.of_each_query(lines.shift)
    band.give(dq, dq_rows.add_(dq_part).mul_(scale))
    band.give_windows(dk, band.over_queries(by_key, q).mul_(scale))
    if dk_windows is not None:
        band.give_windows(dk, dk_windows.mul_(scale))


def _key_meets_backward(band: Band, keys: Tensor, table: Tensor, by_key: Tensor, dk: Tensor, d_table: Tensor) -> None:
    """Adds the gradients of the scaled keys and of their vectors."""
    for where, products, view, vectors, entries in _key_meets(band, keys, table):
        d_products = products.zero_()
        view.copy_(by_key[..., where])
        split = (1, 1) if table.size(0) == 1 else (-1, band.groups)
        wide = vectors.unflatten(0, split)[None, :, None]
        dk[:, :, :, where] += (d_products @ wide).sum(3)
        met = keys[:, :, :, None, where]
        d_vectors = (d_products.mT @ met).sum((0, 2)).flatten(0, 1)
        d_vectors = d_vectors.sum(0, keepdim=True) if table.size(0) == 1 else d_vectors
        heads = slice(None) if table.size(0) == 1 else band.heads
        d_table[heads] = d_table[heads].index_add(1, entries, d_vectors)
