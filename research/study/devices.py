"""What of the study ran on which device, and how far two devices agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from posenc_lab.compare.config import CompareConfig
from posenc_lab.kit.configuration import fingerprint
from study.run import CPU

Records = Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class Share:
    """The trainings on one device: how many, the first and the last seed, and their median seconds, since some were
    paused for other work."""

    device: str
    trainings: int
    first: int
    last: int
    seconds: float


def on_cpu(made: Records) -> list[Mapping[str, Any]]:
    """Those of the CPU."""
    return [record for record in made if record["machine"]["device"] == CPU]


def shares(made: Records) -> list[Share]:
    """Those of each device, without trainings that diverged."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for record in made:
        if record["kind"] == "training" and "seconds" in record:
            device = record["machine"]["device"]
            found.setdefault("CPU" if device == CPU else device, []).append(record)
    return [_share(device, each) for device, each in sorted(found.items())]


def _share(device: str, trainings: Sequence[Mapping[str, Any]]) -> Share:
    seeds = [record["seed"] for record in trainings]
    return Share(device, len(seeds), min(seeds), max(seeds), median(record["seconds"] for record in trainings))


def once(made: Records) -> list[Mapping[str, Any]]:
    """The records of trainings; of one that was made on two kinds of device, those of the kind that tested it further,
    and if both tested it to the end, of the first. Their fingerprint is that of the same comparison on any device."""
    trained = [record for record in made if record["kind"] != "trial"]
    counted: dict[tuple[str, int], Counter[str]] = {}
    for record in trained:
        counted.setdefault((record["scheme"], record["seed"]), Counter())[_kind(record)] += 1
    taken = {training: devices.most_common(1)[0][0] for training, devices in counted.items()}
    own = (each for each in trained if taken[each["scheme"], each["seed"]] == _kind(each))
    return [{**record, "fingerprint": _anywhere(record)} for record in own]


def _kind(record: Mapping[str, Any]) -> str:
    """The kind of device: a training may be tested on another GPU."""
    return str(record["configuration"].get("device", CPU)).partition(":")[0]


def _anywhere(record: Mapping[str, Any]) -> str:
    """The fingerprint of its comparison, whatever device and versions it was measured with."""
    identity = CompareConfig.from_mapping(record["configuration"]).identity(text_digest=record["text"]["digest"])
    return fingerprint({name: value for name, value in identity.items() if name != "device"})


@dataclass(frozen=True)
class Again:
    """Trainings of a text that were made again on another device, for this comparison alone: how much their loss at a
    length differs."""

    schemes: list[str]
    trainings: int
    mean: float
    low: float
    high: float


def again(there: Records, made: Records, kind: str, length: int) -> Again | None:
    """The losses of ``made`` minus those of the same scheme and seed ``there``; None where no training is in both."""
    before = {(r["scheme"], r["seed"]): r for r in there if (r["kind"], r.get("length")) == (kind, length)}
    pairs = [
        (record["scheme"], float(np.mean(record["bits"]) - np.mean(before[record["scheme"], record["seed"]]["bits"])))
        for record in made
        if (record["kind"], record.get("length")) == (kind, length) and (record["scheme"], record["seed"]) in before
    ]
    if not pairs:
        return None
    gaps = [gap for _, gap in pairs]
    return Again(list(dict.fromkeys(s for s, _ in pairs)), len(gaps), float(np.mean(gaps)), min(gaps), max(gaps))
