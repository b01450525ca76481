"""The operator of the tiled backend: attention tile by tile in linear memory, forward and backward, by PyTorch's fused
kernels where scores are linear in distance, and by `pairwise.py`, or `near_kernels.py` on a GPU, where they are not.

Let every term of a call be constant or linear in distance from distance W on, on each side, and let there be more than
eight times W keys, or W = 0; otherwise all pairs are near. The scores of near pairs, |r| < W, are computed one by
one. All other pairs are far, and use the fused kernel. A constant along a row only shifts its
log-sum-exp, and the softmax does not change, so terms are relative to their value far to the left. Over a rectangle, a
slope is a number per key plus a number per query, relative to the corner of the smallest distance, so neither is larger
than the bias itself, and no digits are lost at 32k tokens or in bfloat16; the same holds for cumulative features. Near
and far pairs are merged by log-sum-exp, and the backward pass runs over the same sections with the output and the
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

from posenc.backends.custom import refuse
from posenc.backends.eligible import by_name
from posenc.backends.tiled import far_passes, fused, near, near_kernels, pairwise
from posenc.backends.tiled.lines import Gradients, Inputs, Lines, Results
from posenc.backends.tiled.plan import Plan, near_blocks

# custom_op evaluates annotations, so no `from __future__ import annotations` here.


def _lines_of(tables: Sequence[Tensor], names: str, apply: str, plan: Plan) -> Lines:
    """The lines of the operators' arguments. ``names`` are the fields of `Lines` of the tables; ``apply`` names the
    function and, if it has one, its derivative."""
    lines = Lines(plan.lowest, is_last=plan.is_last)
    for name, function in zip(("apply", "derivative"), apply.split(), strict=False):
        setattr(lines, name, by_name(function))
    for name, table in zip(names.split(), tables, strict=True):
        setattr(lines, name, table)
    if lines.bias is not None and not fused.on_gpu(lines.bias):
        lines.falls = bool(lines.bias.amin() < pairwise.LOWEST_LOG_WEIGHT / 2)
    return lines


@torch.library.custom_op("posenc::tiled", mutates_args=())
def _tiled(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tables: Sequence[Tensor],
    names: str,
    tiling: Sequence[int],
    form: Sequence[int],
    apply: str,
    scale: float,
    skip_below: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output and log-sum-exp and, for the backward pass, the unrounded output, and the output and log-sum-exp of the
    keys far to the right. The last three are empty if they are not needed."""
    plan = Plan.read(query.size(0), tiling, form, skip_below)
    inputs = Inputs(query, key, value, _lines_of(tables, names, apply, plan), scale)
    out = value.new_zeros((*query.shape[:3], value.size(-1)), dtype=inputs.dtype)
    lse = query.new_full(query.shape[:3], -torch.inf, dtype=inputs.dtype)
    right, right_lse = (x.clone() if plan.keeps_right else x.new_empty(0) for x in (out, lse))
    results = Results(out, lse, right, right_lse)
    has_kernels = near_kernels.takes(plan, inputs)
    if not has_kernels:
        work = near.Work(query, inputs.dtype)
        for block in near_blocks(plan, inputs):
            pairwise.forward(block, work, inputs, results)
        del work  # frees memory for the fused kernel
    if plan.width is not None:
        far_passes.forward(plan, inputs, results)
    if has_kernels:
        near_kernels.forward(plan, inputs, results)
    if out.dtype == query.dtype:
        return out, lse, out.new_empty(0), right, right_lse
    return out.to(query.dtype), lse, out, right, right_lse


@torch.library.custom_op("posenc::tiled_backward", mutates_args=())
def _tiled_backward(
    dout: Tensor,
    dlse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tables: Sequence[Tensor],
    results: Sequence[Tensor],
    names: str,
    tiling: Sequence[int],
    form: Sequence[int],
    apply: str,
    scale: float,
    skip_below: float,
) -> list[Tensor]:
    """The gradients of query, key, value, and of the tables, given what the forward pass returned."""
    plan = Plan.read(query.size(0), tiling, form, skip_below)
    inputs = Inputs(query, key, value, _lines_of(tables, names, apply, plan), scale)
    out, lse, exact, right, right_lse = results
    found = Results(exact if exact.numel() else out, lse, right, right_lse)
    delta = (dout * found.out).sum(-1, dtype=inputs.dtype)
    if dlse is not None:
        delta = delta - dlse.masked_fill(lse == -torch.inf, 0.0)
    dq, dk, dv = (x.new_zeros(x.shape, dtype=inputs.dtype) for x in (query, key, value))
    grads = Gradients(dout, dlse, delta, dq, dk, dv, inputs.lines.zeros())
    if near_kernels.takes(plan, inputs):
        near_kernels.backward(plan, inputs, found, grads)
    else:
        work = near.Work(query, inputs.dtype)
        for block in near_blocks(plan, inputs):
            pairwise.backward(block, work, inputs, found, grads)
        del work
    if plan.width is not None:
        far_passes.backward(plan, inputs, found, out, grads)
    return [*(x.to(query.dtype) for x in (dq, dk, dv)), *(getattr(grads.lines, name) for name in names.split())]


@_tiled.register_fake
def _(query, key, value, tables, names, tiling, form, *_):  # type: ignore[no-untyped-def]
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
    query, key, value, tables, *ctx.rest = inputs
    ctx.save_for_backward(query, key, value, *output, *tables)
    ctx.mark_non_differentiable(*output[2:])
    ctx.set_materialize_grads(False)


def _grads(ctx, dout, dlse, *_):  # type: ignore[no-untyped-def]
    query, key, value, *others = ctx.saved_tensors
    results, tables = others[:5], others[5:]
    if dout is None and dlse is None:
        return None, None, None, [None] * len(tables), *(None,) * len(ctx.rest)
    dout = torch.zeros_like(results[0]) if dout is None else dout.contiguous()
    grads = torch.ops.posenc.tiled_backward(dout, dlse, query, key, value, tables, results, *ctx.rest)
    return *grads[:3], grads[3:], *(None,) * len(ctx.rest)


_tiled.register_autograd(_grads, setup_context=_save)
_tiled_backward.register_autograd(refuse)
