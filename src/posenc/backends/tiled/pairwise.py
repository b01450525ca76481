"""Attention over a block of pairs with any terms by distance, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.backends.tiled.fused import merge
from posenc.backends.tiled.lines import Gradients, Inputs, Lines, Results
from posenc.backends.tiled.near import NearBlock, Work

Pullback: TypeAlias = Callable[[Tensor], tuple[Tensor, ...]]

PIECE = 2**17  # scores that a function is applied to at a time
LOWEST_LOG_WEIGHT = -80.0  # log weights below this are set to -inf: denormal numbers are slow


def _key_meets(block: NearBlock, keys: Tensor, table: Tensor) -> Iterator[tuple[slice, Tensor, Tensor, Tensor, Tensor]]:
    """The products of keys with vectors by distance, for some keys of a block at a time: their slice, the products for
    every distance, a view of the pairs, (..., rows, keys), the vectors, and their entries in the table."""
    rows, columns = block.shape[-1], block.columns
    # The end entries of the table are repeated for masked pairs.
    every = torch.arange(block.entry, block.entry + columns + rows - 1, device=table.device).clamp(0, table.size(1) - 1)
    for first in range(0, columns, rows):
        last = min(first + rows, columns)
        entries = every[first : last + rows - 1]
        vectors = table[block.heads if table.size(0) > 1 else slice(None)][:, entries]
        products = (keys[:, :, None, first:last] @ _of_groups(block, vectors).mT).contiguous()
        strides = (*products.stride()[:3], 1, products.size(-1) + 1)
        view = products.as_strided((*products.shape[:3], rows, last - first), strides)
        yield slice(first, last), products, view, vectors, entries


def _of_groups(block: NearBlock, vectors: Tensor) -> Tensor:
    """Vectors (heads or 1, entries, width) for each key head and query head of its group."""
    split = (1, 1) if vectors.size(0) == 1 else (-1, block.groups)
    return vectors.unflatten(0, split)[None].expand(*block.shape[:3], -1, -1)


def _scores(
    block: NearBlock, work: Work, q: Tensor, inputs: Inputs, is_backward: bool
) -> tuple[Tensor, list[Pullback]]:
    """The scores of a block, (..., rows, columns), contiguous, for which exp is much faster; and, for the backward
    pass, the pullbacks of ``apply``."""
    lines, scale = inputs.lines, inputs.scale
    shifted = q if lines.shift is None else q + block.of_each_query(lines.shift)
    met: Tensor | None = None
    if lines.vectors is not None:
        met = block.meet_line(work, _meeting(block, q, inputs), lines.vectors)
    scores = block.meet_keys(work, "scores", shifted * scale, block.keys(inputs.key), None if lines.is_first else met)
    pullbacks: list[Pullback] = []
    if lines.is_first:
        pullbacks = _apply(block, scores, lines, is_backward)
        if met is not None:
            scores += met
    if lines.key_vectors is not None:
        for where, _, view, _, _ in _key_meets(block, block.keys(inputs.key), lines.key_vectors):
            scores[..., where] += view
    if lines.key_clock is not None and lines.query_clock is not None:
        # Relative to the tile's first key, in the feature's own precision: its values grow with the text, differences
        # do not.
        start = lines.key_clock[..., block.tile.first, None]
        scores += block.queries(lines.query_clock - start)[..., None]
        scores -= block.of_keys(lines.key_clock - start)
    if lines.bias is not None:
        scores += block.of_line(lines.bias)
    if lines.apply is not None and not lines.is_first:
        pullbacks = _apply(block, scores, lines, is_backward)
    block.hide(scores)
    return scores, pullbacks


def _meeting(block: NearBlock, q: Tensor, inputs: Inputs) -> Tensor:
    """The rows that vectors by distance are multiplied with."""
    return q * inputs.scale if inputs.lines.meeting is None else block.queries(inputs.lines.meeting)


def _slices(block: NearBlock) -> Iterator[tuple[slice, slice]]:
    """Batch rows and key heads of a block, a few at a time: the intermediate results of a function are newly allocated
    each time, and small enough for memory that the process has already."""
    batch, kv_heads, groups, rows = block.shape
    scores = groups * rows * block.columns  # of one key head
    heads = min(kv_heads, max(1, PIECE // scores))
    at_once = max(1, PIECE // (heads * scores)) if heads == kv_heads else 1
    for b in range(0, batch, at_once):
        for h in range(0, kv_heads, heads):
            yield slice(b, min(b + at_once, batch)), slice(h, min(h + heads, kv_heads))


@dataclass
class _Derivative:
    """The pullback of a function that brings its derivative."""

    derivative: Callable[..., tuple[Tensor, ...]]
    arguments: tuple[Tensor, ...]

    def __call__(self, gradient: Tensor) -> tuple[Tensor, ...]:
        found = self.derivative(gradient, *self.arguments)
        return tuple(d.sum_to_size(x.shape) for d, x in zip(found, self.arguments, strict=True))


def _apply(block: NearBlock, scores: Tensor, lines: Lines, is_backward: bool) -> list[Pullback]:
    """Applies the function to the scores in place; for the backward pass, returns the pullback of each slice."""
    assert lines.apply is not None
    coefficients = () if lines.coefficients is None else tuple(block.of_line(c) for c in lines.coefficients)
    pullbacks: list[Pullback] = []
    for some in _slices(block):
        mine = tuple(c[:, some[1]] if c.size(1) > 1 else c for c in coefficients)
        if not is_backward:
            scores[some] = lines.apply(scores[some], *mine)
            continue
        bare = scores[some].clone()
        if lines.derivative is None:
            scores[some], pullback, *_ = torch.func.vjp(lines.apply, bare, *mine)
        else:
            scores[some], pullback = lines.apply(bare, *mine), _Derivative(lines.derivative, (bare, *mine))
        pullbacks.append(pullback)
    return pullbacks


def _pull(block: NearBlock, d_scores: Tensor, pullbacks: list[Pullback], d_lines: Lines) -> None:
    """Replaces the gradient of the function's result by that of its input, in place, and adds those of coefficients."""
    for some, pullback in zip(_slices(block), pullbacks, strict=True):
        d_bare, *d_mine = pullback(d_scores[some])
        for n, d in enumerate(d_mine):
            assert d_lines.coefficients is not None
            block.give_of_line(d_lines.coefficients[n], d, some[1])
        d_scores[some] = d_bare  # last, since the gradient of a coefficient may be the same memory


