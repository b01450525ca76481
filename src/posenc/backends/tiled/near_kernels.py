"""Near pairs on a GPU by the kernels of the triton backend: attention in a band of distances, forward and backward.

Every tile of their tasks is cut to the distances |r| < W, so that they have nothing else to do: no pair is far from the
tables, which go from -W to W. The backward pass takes the log-sum-exp of whole rows, and `delta`.
"""

from __future__ import annotations

import functools

from torch import Tensor

from posenc.backends.operands import POSSIBLE, Form
from posenc.backends.tiled import fused
from posenc.backends.tiled.lines import Gradients, Inputs, Results
from posenc.backends.tiled.plan import Plan
from posenc.backends.triton import backend as of_triton
from posenc.backends.triton import launch as of_launch
from posenc.backends.triton import operator, tasks
from posenc.backends.triton.lists import KEPT, on_device

NAMES = ("bias", "vectors", "values", "meeting", "query_clock", "key_clock")  # lines that the kernels support
FLAT = ("bias",)  # those whose entries are numbers, here of one dimension less


def why_not(query: Tensor, widest: int) -> str | None:
    """Why the kernels cannot run near pairs of queries like these, with so many channels at most; None if they can."""
    if not fused.on_gpu(query):
        return "they run only on CUDA devices"
    if query.dtype not in of_triton.DTYPES:
        return "they support only float32, bfloat16 and float16"
    if widest > of_launch.WIDEST:
        return f"they support at most {of_launch.WIDEST} channels, got {widest}"
    if max(query.shape[:2]) > of_launch.GRID:
        return of_launch.too_many(*query.shape[:2])
    return of_launch.missing()


def takes(plan: Plan, inputs: Inputs) -> bool:
    """Whether the kernels run the near pairs of a call."""
    if not plan.width or inputs.lines.key_vectors is not None:
        return False
    each = (inputs.query, inputs.value, inputs.lines.meeting)
    return why_not(inputs.query, max(x.size(-1) for x in each if x is not None)) is None


class _Launch(of_launch.Launch):
    """The kernels' arguments, with tasks within the band."""

    def __init__(self, plan: Plan, inputs: Inputs) -> None:
        assert plan.width is not None
        self.width = plan.width
        given = {name: x for name in NAMES if (x := getattr(inputs.lines, name)) is not None}
        given |= {name: given[name][..., None] for name in FLAT if name in given}
        form = Form([0, 0], [-plan.width] * len(POSSIBLE))
        tensors = (inputs.query, inputs.key, inputs.value)
        super().__init__(*tensors, given, form, inputs.scale, plan.tiling, skip_below=0.0, own=-1)

    def tasks(self, block: int) -> tasks.Tasks:
        """Those of programs with so many tokens."""
        asked = (self.tiling, tuple(self.form.lows), self.query.size(0), block, self.width)
        return on_device(self.query.device, _tasks_within, *asked)

    def go_on(self, results: Results, sizes: of_launch.Sizes) -> None:
        """Adds near pairs to the results, in place: a program reads its rows, and at the end writes them."""
        found = self.tasks(sizes.long)
        if not found.is_empty:
            made: of_launch.Tensors = {"far": results.out, "out": results.out, "lse": results.lse}
            self.run("forward_near", found, 0, sizes, made, sizes.long // sizes.square)


@functools.lru_cache(KEPT)
def _tasks_within(tiling: tasks.Numbers, lows: tasks.Numbers, rows: int, block: int, width: int) -> tasks.Tasks:
    """Tasks whose tiles have the distances |r| < W alone. The entry of a distance r in tables is r + W, and that of
    j = i follows the limits of j - i in a tile."""
    found = tasks._tasks(tiling, lows, rows, block)
    made = found.at(found.numbers.clone())
    for tiles in made.tiles:
        at = width - tiles[:, 6]  # j - i at distance 0
        tiles[:, 4] = tiles[:, 4].maximum(at - (width - 1))
        tiles[:, 5] = tiles[:, 5].minimum(at + (width - 1))
    made.furthest = min(found.furthest, width - 1)
    return made


def forward(plan: Plan, inputs: Inputs, results: Results) -> None:
    """Merges the attention of near pairs into the results of far ones."""
    launch = _Launch(plan, inputs)
    launch.fitting("near", functools.partial(launch.go_on, results))


def backward(plan: Plan, inputs: Inputs, results: Results, grads: Gradients) -> None:
    """Adds the gradients of near pairs."""
    launch = _Launch(plan, inputs)
    names = list(launch.given)
    rows: of_launch.Tensors = {"dout": grads.dout, "lse": results.lse, "delta": grads.delta}
    run = functools.partial(operator.backward, launch, rows, names)
    found = launch.fitting(f"backward {' '.join(names)}", run, results.lse)
    for name, total in (("dq", grads.query), ("dk", grads.key), ("dv", grads.value)):
        total += found[name]
    for name in names:
        total = getattr(grads.lines, name)
        total += found[name][..., 0] if name in FLAT else found[name]
