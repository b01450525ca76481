"""The operator of the tiled backend: attention tile by tile in linear memory, forward and backward, by PyTorch's fused
CPU kernel where scores are linear in distance, and by `band.py` where they are not.

Let every term of a call be constant or linear in distance from distance W on, on each side, and let there be more than
eight times W keys, or W = 0; otherwise everything is one band. The pairs with |r| < W form a band along the diagonal,
whose scores are computed one by one. All other pairs use the fused kernel. A constant along a row only shifts its
log-sum-exp, and the softmax does not change, so terms are relative to their value far to the left. Over a rectangle, a
slope is a number per key plus a number per query, relative to the corner of the smallest distance, so neither is larger
than the bias itself, and no digits are lost at 32k tokens or in bfloat16; the same holds for cumulative features. Near
and distant pairs are merged by log-sum-exp, and the backward pass runs over the same parts with the output and the
log-sum-exp of the whole row.

If a bias decays with distance, keys beyond a horizon have less than ``skip_below`` of their row's weight, whatever the
contents. They are skipped, which also avoids denormal weights.

The gradient of the log-sum-exp uses an extra channel: with ones next to the output's gradient and -dlse next to the
output, the kernel subtracts dlse for every pair. Ones in the same channel of the query accumulate the gradient of a
cumulative feature.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.backends.eligible import by_name
from posenc.backends.tiled import band, fused, pairwise
from posenc.backends.tiled.far import (
    Plan,
    constant_of,
    far_backward,
    near,
    padded_to,
    planned,
    regions,
    right_backward,
)
from posenc.backends.tiled.lines import Lines

# custom_op evaluates annotations, so no `from __future__ import annotations` here.


def _decoded(
    rows: int,
    tables: Sequence[Tensor],
    names: str,
    tiling: Sequence[int],
    form: Sequence[int],
    apply: str,
    skip_below: float,
) -> tuple[Plan, Lines]:
    """The plan and the lines of the operators' arguments. ``names`` are the fields of `Lines` of the tables; ``apply``
    names the function and, if it has one, its derivative."""
    plan = planned(rows, tiling, form, skip_below)
    lines = Lines(plan.lowest, is_last=bool(form[3]))
    for name, function in zip(("apply", "derivative"), apply.split(), strict=False):
        setattr(lines, name, by_name(function))
    for name, table in zip(names.split(), tables, strict=True):
        setattr(lines, name, table)
    lines.falls = lines.bias is not None and bool(lines.bias.amin() < pairwise.LOWEST_LOG_WEIGHT / 2)
    return plan, lines


@torch.library.custom_op("posenc::tiled", mutates_args=())
def _tiled(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tables: Sequence[Tensor],
    slopes: Tensor | None,
    names: str,
    tiling: Sequence[int],
    form: Sequence[int],
    apply: str,
    scale: float,
    skip_below: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output and log-sum-exp and, for the backward pass, the unrounded output, and the output and log-sum-exp of the
    keys far to the right. The last three are empty if they are not needed."""
    plan, lines = _decoded(query.size(0), tables, names, tiling, form, apply, skip_below)
    dtype = torch.promote_types(query.dtype, torch.float32)
    out = value.new_zeros((*query.shape[:3], value.size(-1)), dtype=dtype)
    lse = query.new_full(query.shape[:3], -torch.inf, dtype=dtype)
    right, right_lse = out.new_empty(0), lse.new_empty(0)
    work = band.Work(query, dtype)
    for part in near(plan, query, key, dtype):
        pairwise.forward(part, work, query, key, value, scale, lines, out, lse)
    del work  # frees memory for the fused kernel
    if plan.width is not None:
        widest = max(query.size(-1), value.size(-1))
        q, k, v = (padded_to(x, widest) for x in (query, key, value))
        constant = constant_of(query, lines, slopes, plan, scale)
        if plan.keeps_right:
            right, right_lse = torch.zeros_like(out), torch.full_like(lse, -torch.inf)
        for region in regions(plan, q, k, slopes, constant, lines.query_clock, lines.key_clock, scale):
            apart = region.far.is_right and right.numel() > 0
            total, total_lse = (right, right_lse) if apart else (out, lse)
            sums = region.of_queries(total_lse)
            whole = region.of_queries(total)
            if widest != value.size(-1):
                whole = F.pad(whole, (0, widest - value.size(-1)))
            fused.forward(
                region.of_queries(q),
                region.of_keys(k),
                region.of_keys(v),
                region.parts(),
                region.far,
                scale,
                whole,
                sums,
            )
            if widest != value.size(-1):
                region.of_queries(total).copy_(whole[..., : value.size(-1)])
        if right.numel():
            if lines.values is not None:
                right += lines.values[:, -1:] * (right_lse > -torch.inf)[..., None]
            fused.merge(out, lse, right, right_lse)
    exact = out.new_empty(0) if out.dtype == query.dtype else out
    return out.to(query.dtype) if exact.numel() else out, lse, exact, right, right_lse


