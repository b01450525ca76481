"""The forward and the backward pass of far pairs, by the fused kernel."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.backends.tiled import fused
from posenc.backends.tiled.far import regions
from posenc.backends.tiled.lines import Gradients, Inputs, Results
from posenc.backends.tiled.plan import Plan

CHANNELS = 16  # extra channels are a multiple of this, for alignment
ALIGNED = 8  # on a GPU the channels of a head, and all strides, are multiples of this


def constant_of(plan: Plan, inputs: Inputs) -> Tensor | None:
    """What every key far to the right adds to its row's scores in addition to the slope, (batch, heads, queries)."""
    lines = inputs.lines
    if plan.width is None or (lines.bias is None and lines.vectors is None):
        return None
    constant = inputs.query.new_zeros(inputs.query.shape[:3], dtype=inputs.dtype)
    if lines.bias is not None:
        constant += lines.bias[:, -1:]
        if lines.slopes is not None:
            constant -= lines.slopes[1][:, None] * plan.width
    if lines.vectors is not None:
        constant += (inputs.meeting() @ lines.vectors[:, -1, :, None])[..., 0]
    return constant


def padded_to(x: Tensor, widest: int) -> Tensor:
    """x padded to ``widest`` channels, contiguous and on a GPU aligned, which kernels do not check."""
    x = x if x.size(-1) == widest else F.pad(x, (0, widest - x.size(-1)))
    is_aligned = not fused.on_gpu(x) or not any(n % ALIGNED for n in (*x.stride()[:-1], x.storage_offset()))
    return x if x.stride(-1) == 1 and is_aligned else x.contiguous()


