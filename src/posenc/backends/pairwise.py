"""Attention over a band, pair by pair: whatever a score is made of by distance, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.backends.band import Band, Lines, Work
from posenc.backends.fused import merge

PIECE = 2**17  # scores that a function is applied to at a time
FAINT = -80.0  # weights below e to this power are taken for 0: they would soon be denormal numbers, which are slow


def _key_meets(band: Band, keys: Tensor, line: Tensor) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """What keys give by the vectors they meet, for some keys of a window at a time: their slice, the products, what is
    to be added for (all, rows, keys), a view of them, and the vectors."""
    rows, window, lowest = band.rows, band.window, band.entry - (band.rows - 1)
    # Distances off the band have no pair; the vectors at the line's ends stand for them.
    every = torch.arange(lowest, lowest + window + rows - 1, device=line.device).clamp(0, line.size(1) - 1)
    batch, kv_heads, blocks, groups, _ = band.shape
    for first in range(0, window, rows):
        last = min(first + rows, window)
        mine = every[first : last + rows - 1].flip(0)
        vectors = line[band.heads if line.size(0) > 1 else slice(None)][:, mine]
        split = (1, 1) if line.size(0) == 1 else (-1, groups)
        wide = vectors.unflatten(0, split)[None, :, None].expand(batch, kv_heads, blocks, groups, -1, -1)
        met = keys[:, :, :, None, first:last].expand(-1, -1, -1, groups, -1, -1)
        products = (met @ wide.mT).contiguous()
        places = products.size(-1)
        view = products.as_strided(
            (*products.shape[:4], rows, last - first), (*products.stride()[:4], 1, places - 1), last - first - 1
        )
        yield slice(first, last), products, view, vectors


def _scores(
    band: Band, work: Work, q: Tensor, key: Tensor, scale: float, lines: Lines, is_backward: bool
) -> tuple[Tensor, Tensor | None]:
    """The scores of a band, (..., rows, distances), side by side, which exponentials are far faster on; and, for the
    backward pass, what ``apply`` was given."""
    shifted = q if lines.shift is None else q + band.of_each_query(lines.shift)
    full = band.products(work, shifted * scale, band.windows(key))
    scores = work("band", *band.shape, band.distances)
    bare: Tensor | None = None
    if lines.is_first:
        bare = _apply(band, work, scores.copy_(band.diagonals(full)), lines, is_backward)
        if lines.key_vectors is not None:
            full.zero_()
    if lines.key_vectors is not None:
        for where, _, view, _ in _key_meets(band, band.windows(key, fill=True) * scale, lines.key_vectors):
            full[..., where] += view
    if lines.is_first:
        if lines.key_vectors is not None:
            scores += band.diagonals(full)
        if lines.vectors is not None:
            scores += _met(band, work, q, scale, lines)
    elif lines.vectors is not None:
        torch.add(band.diagonals(full), _met(band, work, q, scale, lines), out=scores)
    else:
        scores.copy_(band.diagonals(full))
    if lines.key_clock is not None and lines.query_clock is not None:
        # Counted from the tile's first key, in the clock's own precision: readings grow with the text, differences not.
        start = lines.key_clock[..., band.tile.first, None]
        scores += band.queries(lines.query_clock - start)[..., None]
        scores -= _band_of_keys(band, _grouped_windows(band, lines.key_clock - start))
    if lines.bias is not None:
        scores += band.per_head(lines.bias)
    if lines.apply is not None and not lines.is_first:
        bare = _apply(band, work, scores, lines, is_backward)
    outside = band.outside(q.device)
    if outside is not None:
        scores.masked_fill_(outside, -torch.inf)
    return scores, bare


def _parts(band: Band, lines: Lines) -> Iterator[tuple[tuple[slice, ...], int, tuple[Tensor, ...]]]:
    """The band a piece at a time: an index into its scores, the key head, and the coefficients there. What a function
    makes of a piece is got anew every time, and small enough for memory that the process has already."""
    given = () if lines.coefficients is None else tuple(band.per_head(c) for c in lines.coefficients)
    batch, kv_heads, blocks, groups, rows = band.shape
    step = -(-PIECE // (batch * blocks * groups * band.distances))
    for h in range(kv_heads):
        here = tuple(c[:, h : h + 1] if c.size(1) > 1 else c for c in given)
        for row in range(0, rows, step):
            yield (slice(None), slice(h, h + 1), slice(None), slice(None), slice(row, row + step)), h, here


def _apply(band: Band, work: Work, scores: Tensor, lines: Lines, is_backward: bool) -> Tensor | None:
    """Applies the function to the scores, in place; gives what they were, for the backward pass."""
    assert lines.apply is not None
    bare = work("bare", *scores.shape).copy_(scores) if is_backward else None
    for where, _, given in _parts(band, lines):
        scores[where] = lines.apply(scores[where], *given)
    return bare


def _pull(band: Band, d_scores: Tensor, bare: Tensor | None, lines: Lines, d_lines: Lines) -> None:
    """Takes the gradient of what the function gave back to what it was given, in place, and to its coefficients."""
    assert lines.apply is not None
    assert bare is not None
    for where, h, given in _parts(band, lines):
        _, pullback, *_ = torch.func.vjp(lines.apply, bare[where], *given)
        d_bare, *d_given = pullback(d_scores[where])
        first = band.heads.start + h * band.groups
        for n, d in enumerate(d_given):
            assert d_lines.coefficients is not None
            d_lines.coefficients[n, first : first + band.groups, band.line] += d.reshape(-1, band.distances)
        d_scores[where] = d_bare  # last, since the gradient of a coefficient may be the same memory


def _met(band: Band, work: Work, q: Tensor, scale: float, lines: Lines) -> Tensor:
    """The products of queries with the vectors of their distances."""
    assert lines.vectors is not None
    meeting = q * scale if lines.meeting is None else band.queries(lines.meeting)
    met = work("met", math.prod(band.shape[:4]), band.rows, band.distances)
    torch.bmm(meeting.flatten(0, 3), band.each(lines.vectors).mT, out=met)
    return met.view(*band.shape, -1)


def _weights(scores: Tensor, offset: Tensor, lines: Lines) -> Tensor:
    """e^(scores - offset) in place; faint ones are 0 where the bias falls so far that they would be denormal."""
    scores.sub_(offset)
    if lines.falls:
        F.threshold(scores, FAINT, -torch.inf, inplace=True)
    return scores.exp_()


def _grouped_windows(band: Band, clock: Tensor) -> Tensor:
    """The readings of (batch, heads, keys) in the windows, (batch, kv_heads, blocks, groups, window)."""
    by_group = [band.windows(clock.unflatten(1, (-1, band.groups))[:, :, g], fill=True) for g in range(band.groups)]
    return torch.stack(by_group, 3).contiguous()


def _band_of_keys(band: Band, windows: Tensor) -> Tensor:
    """Of one number for each key of a window that of every pair, (..., rows, distances), a view."""
    return windows.as_strided(
        (*windows.shape[:4], band.rows, band.distances), (*windows.stride()[:4], 1, 1), windows.storage_offset()
    )


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
    result = band.over_keys(band.spread(work, "spread", weights), band.windows(value))
    if lines.values is not None:
        result += torch.bmm(weights.flatten(0, 3), band.each(lines.values)).view(result.shape)
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
    """Adds the gradients through a band. ``delta`` is what the softmax takes from every pair of a row."""
    dq, dk, dv, d_lines = grads
    q, do, keys = band.queries(query), band.queries(dout), band.windows(key)
    scores, bare = _scores(band, work, q, key, scale, lines, True)
    row_lse = band.queries(lse, past=torch.inf)[..., None]
    weights = _weights(scores, row_lse.masked_fill(row_lse == -torch.inf, 0.0), lines)
    band.give_windows(dv, band.over_queries(band.spread(work, "spread", weights), do))
    d_weights = band.diagonals(band.products(work, do, band.windows(value)))
    d_scores = torch.sub(d_weights, band.queries(delta)[..., None], out=work("d_band", *weights.shape))
    if lines.values is not None and d_lines.values is not None:
        do_all, all_weights = do.flatten(0, 3), weights.flatten(0, 3)
        d_scores += torch.bmm(do_all, band.each(lines.values).mT).view(d_scores.shape)
        band.gather_each(d_lines.values, torch.bmm(all_weights.mT, do_all))
    d_scores.mul_(weights)

    if lines.apply is not None and not lines.is_first:
        _pull(band, d_scores, bare, lines, d_lines)
    if lines.bias is not None and d_lines.bias is not None:
        d_lines.bias[band.heads, band.line] += d_scores.sum((0, 2, 4)).flatten(0, 1)
    dq_rows = torch.zeros_like(q)
    if lines.vectors is not None and d_lines.vectors is not None:
        meeting = (q * scale if lines.meeting is None else band.queries(lines.meeting)).flatten(0, 3)
        all_d = d_scores.flatten(0, 3)
        d_meeting = torch.bmm(all_d, band.each(lines.vectors)).view(*band.shape, -1)
        if lines.meeting is None:
            dq_rows += d_meeting
        else:
            assert d_lines.meeting is not None
            band.give(d_lines.meeting, d_meeting)
        band.gather_each(d_lines.vectors, torch.bmm(all_d.mT, meeting))
    dk_windows: Tensor | None = None
    if lines.key_vectors is not None and d_lines.key_vectors is not None:
        d_full = band.spread(work, "d_spread", d_scores)
        filled = band.windows(key, fill=True)
        dk_windows = torch.zeros_like(filled, memory_format=torch.contiguous_format)
        _key_meets_backward(band, filled * scale, lines.key_vectors, d_full, dk_windows, d_lines.key_vectors)
    if lines.query_clock is not None and d_lines.query_clock is not None and d_lines.key_clock is not None:
        band.give(d_lines.query_clock, d_scores.sum(-1))
        by_key = band.spread(work, "d_spread", d_scores).sum(-2)
        for g in range(band.groups):
            total = d_lines.key_clock.unflatten(1, (-1, band.groups))[:, :, g]
            band.give_windows(total, -by_key[:, :, :, g, :])
    if lines.apply is not None and lines.is_first:
        _pull(band, d_scores, bare, lines, d_lines)
    d_full = band.spread(work, "d_spread", d_scores)
    dq_part = band.over_keys(d_full, keys)
    if lines.shift is not None and d_lines.shift is not None:
        d_lines.shift[band.heads] += dq_part.sum((0, 2, 4)).flatten(0, 1) * scale
        q = q + band.of_each_query(lines.shift)
    band.give(dq, dq_rows.add_(dq_part).mul_(scale))
    band.give_windows(dk, band.over_queries(d_full, q).mul_(scale))
    if dk_windows is not None:
        band.give_windows(dk, dk_windows.mul_(scale))


def _key_meets_backward(band: Band, keys: Tensor, line: Tensor, d_full: Tensor, dk: Tensor, d_line: Tensor) -> None:
    """Adds to the gradients of the scaled keys and of the vectors that they meet."""
    lowest = band.entry - (band.rows - 1)
    every = torch.arange(lowest, lowest + band.window + band.rows - 1, device=line.device).clamp(0, line.size(1) - 1)
    for where, products, view, vectors in _key_meets(band, keys, line):
        d_products = products.zero_()
        view.copy_(d_full[..., where])
        split = (1, 1) if line.size(0) == 1 else (-1, band.groups)
        wide = vectors.unflatten(0, split)[None, :, None]
        dk[:, :, :, where] += (d_products @ wide).sum(3)
        met = keys[:, :, :, None, where]
        d_vectors = (d_products.mT @ met).sum((0, 2)).flatten(0, 1)
        d_vectors = d_vectors.sum(0, keepdim=True) if line.size(0) == 1 else d_vectors
        entries = every[where.start : where.stop + band.rows - 1].flip(0)
        heads = slice(None) if line.size(0) == 1 else band.heads
        d_line[heads] = d_line[heads].index_add(1, entries, d_vectors)