def _weights(scores: Tensor, offset: Tensor, lines: Lines) -> Tensor:
    """e^(scores - offset) in place; if the bias is so low that weights would be denormal, they are 0."""
    scores.sub_(offset)
    if lines.falls:
        F.threshold(scores, LOWEST_LOG_WEIGHT, -torch.inf, inplace=True)
    return scores.exp_()


def forward(block: NearBlock, work: Work, inputs: Inputs, results: Results) -> None:
    """Merges the attention of a block into output and log-sum-exp."""
    lines = inputs.lines
    scores, _ = _scores(block, work, block.queries(inputs.query), inputs, False)
    highest = scores.amax(-1, keepdim=True)
    highest = highest.masked_fill_(highest == -torch.inf, 0.0)
    weights = _weights(scores, highest, lines)
    sums = weights.sum(-1, keepdim=True)
    result = block.over_keys(weights, block.keys(inputs.value))
    if lines.values is not None:
        result += block.over_line(block.by_distance(work, weights), lines.values)
    result.div_(sums.clamp(min=torch.finfo(sums.dtype).tiny))
    where = (block.tile.row, block.heads, slice(block.start, block.stop))
    merge(results.out[where], results.lse[where], block.unfold(result), block.unfold((highest + sums.log())[..., 0]))