def _widest(inputs: Inputs, more: int = 0) -> int:
    """The number of channels that the kernel is given, with ``more`` of them than tensors have."""
    widest = max(inputs.query.size(-1), inputs.value.size(-1)) + more
    return -(-widest // ALIGNED) * ALIGNED if fused.on_gpu(inputs.query) else widest


def _padded(inputs: Inputs, widest: int) -> Inputs:
    query, key, value = (padded_to(x, widest) for x in (inputs.query, inputs.key, inputs.value))
    return replace(inputs, query=query, key=key, value=value)


def forward(plan: Plan, inputs: Inputs, results: Results) -> None:
    """Merges the attention of far pairs into the results."""
    constant, width = constant_of(plan, inputs), inputs.value.size(-1)
    wide = _padded(inputs, _widest(inputs))
    is_apart = results.right.numel() > 0
    for region in regions(plan, wide, constant):
        total, total_lse = results.out, results.lse
        if is_apart and region.far.is_right:
            total, total_lse = results.right, results.right_lse
        rows = region.of_queries(total)
        padded = padded_to(rows, wide.value.size(-1)) if wide.value.size(-1) != width else rows
        tensors = (region.of_queries(wide.query), region.of_keys(wide.key), region.of_keys(wide.value))
        total_lse = region.of_queries(total_lse)
        fused.forward(region.kernel, tensors, region.sections(), region.far, inputs.scale, padded, total_lse)
        if padded is not rows:
            rows.copy_(padded[..., :width])
    if is_apart:
        if inputs.lines.values is not None:
            results.right += inputs.lines.values[:, -1:] * (results.right_lse > -torch.inf)[..., None]
        fused.merge(results.out, results.lse, results.right, results.right_lse)


def backward(plan: Plan, inputs: Inputs, results: Results, out: Tensor, grads: Gradients) -> None:
    """Adds the gradients of far pairs, given the output in the inputs' dtype."""
    _sections_backward(plan, inputs, results, out, grads)
    if results.right.numel():
        right_backward(inputs, results, grads)
    if grads.lines.query_clock is not None:
        # A row's score gradients sum to that of its log-sum-exp, over near and far pairs.
        grads.lines.query_clock.zero_()
        if grads.dlse is not None:
            grads.lines.query_clock += grads.dlse.masked_fill(results.lse == -torch.inf, 0.0)


def _sections_backward(plan: Plan, inputs: Inputs, results: Results, out: Tensor, grads: Gradients) -> None:
    """Adds the gradients through the sections of the fused kernel."""
    widest = max(inputs.query.size(-1), inputs.value.size(-1))
    has_extra = grads.dlse is not None or inputs.lines.key_clock is not None
    wide = _padded(inputs, _widest(inputs, CHANNELS if has_extra else 0))
    do, o = (padded_to(x, wide.query.size(-1)) for x in (grads.dout, out))
    o_right = _output_to_the_right(inputs, results, out, o)
    if has_extra:  # padded, so these tensors are copies
        wide.query[..., widest] = 1.0
        if grads.dlse is not None:
            do[..., widest] = 1.0
            o[..., widest] = -grads.dlse.masked_fill(results.lse == -torch.inf, 0.0).to(o.dtype)
            o_right[..., widest] = o[..., widest]
    totals = (grads.query, grads.key, grads.value)
    padded = wide.query.size(-1)
    dq, dk, dv = (x.new_zeros((*x.shape[:-1], padded)) if x.size(-1) != padded else x for x in totals)
    for region in regions(plan, wide, constant_of(plan, inputs)):
        fused.backward(
            region.kernel,
            region.of_queries(do),
            (region.of_queries(wide.query), region.of_keys(wide.key), region.of_keys(wide.value)),
            region.of_queries(o_right if region.far.is_right else o),
            region.of_queries(results.lse),
            region.sections(),
            region.far,
            inputs.scale,
            (region.of_queries(dq), region.of_keys(dk), region.of_keys(dv)),
        )
        if grads.lines.key_clock is not None:  # only of these heads, since others may share the keys
            here = region.of_keys(dk)[..., widest]
            region.of_queries(grads.lines.key_clock).sub_(here / inputs.scale)
            here.zero_()
    for total, wide_total in zip(totals, (dq, dk, dv), strict=True):
        if wide_total is not total:
            total += wide_total[..., : total.size(-1)]


def _output_to_the_right(inputs: Inputs, results: Results, out: Tensor, padded: Tensor) -> Tensor:
    """The padded output as far pairs to the right need it: there the value door adds the same vector for every
    key. The kernel subtracts grad . out from the gradient of every weight, so the vector is subtracted from out."""
    values = inputs.lines.values
    if not results.right.numel() or values is None:
        return padded
    return padded_to((out.to(inputs.dtype) - values[:, -1:]).to(out.dtype), padded.size(-1))


def right_backward(inputs: Inputs, results: Results, grads: Gradients) -> None:
    """Adds the gradients of the terms that pairs far to the right share: a constant per row, a vector of the value
    door."""
    lines, d_lines = inputs.lines, grads.lines
    share = (results.right_lse - results.lse).exp().masked_fill(results.right_lse == -torch.inf, 0.0)
    if d_lines.values is not None:
        d_lines.values[:, -1] += _of_table(d_lines.values, share, grads.dout.to(share.dtype))
    d_constant = share * ((grads.dout * results.right).sum(-1, dtype=share.dtype) - grads.delta)
    if d_lines.bias is not None:
        d_lines.bias[:, -1] += d_constant.sum((0, 2))
    if lines.vectors is not None and d_lines.vectors is not None:
        d_lines.vectors[:, -1] += _of_table(d_lines.vectors, d_constant, inputs.meeting())
        d_meeting = d_constant[..., None] * lines.vectors[:, -1:]
        if d_lines.meeting is not None:
            d_lines.meeting += d_meeting
        else:
            grads.query += d_meeting * inputs.scale


def _of_table(table: Tensor, share: Tensor, rows: Tensor) -> Tensor:
    """The sum of rows times their share, of each head or, for a table of all heads, of all."""
    found = torch.einsum("bhi,bhid->hd", share, rows)
    return found if table.size(0) > 1 else found.sum(0, keepdim=True)
