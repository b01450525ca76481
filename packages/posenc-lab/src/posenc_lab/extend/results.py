"""Checks the records of an extension. By kind, where ``seed`` is the number of the piece of text or of the puzzle:

    final        bits (per byte of the last tokens), tokens (scored), file and byte of it at which the piece begins
    by_position  edges of the buckets, bits (per token, of each bucket)
    passkey      found (0 or 1), bits (of the whole answer), tokens (of the text), depth (percent)
    item         the same
    training     curve [[step, bits per token], ...], seconds, lora (rank; 0: all weights)

Every record also has ``configuration``, ``text``, ``model``, the facts of its ``card``, ``versions`` and ``machine``.
"""

from collections.abc import Mapping
from typing import Any

from posenc_lab.kit.files import require
from posenc_lab.kit.records import Record

SHARED = {
    "seed": int,
    "length": int,
    "configuration": dict,
    "text": dict,
    "model": str,
    "card": str,
    "versions": dict,
    "machine": dict,
}
PUZZLE = {"found": int, "bits": float | None, "tokens": int, "depth": int}
KINDS: dict[str, Mapping[str, Any]] = {
    "final": {"bits": float | None, "tokens": int, "file": str, "byte": int},
    "by_position": {"edges": list[int], "bits": list[float | None]},
    "passkey": PUZZLE,
    "item": PUZZLE,
    "training": {"seconds": float, "lora": int},
}


def check(record: Record) -> None:
    """ValueError for a record with a missing field or one of another type."""
    expected = KINDS.get(record["kind"])
    if expected is None:
        raise ValueError(f"its kind is {record['kind']!r}")
    require(record, {**SHARED, **expected})