def backward(block: NearBlock, work: Work, inputs: Inputs, results: Results, grads: Gradients) -> None:
    """Adds the gradients of a block."""
    lines, d_lines, scale = inputs.lines, grads.lines, inputs.scale
    q, do = block.queries(inputs.query), block.queries(grads.dout)
    scores, pullbacks = _scores(block, work, q, inputs, True)
    row_lse = block.queries(results.lse)[..., None]
    weights = _weights(scores, row_lse.masked_fill(row_lse == -torch.inf, 0.0), lines)
    block.give_keys(grads.value, block.over_queries(weights, do))
    ds = block.meet_keys(work, "d_scores", do, block.keys(inputs.value), -block.queries(grads.delta)[..., None])
    if lines.values is not None and d_lines.values is not None:
        ds += block.meet_line(work, do, lines.values)
        block.give_vectors(d_lines.values, block.by_distance(work, weights), do)
    ds.mul_(weights)

    if lines.apply is not None and not lines.is_first:
        _pull(block, ds, pullbacks, d_lines)
    dq = _by_distance_backward(block, work, q, ds, inputs, grads)
    if lines.key_vectors is not None and d_lines.key_vectors is not None:
        _key_meets_backward(block, inputs, ds, grads)
    if d_lines.query_clock is not None:
        _clock_backward(block, ds, d_lines)
    if lines.apply is not None and lines.is_first:
        _pull(block, ds, pullbacks, d_lines)
    through_keys = block.over_keys(ds, block.keys(inputs.key))
    if lines.shift is not None and d_lines.shift is not None:
        d_lines.shift[block.heads] += through_keys.sum((0, 3)).flatten(0, 1) * scale
        q = q + block.of_each_query(lines.shift)
    block.give(grads.query, dq.add_(through_keys).mul_(scale))
    block.give_keys(grads.key, block.over_queries(ds, q).mul_(scale))


def _by_distance_backward(
    block: NearBlock, work: Work, q: Tensor, ds: Tensor, inputs: Inputs, grads: Gradients
) -> Tensor:
    """Adds the gradients of a bias and of vectors; returns that of the scaled query, through vectors alone."""
    lines, d_lines, dq = inputs.lines, grads.lines, torch.zeros_like(q)
    if lines.bias is None and lines.vectors is None:
        return dq
    by_distance = block.by_distance(work, ds)
    if d_lines.bias is not None:
        block.give_line(d_lines.bias, by_distance.sum((0, 3)).flatten(0, 1))
    if lines.vectors is not None and d_lines.vectors is not None:
        d_meeting = block.over_line(by_distance, lines.vectors)
        if d_lines.meeting is None:
            dq += d_meeting
        else:
            block.give(d_lines.meeting, d_meeting)
        block.give_vectors(d_lines.vectors, by_distance, _meeting(block, q, inputs))
    return dq


def _key_meets_backward(block: NearBlock, inputs: Inputs, ds: Tensor, grads: Gradients) -> None:
    """Adds the gradients of keys and of the vectors that they are multiplied with."""
    table, d_table, keys = inputs.lines.key_vectors, grads.lines.key_vectors, block.keys(inputs.key)
    assert table is not None
    assert d_table is not None
    dk = torch.zeros_like(keys, memory_format=torch.contiguous_format)
    heads = slice(None) if table.size(0) == 1 else block.heads
    for where, products, view, vectors, entries in _key_meets(block, keys, table):
        d_products = products.zero_()
        view.copy_(ds[..., where])
        dk[:, :, where] += (d_products @ _of_groups(block, vectors)).sum(2)
        d_vectors = (d_products.mT @ keys[:, :, None, where]).sum(0).flatten(0, 1)
        d_vectors = d_vectors.sum(0, keepdim=True) if table.size(0) == 1 else d_vectors
        d_table[heads] = d_table[heads].index_add(1, entries, d_vectors)
    block.give_keys(grads.key, dk)


def _clock_backward(block: NearBlock, ds: Tensor, d_lines: Lines) -> None:
    """Adds the gradients of a cumulative feature."""
    assert d_lines.query_clock is not None
    assert d_lines.key_clock is not None
    block.give(d_lines.query_clock, ds.sum(-1))
    d_lines.key_clock[block.tile.row, block.heads, block.first : block.last] -= ds.sum(-2).flatten(1, 2)
