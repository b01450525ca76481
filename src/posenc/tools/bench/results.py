"""Checks the records of a benchmark. ``results`` has the results of each competitor, by name:

    seconds     of each round, or ``left_out``, the reason why there are none
    ratio       to the baseline: [median, low, high]
    peak_bytes  of some groups

Every record also has ``baseline``, the competitor that ratios are relative to; ``others``, the number of cores that
other processes kept busy, null if unknown; ``settings``, ``versions``, ``machine`` and ``kernel``.
"""

from typing import Any

from posenc.tools.kit.files import require
from posenc.tools.kit.records import Record

EVERY: dict[str, Any] = {
    "length": int,
    "baseline": str,
    "others": float | None,
    **dict.fromkeys(("results", "settings", "machine", "versions"), dict),
}


def check(record: Record) -> None:
    """ValueError for a record with a missing field or one of another type."""
    require(record, EVERY)
    for result in record["results"].values():
        if "left_out" not in result:
            require(result, {"seconds": list[float], "ratio": list[float]})
