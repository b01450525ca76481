"""The custom operator of the Triton kernels, and its derivative."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posenc.backends.call import FEW_QUERIES
from posenc.backends.custom import custom_operator
from posenc.backends.operands import Form
from posenc.backends.triton import steps
from posenc.backends.triton.launch import LONG, WINDOWED, Launch, Sizes, Tensors, block_of, sizes_of, squares_of
from posenc.backends.triton.skipping import counted, of_neighbours
from posenc.backends.triton.tasks import SPAN, TABLES

# custom_op evaluates annotations, so no `from __future__ import annotations` here.

PARTIAL_SUMS = 256  # programs of all windows of distances and heads, if some are to share a window


# -- forward ----------------------------------------------------------------------------------------------------


def forward(launch: Launch, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp."""
    tasks = launch.tasks(sizes.long)
    is_whole = tasks.covers(0, launch.query)
    out = blank(launch.value, is_whole, (*launch.query.shape[:3], launch.value.size(-1)))
    lse = launch.query.new_empty(launch.query.shape[:3], dtype=torch.float32)
    if not is_whole:
        lse.fill_(-torch.inf)
    if not tasks.is_empty:
        far = torch.empty_like(out, dtype=torch.float32) if launch.is_windowed else out
        launch.run("forward", tasks, 0, sizes, {"out": far, "lse": lse})
        if launch.is_windowed:
            near: Tensors = {"far": far, "out": out, "lse": lse}
            launch.run("forward_near", tasks, 0, sizes, near, sizes.long // sizes.square)
    return out, lse


def _deltas(launch: Launch, out: Tensor, dout: Tensor, lse: Tensor, dlse: Tensor | None) -> Tensor:
    """For each row, the product of the output and its gradient, less the gradient of the log-sum-exp."""
    delta, dlse = torch.empty_like(lse), None if dlse is None else dlse.contiguous()
    with torch.cuda.device_of(out):
        rows = {"out": out, "dout": dout, "lse": lse, "dlse": dlse, "delta": delta, "count": lse.numel()}
        known = {name: launch.known[name] for name in ("V", "BLOCK_V")}
        launch.start("backward_deltas", (-(-lse.numel() // LONG),), **rows, **known, ROWS=LONG, num_warps=4)
    return delta


# -- backward ---------------------------------------------------------------------------------------------------


def backward(launch: Launch, rows: Tensors, wanted: Sequence[str], sizes: Sizes) -> Tensors:
    """The gradients by name; ``rows`` are "dout", "lse" and "delta"."""
    query, key, value = launch.query, launch.key, launch.value
    tasks = launch.tasks(sizes.long)
    wholes = {"q": tasks.covers(0, query), "k": tasks.covers(1, key), "v": tasks.covers(1, key)}
    tensors = {"q": query, "k": key, "v": value}
    found: Tensors = {f"d{name}": blank(x, wholes[name], x.shape) for name, x in tensors.items()}
    if tasks.is_empty:
        return found | {name: torch.zeros_like(launch.given[name], dtype=torch.float32) for name in wanted}
    times = sizes.long // sizes.square
    past = query.shape[:3].numel()

    def ends_of(is_made: bool) -> Tensor | None:
        return blank(query, wholes["q"], (2, *query.shape[:3]), torch.float32) if is_made else None

    ends = {"met_ends": ends_of("vectors" in launch.given), "out_ends": ends_of("values" in launch.given)}
    pasts = {f"{name}_past": ends_of(name in wanted) for name in (*TABLES, "slopes")}
    clocks = {"query_clock", "key_clock"} & set(wanted)
    stored = torch.float32 if launch.is_windowed else query.dtype
    dq, dk, dv = (
        found[f"d{name}"] if x.dtype == stored else blank(x, wholes[name], x.shape, stored)
        for name, x in tensors.items()
    )
    others: Tensors = {"d_meeting": None, "d_shift": None, "d_query_clock": None}
    if "meeting" in wanted:
        others["d_meeting"] = blank(launch.given["meeting"], wholes["q"], launch.given["meeting"].shape, torch.float32)
    if clocks:
        clock = launch.given["query_clock"]
        others["d_query_clock"] = blank(clock, wholes["q"], clock.shape, torch.float32)
    shifts = []

    def shift(times: int) -> Tensor | None:
        if "shift" not in wanted:
            return None
        count = tasks.tasks[0].size(0) * times * tasks.rows
        shifts.append(query.new_zeros((count, query.size(1), query.size(-1)), dtype=torch.float32))
        return shifts[-1]

    shared: Tensors = {**rows, **others, **pasts, "past": past}
    launch.run("backward_queries", tasks, 0, sizes, {**shared, **ends, "dq": dq, "d_shift": shift(1)})
    of_keys = {**rows, **ends, "past": past}
    d_key_clock = torch.zeros_like(launch.given["key_clock"], dtype=torch.float32) if clocks else None
    launch.run("backward_keys", tasks, 1, sizes, {**of_keys, "dk": dk, "dv": dv, "d_key_clock": d_key_clock})
    if launch.is_windowed:
        near = {**shared, "far": dq, "dq": found["dq"], "d_shift": shift(times)}
        launch.run("backward_queries_near", tasks, 0, sizes, near, times)
        near = {**rows, "far_k": dk, "far_v": dv, "dk": found["dk"], "dv": found["dv"], "d_key_clock": d_key_clock}
        launch.run("backward_keys_near", tasks, 1, sizes, near, times)
    found |= {"meeting": others["d_meeting"], "query_clock": others["d_query_clock"], "key_clock": d_key_clock}
    if shifts:
        found["shift"] = torch.stack([x.sum(0) for x in shifts]).sum(0)
    if pasts["slopes_past"] is not None:
        found["slopes"] = _of_heads(pasts["slopes_past"].sum((1, 3)).T, launch.given["slopes"])
    _tables(launch, rows, [name for name in wanted if name in TABLES], pasts, sizes.square, found)
    return found


def _tables(launch: Launch, rows: Tensors, wanted: Sequence[str], pasts: Tensors, B: int, found: Tensors) -> None:
    """The gradients of tables: of the pairs beyond their ends, and of those within, window by window."""
    if not wanted:
        return
    query, lows = launch.query, launch.lows
    heads = query.size(1)
    least = min(lows[name] for name in wanted)
    most = max(lows[name] + launch.given[name].size(1) for name in wanted)
    windows = -(-(most - least) // B)
    tasks = launch.tasks(B)
    count = tasks.tasks[0].size(0)
    programs = max(1, min(PARTIAL_SUMS // (windows * heads), count * tasks.rows))
    widths = {name: launch.given[name].size(2) for name in TABLES if name in launch.given}
    sums: Tensors = {
        f"d_{name}": query.new_empty((programs, heads, windows + 1, 2, B, widths[name]), dtype=torch.float32)
        if name in wanted
        else None
        for name in TABLES
    }
    where = {"tasks": tasks.tasks[0], "tiles": tasks.tiles[0], "count": count, "batch": tasks.rows, "B": B}
    where |= {"least_r": least - B, "low": lows[wanted[0]], "lead": 6 + TABLES.index(wanted[0])}
    how = squares_of("backward_tables", launch.given, launch.channels)
    given = {**launch.pairs, **launch.counted[0], **rows, **sums, **launch.known, **where, **how}
    launch.start("backward_tables", (heads, windows + 1, programs), **given)
    for name in wanted:
        x = sums[f"d_{name}"].sum(0)  # (heads, windows + 1, 2, B, width)
        # Window w is the second half of its distances, and the first of those of window w + 1.
        line = x[:, :-1, 1] + x[:, 1:, 0]
        line = line.flatten(1, 2)[:, lows[name] - least :][:, : launch.given[name].size(1)].clone()
        if name in WINDOWED:
            by = rows["dout"] if name == "values" else launch.given.get("meeting", query)
            factor = launch.scale if name == "vectors" and "meeting" not in launch.given else 1.0
            ends = _ends(launch, pasts[f"{name}_past"], by) * factor
        else:
            ends = pasts[f"{name}_past"].sum((1, 3))[..., None]
        line[:, 0] += ends[0]
        line[:, -1] += ends[1]
        found[name] = _of_heads(line, launch.given[name])


def _ends(launch: Launch, pasts: Tensor, by: Tensor) -> Tensor:
    """The sums of rows ``by`` times the sums over their pairs beyond either end of a table, (2, heads, width)."""
    batch, heads, queries, width = by.shape
    blocks = -(-queries // LONG)
    ends = pasts.new_empty((batch * blocks, heads, 2, width))
    x = dict(zip(("x", "x_batch", "x_head", "x_row"), (by, *by.stride()), strict=False))
    known = {"W": width, "BLOCK_W": block_of(width), "ROWS": LONG}
    given: Tensors = {"pasts": pasts, "past": pasts[0].numel(), "ends": ends, "heads": heads, "queries": queries}
    launch.start("backward_ends", (blocks, heads, batch), **x, **given, **known, num_warps=4)
    return ends.sum(0).transpose(0, 1)


def blank(like: Tensor, is_whole: bool, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """A tensor to write to: zeros, unless the kernels write all of it."""
    return (like.new_empty if is_whole else like.new_zeros)(tuple(shape), dtype=dtype)


def _of_heads(x: Tensor, table: Tensor) -> Tensor:
    """The gradients of a table that may be the same for all heads."""
    return x.sum(0, keepdim=True) if table.size(0) == 1 else x


def _triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    given: Sequence[Tensor],
    names: str,
    learned: str,
    tiling: Sequence[int],
    form: Sequence[int],
    scale: float,
    skip_below: float,
    own: int,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp. ``given`` are the tensors of these names, of which the ``learned`` get gradients;
    ``tiling`` and ``form`` the numbers of a `Tiling` and a `Form`; ``skip_below`` the fraction of a row's weight that
    may be skipped; each query attends to its own key, which is ``own`` tokens later, or if -1 it may not."""
    inputs = dict(zip(names.split(), given, strict=True))
    launch = Launch(query, key, value, inputs, Form.unflat(form), scale, tiling, skip_below, own)
    if query.size(2) < FEW_QUERIES:
        return steps.split(launch)
    found: tuple[Tensor, Tensor] = launch.fitting("forward", functools.partial(forward, launch))
    return found


def _triton_backward(
    dout: Tensor,
    dlse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    given: Sequence[Tensor],
    names: str,
    learned: str,
    tiling: Sequence[int],
    form: Sequence[int],
    scale: float,
    skip_below: float,
    own: int,
) -> list[Tensor]:
    """The gradients of query, key and value, and of learned tensors."""
    inputs, wanted = dict(zip(names.split(), given, strict=True)), learned.split()
    launch = Launch(query, key, value, inputs, Form.unflat(form), scale, tiling, skip_below, own)
    lse = lse.contiguous()  # what was saved may come back in another order
    rows: Tensors = {"dout": dout, "lse": lse, "delta": _deltas(launch, out.contiguous(), dout, lse, dlse)}
    found = launch.fitting("backward " + learned, functools.partial(backward, launch, rows, wanted), lse)
    tables = (found[name].to(inputs[name].dtype).contiguous() for name in wanted)
    return [*(found[name] for name in ("dq", "dk", "dv")), *tables]


def counted_for(query: Tensor, key: Tensor, value: Tensor, *arguments: Any) -> Tensor | None:
    """For each block of queries, the first key that it is computed with and the one after the last, (batch, heads,
    blocks, 2); None for all. The arguments are those of the operator. Reads tensor values."""
    given, names, _, tiling, form, scale, skip_below, own = arguments
    inputs = dict(zip(names.split(), given, strict=True))
    launch = Launch(query, key, value, inputs, Form.unflat(form), scale, tiling, skip_below, own)
    with torch.cuda.device_of(query):
        (found,) = counted(launch, (0,))
    taken: Tensor | None = found["counted"]
    starts = launch.tasks(sizes_of(launch.channels, True)[0].long).tasks[0][:, 1]
    return taken if taken is None or not bool((starts % SPAN).any()) else of_neighbours(taken)


triton = custom_operator("posenc::triton", _triton, _triton_backward)
