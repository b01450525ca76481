"""The launch of the kernels for few queries, such as a step of decoding."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from posenc.backends.operands import POSSIBLE
from posenc.backends.triton.tasks import ANY, KEPT, TABLES
from posenc.positions.tiles import Tile, Tiling

FEW = 16  # with so many queries, programs that share keys are more than blocks of queries
PROGRAMS = 528  # four for each multiprocessor of an H100
LEAST = 128  # keys of a program
ROWS = 64  # queries of all heads of a program; at least one query of each
BYTES = 2**13  # of keys, and of values, that a program holds at once
MORE = {"away": "away", "share": "share", "lines": "lines", "ends": "line_ends", "key_norms": "key_norms"}
"""Tensors that other kernels do not take, and the names of arguments."""

TILE = (
    "start", "stop", "from_key", "to_key", "least", "most",
    "of_bias", "of_vectors", "of_values", "of_factor", "of_away", "apart",
)  # fmt: skip
"""Queries start .. stop attend to keys from_key .. to_key with least <= j - i <= most. The entry of the pair in each
table is j - i plus the next five, and the distance of its coordinates is j - i + apart."""

Numbers = tuple[int, ...]


def split(launch: Any, tiling: Sequence[int], kernel: Callable[[str], Any]) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of a launch with few queries."""
    query, value, given = launch.query, launch.value, launch.given
    batch, heads, queries, _ = query.shape
    kv_heads, keys = value.shape[1:3]
    groups, known = heads // kv_heads, launch.known
    of_program = min(_up(queries), 1 << max(1, ROWS // groups).bit_length() - 1)
    rows = max(16, _up(groups * of_program))
    blocks = -(-queries // of_program)
    parts = max(1, min(PROGRAMS // (batch * blocks * kv_heads), -(-keys // LEAST)))
    wide = max(known["BLOCK_D"], known["BLOCK_V"]) * value.element_size()
    held = BYTES // 2 if "key_clock" in given else BYTES  # differences in double precision need registers
    lines = given.get("lines")
    out = value.new_empty((batch, heads, queries, value.size(-1)))
    lse = query.new_empty((batch, heads, queries), dtype=torch.float32)
    some, some_lse = out, lse
    if parts > 1:
        some, some_lse = (lse.new_empty((parts, *x.shape)) for x in (out, lse))
    arguments = launch.shared | known | {of: given.get(name) for name, of in MORE.items()}
    is_ragged = "share" in given and given["share"].size(0) > 1
    arguments |= {"away_entries": given["away"].size(1) if "away" in given else 0, "faint": 0.0}
    arguments |= {"share_row": queries if is_ragged else 0, **_tiles(tuple(tiling), tuple(launch.form.lows), query)}
    by_head = {name: x.stride(0) for name, x in given.items() if name in (*TABLES, "slopes") and x.size(0) > 1}
    arguments |= {f"{name}_head": by_head.get(name, 0) for name in (*TABLES, "slopes")}
    with torch.cuda.device_of(query):
        kernel("decode")[batch * blocks, kv_heads, parts](
            **arguments, out=some, lse=some_lse, parts=parts,
            R=rows, Q=of_program, N=max(16, min(64, held // wide)), LINES=1 if lines is None else lines.size(1),
            BY_HEAD="vectors" in by_head or "values" in by_head, num_warps=4, num_stages=2,
        )  # fmt: skip
        if parts > 1:
            kernel("decode_merge")[lse.numel(),](
                partial=some, partial_lse=some_lse, out=out, lse=lse, parts=parts, count=lse.numel(),
                V=known["V"], BLOCK_V=known["BLOCK_V"], PARTS=_up(parts), STEP=16, num_warps=4,
            )  # fmt: skip
    return out, lse


def _up(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << (n - 1).bit_length()


_SOURCES: dict[object, Tensor] = {}
"""What CUDA graphs copy to the device when they are replayed, for good: a graph does not say how long it lives."""


def _tiles(tiling: Numbers, lows: Numbers, like: Tensor) -> dict[str, Any]:
    """The arguments that say which keys each query attends to: the numbers of a single tile, or tensors of several."""
    numbers, tile, step, count = _made(tiling, lows, like.size(0), like.is_cuda)
    if numbers is not None and like.is_cuda:
        if torch.cuda.is_current_stream_capturing():
            _SOURCES[tiling, lows, like.size(0)] = numbers
        numbers = numbers.to(like.device, non_blocking=True)
    return {"tiles": numbers, "tiles_row": step, "count": count, **dict(zip(TILE, tile, strict=True))}


@functools.lru_cache(KEPT)
def _made(tiling: Numbers, lows: Numbers, rows: int, is_pinned: bool) -> tuple[Tensor | None, Numbers, int, int]:
    """The tiles of each batch row, int32: where those of a row begin and end, counted in tiles, and from there on
    `TILE` of each; None for a single one. A tile, whether rows differ, and the number of tiles."""
    told = Tiling.unflat(tiling)
    found = told.tiles(rows)
    is_ragged = len(told.query.rows or ()) != 1 or len(told.key.rows or ()) != 1
    tile = _numbers(found[0], lows) if found else (0,) * len(TILE)
    if len(found) <= 1 and not is_ragged:
        return None, tile, 0, len(found)
    of_rows = [0] * (rows if is_ragged else 1)
    for each in found:
        of_rows[each.row.start] += 1
    before = -(-(len(of_rows) + 1) // len(TILE))  # in place of tiles
    ends = [*itertools.accumulate(of_rows, initial=before)]
    ends += [0] * (before * len(TILE) - len(ends))
    numbers = [*ends, *itertools.chain.from_iterable(_numbers(each, lows) for each in found)]
    return torch.tensor(numbers, dtype=torch.int32, pin_memory=is_pinned), tile, int(is_ragged), len(found)


def _numbers(tile: Tile, lows: Numbers) -> Numbers:
    least, most = -ANY if tile.low is None else tile.low, ANY if tile.high is None else tile.high
    bases = [lows[POSSIBLE.index(name)] for name in (*TABLES, "away")]
    apart = [ANY if tile.distance is None else tile.distance - low for low in (*bases, 0)]
    within = (min(max(n, -ANY), ANY) for n in apart)
    return (tile.start, tile.stop, tile.first, tile.last, least, most, *within)
