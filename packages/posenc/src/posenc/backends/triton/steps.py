"""The launch of the kernels for few queries, such as a step of decoding."""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc.backends.operands import POSSIBLE
from posenc.backends.triton.launch import Launch
from posenc.backends.triton.lists import KEPT, on_device
from posenc.backends.triton.tasks import ANY, TABLES, Numbers
from posenc.encoding.horizon import skip_threshold
from posenc.positions.tiles import Tile, Tiling

LEAST = 128  # keys of a program
ROWS = 64  # queries of all heads of a program; at least one query of each


class How(NamedTuple):
    """How the keys are split: over about so many ``programs``, which should all run at once. A program holds so many
    ``bytes`` of keys, and of values, in each of its ``stages``. A thread has at most so many ``registers``."""

    programs: int
    bytes: int
    stages: int
    registers: int


# By the input that is most to hold. Programs are two to four for each multiprocessor of an H100, which has registers
# for as many, if their outputs are small.
HOW = {
    "lines": How(264, 2**13, 2, 255),
    "key_clock": How(396, 2**12, 2, 168),
    "vectors": How(528, 2**12, 2, 128),
    "values": How(528, 2**12, 2, 128),
    "": How(528, 2**13, 2, 128),
}
SMALL = 2**11  # bytes of an output
REGISTERS = 255  # of a thread
MORE = {"away": "away", "share": "share", "lines": "lines", "ends": "line_ends"}
"""Tensors that other kernels do not take, and the names of arguments."""

UNBOUNDED = ("vectors", "away")  # terms of which no bound is known here

TILE = (
    "start", "stop", "from_key", "to_key", "least", "most",
    "of_bias", "of_vectors", "of_values", "of_factor", "of_away", "apart",
)  # fmt: skip
"""Queries start .. stop attend to keys from_key .. to_key with least <= j - i <= most. The entry of the pair in each
table is j - i plus the next five, and the distance of its coordinates is j - i + apart."""


def split(launch: Launch) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of a launch with few queries."""
    query, value, given = launch.query, launch.value, launch.given
    batch, heads, queries, _ = query.shape
    kv_heads, keys = value.shape[1:3]
    groups, known = heads // kv_heads, launch.known
    of_program = min(_up(queries), 1 << max(1, ROWS // groups).bit_length() - 1)
    rows = max(16, _up(groups * of_program))
    blocks = -(-queries // of_program)
    how = next(how for name, how in HOW.items() if not name or name in given)
    parts = max(1, min(how.programs // (batch * blocks * kv_heads), -(-keys // LEAST)))
    wide = max(known["BLOCK_D"], known["BLOCK_V"]) * value.element_size()
    numbers = rows * known["BLOCK_V"]
    registers = how.registers if numbers * value.element_size() <= SMALL else REGISTERS
    lines = given.get("lines")
    out = value.new_empty((batch, heads, queries, value.size(-1)))
    lse = query.new_empty((batch, heads, queries), dtype=torch.float32)
    some, some_lse = out, lse
    if parts > 1:
        some, some_lse = (lse.new_empty((parts, *x.shape)) for x in (out, lse))
    arguments = launch.shared | known | {of: given.get(name) for name, of in MORE.items()}
    is_ragged = "share" in given and given["share"].size(0) > 1
    arguments |= {"away_entries": given["away"].size(1) if "away" in given else 0}
    skips = launch.skip_below > 0 and not known["FUNCTION"] and given.keys().isdisjoint(UNBOUNDED)
    arguments |= {"key_norms": given.get("key_norms") if skips else None}
    arguments |= {"faint": skip_threshold(launch.skip_below, keys) if skips else 0.0}
    with torch.cuda.device_of(query):
        arguments |= {"share_row": queries if is_ragged else 0, **_tiles(launch.tiling, tuple(launch.form.lows), query)}
    by_head = {name: x.stride(0) for name, x in given.items() if name in (*TABLES, "slopes") and x.size(0) > 1}
    arguments |= {f"{name}_head": by_head.get(name, 0) for name in (*TABLES, "slopes")}
    with torch.cuda.device_of(query):
        launch.start(
            "decode", (batch * blocks, kv_heads, parts), **arguments, out=some, lse=some_lse, parts=parts,
            R=rows, Q=of_program, N=max(16, min(64, how.bytes // wide)), LINES=1 if lines is None else lines.size(1),
            PIECES=16 if lines is None else _up(lines.size(1)), BY_HEAD="vectors" in by_head or "values" in by_head,
            num_warps=min(8, max(4, numbers // 2**10)), num_stages=how.stages, maxnreg=registers,
        )  # fmt: skip
        if parts > 1:
            launch.start(
                "decode_merge", (lse.numel(),), partial=some, partial_lse=some_lse, out=out, lse=lse, parts=parts,
                count=lse.numel(), V=known["V"], BLOCK_V=known["BLOCK_V"], PARTS=_up(parts), STEP=16, num_warps=4,
            )  # fmt: skip
    return out, lse


def _up(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << (n - 1).bit_length()


class _Tiles(NamedTuple):
    """The tiles of each batch row. ``numbers``, int32, says where those of a row begin and end, counted in tiles, and
    then has `TILE` of each; None for a single tile, which is ``tile``. ``row`` is 1 if rows differ, else 0."""

    numbers: Tensor | None
    tile: Numbers
    row: int
    total: int

    def at(self, numbers: Tensor) -> _Tiles:
        """The same with a copy of the numbers."""
        return self._replace(numbers=numbers)


def _tiles(tiling: Numbers, lows: Numbers, like: Tensor) -> dict[str, Any]:
    """The arguments that say which keys each query attends to."""
    found = _tiles_of(tiling, lows, like.size(0))
    if found.numbers is not None:
        found = on_device(like.device, _tiles_of, tiling, lows, like.size(0))  # type: ignore[type-var]
    return {"tiles": found.numbers, "tiles_row": found.row, "count": found.total} | dict(
        zip(TILE, found.tile, strict=True)
    )


@functools.lru_cache(KEPT)
def _tiles_of(tiling: Numbers, lows: Numbers, rows: int) -> _Tiles:
    told = Tiling.unflat(tiling)
    found = told.tiles(rows)
    is_ragged = len(told.query.rows or ()) != 1 or len(told.key.rows or ()) != 1
    tile = _numbers(found[0], lows) if found else (0,) * len(TILE)
    if len(found) <= 1 and not is_ragged:
        return _Tiles(None, tile, 0, len(found))
    of_rows = [0] * (rows if is_ragged else 1)
    for each in found:
        of_rows[each.row.start] += 1
    before = -(-(len(of_rows) + 1) // len(TILE))  # in place of tiles
    ends = [*itertools.accumulate(of_rows, initial=before)]
    ends += [0] * (before * len(TILE) - len(ends))
    numbers = [*ends, *itertools.chain.from_iterable(_numbers(each, lows) for each in found)]
    made = torch.tensor(numbers, dtype=torch.int32, device="cpu")
    return _Tiles(made, tile, int(is_ragged), len(found))


def _numbers(tile: Tile, lows: Numbers) -> Numbers:
    least, most = -ANY if tile.low is None else tile.low, ANY if tile.high is None else tile.high
    bases = [lows[POSSIBLE.index(name)] for name in (*TABLES, "away")]
    apart = [ANY if tile.distance is None else tile.distance - low for low in (*bases, 0)]
    within = (min(max(n, -ANY), ANY) for n in apart)
    return (tile.start, tile.stop, tile.first, tile.last, least, most, *within)
