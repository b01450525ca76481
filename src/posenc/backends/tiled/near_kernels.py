"""Near pairs on a GPU by the kernels of the triton backend: attention in a band of distances, forward and backward.

Every tile of their tasks is cut to the distances |r| < W, so that they have nothing else to do: no pair is far from the
tables, which go from -W to W. The backward pass takes the log-sum-exp of whole rows, and `delta`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from posenc.backends.operands import POSSIBLE, Form
from posenc.backends.tiled import fused
from posenc.backends.tiled.lines import Gradients, Inputs, Results
from posenc.backends.tiled.plan import Plan
from posenc.backends.triton import backend as of_triton
from posenc.backends.triton import operator, tasks

NAMES = ("bias", "vectors", "values", "meeting", "query_clock", "key_clock")  # lines that the kernels support
FLAT = ("bias",)  # those whose entries are numbers, here of one dimension less


def why_not(query: Tensor, widest: int) -> str | None:
    """Why the kernels cannot run near pairs of queries like these, with so many channels at most; None if they can."""
    if not fused.on_gpu(query):
        return "they run only on CUDA devices"
    if query.dtype not in of_triton.DTYPES:
        return "they support only float32, bfloat16 and float16"
    if widest > of_triton.WIDEST:
        return f"they support at most {of_triton.WIDEST} channels, got {widest}"
    return operator.missing()


def takes(plan: Plan, inputs: Inputs) -> bool:
    """Whether the kernels run the near pairs of a call."""
    if not plan.width or inputs.lines.key_vectors is not None:
        return False
    each = (inputs.query, inputs.value, inputs.lines.meeting)
    return why_not(inputs.query, max(x.size(-1) for x in each if x is not None)) is None


def _launch(plan: Plan, inputs: Inputs) -> operator._Launch:
    """The kernels' arguments, with tasks within the band."""
    assert plan.width is not None
    given = {name: x for name in NAMES if (x := getattr(inputs.lines, name)) is not None}
    given |= {name: given[name][..., None] for name in FLAT if name in given}
    form = Form([0, 0], [plan.lowest] * len(POSSIBLE))
    launch = operator._Launch(inputs.query, inputs.key, inputs.value, given, form, inputs.scale, plan.tiling)
    launch.tasks = _within(plan.width, launch.tasks)
    return launch


def _within(width: int, of: Callable[[int], tasks.Tasks]) -> Callable[[int], tasks.Tasks]:
    """The same tasks with tiles of the distances |r| < W alone. The entry of a distance r in tables is r + W, and that
    of j = i follows the limits of j - i in a tile."""

    def cut(block: int) -> tasks.Tasks:
        found = of(block)
        sides = []
        for tiles in found.tiles:
            rest = (tiles[:, 6:7] - width).neg()  # j - i at distance 0
            low, high = tiles[:, 4:5].maximum(rest + 1 - width), tiles[:, 5:6].minimum(rest + width - 1)
            sides.append(torch.cat((tiles[:, :4], low, high, tiles[:, 6:]), 1))
        return replace(found, tiles=(sides[0], sides[1]), furthest=min(found.furthest, width - 1))

    return cut


def forward(plan: Plan, inputs: Inputs, results: Results) -> None:
    """Writes the attention of near pairs into the results."""
    launch = _launch(plan, inputs)
    out, lse = launch.fitting(launch.forward)
    results.out.copy_(out)
    results.lse.copy_(lse)


def backward(plan: Plan, inputs: Inputs, results: Results, grads: Gradients) -> None:
    """Adds the gradients of near pairs."""
    launch = _launch(plan, inputs)
    rows: operator.Tensors = {"dout": grads.dout, "lse": results.lse, "delta": grads.delta}
    found = launch.fitting(functools.partial(launch.backward, rows, list(launch.given)))
    for name, total in (("dq", grads.query), ("dk", grads.key), ("dv", grads.value)):
        total += found[name]
    for name in launch.given:
        total = getattr(grads.lines, name)
        total += found[name][..., 0] if name in FLAT else found[name]
