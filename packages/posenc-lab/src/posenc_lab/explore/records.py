"""Summarises records of ``posenc compare`` and ``posenc extend`` as curves against length, and costs."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posenc_lab.compare import summary as comparison
from posenc_lab.compare.task import BITS
from posenc_lab.compare.tasks import TASKS, task_of
from posenc_lab.extend import summary as extension
from posenc_lab.extend.settings import CROPPED
from posenc_lab.kit.records import FILE, Record, read
from posenc_lab.kit.statistics import Interval

COSTS = {
    "step": ("speed", "step_ratio"),
    "seconds": ("speed", "step_seconds"),
    "bytes": ("training", "peak_bytes"),
    "parameters": ("training", "parameters"),
    "position": ("training", "position_parameters"),
}
"""The costs of a training: the kind of record and the field of each."""


BASELINE = {"final_tokens": "truncated"}
"""For a kind of measurement, the kind that is its baseline, measured once at the trained length."""

EXTEND = {"unit": BITS, "better": "lower", "lengths": "tokens shown", "kinds": {"final": "the final tokens"}}


def measures() -> dict[str, Any]:
    """The measurements of each task and of ``extend``: their unit, and the kinds that are measured by length, the main
    one first."""
    return {name: _measures(name) for name in TASKS} | {"extend": EXTEND}


def _measures(name: str) -> dict[str, Any]:
    task = task_of(name)
    main = next(iter(task.kinds.values()))
    return {
        "unit": task.measure,
        "better": "higher" if task.higher else "lower",
        "lengths": task.lengths,
        "kinds": {kind: each.called for kind, each in task.kinds.items() if each.result == main.result},
    }


def summary(folder: Path) -> dict[str, Any]:
    """The curves and costs in the records of a folder.

    A point of a curve is (mean, low, high, why): null without a number, with the reason. ``baselines`` are points that
    every longer context is compared with; ``seeds`` counts the tested trainings of each scheme. ValueError for a folder
    without records of either command, or with a damaged record.
    """
    if not (folder / FILE).is_file():
        raise ValueError(f"records must be folders of posenc compare or posenc extend, with a {FILE}; got {folder}")
    records = read(folder, _check)
    known = {kind for each in measures().values() for kind in each["kinds"]} | {kind for kind, _ in COSTS.values()}
    if not any(record["kind"] in known for record in records):
        raise ValueError(f"{folder / FILE} holds nothing that posenc compare or posenc extend measured")
    return {"name": str(folder), **summarised(records)}


def summarised(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The same of records that are read and checked, without a name."""
    return _extension(records) if _of_extend(records[-1]) else _comparison(records)


def _of_extend(record: Mapping[str, Any]) -> bool:
    about = record.get("configuration")
    return isinstance(about, dict) and "scalings" in about


def _check(record: Record) -> None:
    (extension if _of_extend(record) else comparison).check(record)


def _comparison(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = comparison.Summary(records)
    task = str(found.configuration.get("task", "text"))
    return {
        "task": task,
        "trained": found.train_length,
        "schemes": list(found.schemes),
        "against": found.timed_against,
        "left_out": found.left_out,
        "seeds": {scheme: len(found.measured(scheme)) for scheme in found.schemes},
        "steps": int(found.configuration.get("steps", 0)),
        "source": _text(records),
        "measures": [
            {
                "kind": kind,
                "lengths": list(found.lengths(kind)),
                "curves": {s: [_point(found, kind, s, n) for n in found.lengths(kind)] for s in found.schemes},
                "baselines": {
                    s: _point(found, BASELINE[kind], s, found.train_length)
                    for s in found.schemes
                    if kind in BASELINE and found.lengths(BASELINE[kind])
                },
            }
            for kind in _measures(task)["kinds"]
            if found.lengths(kind) and kind not in BASELINE.values()
        ],
        "costs": {
            scheme: {name: found.number(kind, scheme, result) for name, (kind, result) in COSTS.items()}
            for scheme in found.schemes
        },
    }


def _point(found: comparison.Summary, kind: str, scheme: str, length: int) -> list[Any]:
    value = found.bits(kind, scheme, length)
    return _estimate(value, found.no_value(scheme, length, kind) or "missing")


def _extension(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = extension.Summary(records)
    lengths, cropped = found.test_lengths, found.cropped()
    measured = {
        "kind": "final",
        "lengths": list(lengths),
        "curves": {s: [_estimate(found.bits(s, n)) for n in lengths] for s in found.schemes},
        "baselines": {CROPPED: _estimate(cropped)} if cropped else {},
    }
    return {
        "task": "extend",
        "trained": found.train_length,
        "schemes": list(found.schemes),
        "against": "",
        "left_out": 0,
        "seeds": {},
        "steps": 0,
        "source": _text(records),
        "measures": [measured] if lengths else [],
        "costs": {},
    }


def _text(records: Sequence[Mapping[str, Any]]) -> str:
    """What the last record was measured on, in words."""
    return str((records[-1].get("text") or {}).get("about", ""))


def _estimate(value: comparison.Estimate | Interval | None, why: str = "missing") -> list[Any]:
    if value is None:
        return [None, None, None, why]
    if not math.isfinite(value.mean):
        return [None, None, None, "not finite"]
    if not math.isfinite(value.high):
        return [value.mean, None, None, "one piece"]
    return [value.mean, value.low, value.high, ""]