@torch.library.custom_op("posenc::tiled_backward", mutates_args=())
def _tiled_backward(
    dout: Tensor,
    dlse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tables: Sequence[Tensor],
    slopes: Tensor | None,
    out: Tensor,
    lse: Tensor,
    exact: Tensor,
    right: Tensor,
    right_lse: Tensor,
    names: str,
    tiling: Sequence[int],
    form: Sequence[int],
    apply: str,
    scale: float,
    skip_below: float,
) -> list[Tensor]:
    """The gradients of query, key, value, and of the tables."""
    plan, lines = _decoded(query.size(0), tables, names, tiling, form, apply, skip_below)
    dtype = lse.dtype
    d_lines = lines.zeros()
    dq, dk, dv = (x.new_zeros(x.shape, dtype=dtype) for x in (query, key, value))
    whole = exact if exact.numel() else out
    delta = (dout * whole).sum(-1, dtype=dtype)
    if dlse is not None:
        delta = delta - dlse.masked_fill(lse == -torch.inf, 0.0)
    work = band.Work(query, dtype)
    for part in near(plan, query, key, dtype):
        pairwise.backward(part, work, dout, query, key, value, lse, delta, scale, lines, (dq, dk, dv, d_lines))
    del work
    if plan.width is not None:
        constant = constant_of(query, lines, slopes, plan, scale)
        call = (dout, dlse, query, key, value, out, lse)
        far_backward(plan, *call, lines, d_lines, slopes, constant, right, dq, dk, dv, scale)
        if right.numel():
            right_backward(dout, query, lse, delta, lines, d_lines, right, right_lse, dq, scale)
        if d_lines.query_clock is not None:
            # The gradients of all scores of a row sum to that of its log-sum-exp.
            d_lines.query_clock.zero_()
            if dlse is not None:
                d_lines.query_clock += dlse.masked_fill(lse == -torch.inf, 0.0)
    return [*(x.to(query.dtype) for x in (dq, dk, dv)), *(getattr(d_lines, name) for name in names.split())]


@_tiled.register_fake
def _(query, key, value, tables, slopes, names, tiling, form, *_):  # type: ignore[no-untyped-def]
    dtype = torch.promote_types(query.dtype, torch.float32)
    out = value.new_empty((*query.shape[:3], value.size(-1)))
    lse = query.new_empty(query.shape[:3], dtype=dtype)
    exact = lse.new_empty(0 if query.dtype == dtype else out.shape)
    keeps_right = form[4]
    return (
        out,
        lse,
        exact,
        lse.new_empty(out.shape if keeps_right else 0),
        lse.new_empty(lse.shape if keeps_right else 0),
    )


@_tiled_backward.register_fake
def _(dout, dlse, query, key, value, tables, *_):  # type: ignore[no-untyped-def]
    three = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)]
    return [*three, *map(torch.empty_like, tables)]


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    query, key, value, tables, slopes, *ctx.rest = inputs
    ctx.save_for_backward(query, key, value, *output, slopes, *tables)
    ctx.mark_non_differentiable(*output[2:])
    ctx.set_materialize_grads(False)


def _grads(ctx, dout, dlse, *_):  # type: ignore[no-untyped-def]
    query, key, value, out, lse, exact, right, right_lse, slopes, *tables = ctx.saved_tensors
    if dout is None and dlse is None:
        return None, None, None, [None] * len(tables), None, *(None,) * len(ctx.rest)
    dout = torch.zeros_like(out) if dout is None else dout.contiguous()
    results = (out, lse, exact, right, right_lse)
    grads = torch.ops.posenc.tiled_backward(dout, dlse, query, key, value, tables, slopes, *results, *ctx.rest)
    return *grads[:3], grads[3:], None, *(None,) * len(ctx.rest)


_tiled.register_autograd(_grads, setup_context=_save)
