"""What of the study ran on which device, and how far two devices agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from posenc_lab.compare.config import CompareConfig
from posenc_lab.kit.configuration import fingerprint
from study.run import CPU

Records = Iterable[Mapping[str, Any]]


def on_cpu(made: Records) -> list[Mapping[str, Any]]:
    """Those of the CPU."""
    return [record for record in made if record["machine"]["device"] == CPU]


def seeds_of(made: Records) -> dict[str, list[int]]:
    """Of each device the seeds of its trainings, without those that diverged."""
    found: dict[str, list[int]] = {}
    for record in made:
        if record["kind"] == "training" and "seconds" in record:
            device = record["machine"]["device"]
            found.setdefault("CPU" if device == CPU else device, []).append(record["seed"])
    return found


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


def gaps(there: Records, made: Records, kind: str, length: int) -> dict[tuple[str, int], float]:
    """By scheme and seed, the mean losses of trainings at a length minus those ``there``, on another device."""

    def means(its: Records) -> dict[tuple[str, int], float]:
        tests = (r for r in its if (r["kind"], r.get("length")) == (kind, length) and "bits" in r)
        return {(r["scheme"], r["seed"]): float(np.mean(r["bits"])) for r in tests}

    before = means(there)
    return {training: loss - before[training] for training, loss in means(made).items() if training in before}
