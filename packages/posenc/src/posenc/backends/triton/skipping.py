"""Which keys count for a block of queries, and which queries for a block of keys, in a call of the kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.backends.triton.tasks import SPAN, places_of
from posenc.encoding.horizon import skip_threshold

AT_ONCE = 64  # blocks of the other side
FEWEST_KEYS = 1024  # a guess of the number from which on it pays off: not measured yet
HOW = {"num_warps": 4}

Counted = dict[str, Any]

STRIDED = "{0} {0}_batch {0}_head {0}_row"
BIAS = "bias bias_head bias_entries low groups SPAN"
OF_QUERIES = f"""{STRIDED.format("q")} {STRIDED.format("k")} {BIAS} lse longest meeting shift query_clock key_clock
    heads queries keys own scale D E BLOCK_D BLOCK_E"""
OF_KEYS = f"{STRIDED.format('k')} key_clock groups keys D BLOCK_D SPAN"
OF_BOTH = f"{BIAS} slopes slopes_head"


def counted(launch: Any, sides: tuple[int, ...], lse: Tensor | None = None) -> list[Counted]:
    """The arguments "counted" (batch, heads, blocks, 2) and "blocks" of kernels for blocks of queries (side 0) and of
    keys (side 1): the first token and the one after the last of the other side, that may have more than ``skip_below``
    of a row's weight, int32; None for all. Does not synchronize a device.

    Without the log-sum-exp, each query must attend to its own key. A function of the score has no bound.
    """
    query, key, given = launch.query, launch.key, launch.given
    nothing: list[Counted] = [{"counted": None, "blocks": 0} for _ in sides]
    has_least = lse is not None or launch.own >= 0
    if launch.skip_below <= 0 or key.size(2) < FEWEST_KEYS or launch.form.function[0] or not has_least:
        return nothing
    (batch, heads, queries), (kv_heads, keys) = query.shape[:3], key.shape[1:3]
    low, places = launch.lows.get("bias", 0), None
    if "bias" in given:
        places = places_of(launch.tiling, queries, keys, SPAN, query.device)
        if places is None:
            return nothing
    blocks = -(-queries // SPAN), -(-keys // SPAN)
    is_clocked = "query_clock" in given

    def made(heads: int, count: int, is_there: bool = True, dtype: torch.dtype = torch.float32) -> Tensor | None:
        return query.new_empty((batch, heads, count), dtype=dtype) if is_there else None

    of_q = {"most": made(heads, blocks[0]), "more": made(heads, blocks[0], "vectors" in given)}
    of_q |= {"least": made(heads, blocks[0]), "clock": made(heads, blocks[0], is_clocked, torch.float64)}
    of_k = {"most": made(kv_heads, blocks[1]), "clock": made(heads, blocks[1], is_clocked, torch.float64)}
    longest = None
    if "vectors" in given:
        longest = torch.linalg.vector_norm(given["vectors"], dim=-1, dtype=torch.float32).amax(-1)
        longest = longest.expand(heads).contiguous()  # which the kernel reads without a stride
    every = {
        **launch.shared,
        **launch.known,
        "lse": lse,
        "longest": longest,
        "own": launch.own,
        "low": low,
        "SPAN": SPAN,
    }

    def start(name: str, takes: str, grid: tuple[int, ...], **others: Any) -> None:
        launch.start(name, grid, **{name: every[name] for name in takes.split()}, **others, **HOW)

    start("bounds_queries", OF_QUERIES, (blocks[0], heads, batch), **of_q)
    start("bounds_keys", OF_KEYS, (blocks[1], kv_heads, batch), **of_k)
    of_both: dict[str, Any] = {f"{name}_q": x for name, x in of_q.items()}
    of_both |= {f"{name}_k": x for name, x in of_k.items()} | {"blocks_q": blocks[0], "blocks_k": blocks[1]}
    highest = None
    if places is not None:
        highest = given["highest"] if "highest" in given else highest_of(given)
    of_both |= {"highest": highest, "highest_head": 0 if highest is None or len(highest) == 1 else highest.size(1)}
    for name in ("query", "key"):
        x = None if places is None else getattr(places, name)
        of_both[f"place_{name[0]}"] = x
        of_both[f"place_{name[0]}_row"] = 0 if x is None or x.size(0) == 1 else x.stride(0)
    threshold = skip_threshold(launch.skip_below, keys)
    found: list[Counted] = []
    for side in sides:
        of = query.new_empty((batch, heads, blocks[side], 2), dtype=torch.int32)
        which = {"threshold": threshold, "OF_KEYS": side == 1, "C": AT_ONCE}
        start("bounds_counted", OF_BOTH, (blocks[side], heads, batch), counted=of, **of_both, **which)
        found.append({"counted": of, "blocks": blocks[side]})
    return found


def highest_of(given: Mapping[str, Tensor]) -> Tensor:
    """The maximum of the bias, (heads or 1, entries), over the distances of two contiguous blocks, wherever these
    start. Beyond its ends it repeats its end entries, or is a line that is not of the table."""
    window = 2 * SPAN - 1
    beyond: dict[str, Any] = {"value": -torch.inf} if "slopes" in given else {"mode": "replicate"}
    return F.max_pool1d(F.pad(given["bias"][..., 0], (window, window), **beyond), window, 1)


def of_neighbours(counted: Tensor) -> Tensor:
    """What a program is computed with at most whose tokens are of two blocks, (batch, heads, blocks, 2)."""
    ends = counted.double() * counted.new_tensor((-1, 1))
    greatest = F.max_pool2d(ends, (3, 1), 1, (1, 0))
    return (greatest * counted.new_tensor((-1, 1))).to(counted.dtype)


def share(some: Tensor, counted: Tensor) -> float:
    """The fraction of blocks with unmasked pairs (rows, query_blocks, key_blocks) that are between the first and the
    last that count. Reads tensor values."""
    first, last = (counted[..., end, None] for end in (0, 1))
    key = torch.arange(some.size(2), device=some.device) * SPAN
    inside = (first <= key) & (key < last)
    some = some[:, None].expand_as(inside)
    return float((some & inside).sum() / some.sum().clamp(min=1))
