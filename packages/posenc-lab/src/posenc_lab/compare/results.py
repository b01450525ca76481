"""Defines and checks the format of a comparison's records.

Every record has the ``configuration``, ``text``, ``versions`` and ``machine`` that it was made with. The results, by
kind:

    trial           trial (its number), learning_rate, multiplier (of the positional parameters', or null), bits and
                    longest (loss on tuning examples of the training length and of the longest), seconds
    training        learning_rate, multiplier, tuned, parameters, position_parameters (with gates and features),
                    tokens_per_second, seconds, curve [[step, bits], ...], final_bits, peak_bytes (of forward and
                    backward on one batch, beyond the model itself)
    windows, sliding, final_tokens, truncated
                    bits [per byte, one for each evaluation window], tokens (scored in each window)
    by_position     edges of the buckets, and for each bucket bits (the mean) and stderr
    accuracy        (of puzzles) accuracy [1 for each row that is right, else 0], examples (1)
    speed           relative_to, step_ratio (time of a training step over that scheme's, with low and high, the ends of
                    the interval that its median lies in), step_seconds

If a scheme has no encoding for a length, ``undefined`` has the reason in place of bits. If a training diverged,
``diverged`` says when, in place of its results and those of all its tests. A null in bits was not finite.
"""

from collections.abc import Mapping
from typing import Any

from posenc_lab.compare.tasks import task_of
from posenc_lab.kit.files import require
from posenc_lab.kit.records import Record

# The fields that are read, by name. Kinds that are not listed belong to other commands.
COMPARED = {"seed": int, "configuration": dict, "text": dict, "versions": dict, "machine": dict}
ONCE: dict[str, dict[str, Any]] = {
    "training": {
        "learning_rate": float,
        "multiplier": float | None,
        "tuned": bool,
        "parameters": int,
        "position_parameters": int,
        "tokens_per_second": float,
        "seconds": float,
        "curve": list[tuple[int, float]],
        "final_bits": float,
        "peak_bytes": int,
    },
    "speed": {"relative_to": str, "step_ratio": float, "low": float, "high": float, "step_seconds": float},
}
TRIAL = {"trial": int, "learning_rate": float, "multiplier": float | None, "bits": float | None, "seconds": float}
INSTEAD = ("undefined", "diverged")  # of results: words that say why there are none


def results_of(task: str) -> dict[str, Mapping[str, Any]]:
    """What the record of each kind of measurement of a task has, by name. ValueError for a task that there is not."""
    return {**ONCE, "trial": TRIAL, **{kind: each.result for kind, each in task_of(task).kinds.items()}}


def check(record: Record) -> None:
    """ValueError for a record with a missing field or one of another type."""
    about = record.get("configuration")
    task = about.get("task", "text") if isinstance(about, dict) else "text"
    results = results_of(str(task)).get(record["kind"])
    if results is not None:
        instead = {name: str for name in INSTEAD if name in record}
        if instead:
            results = {name: results[name] for name in results if name in ("length", "trial")} | instead
        require(record, {**COMPARED, **results})
