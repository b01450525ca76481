"""What the records of the study say: of each text its comparison, how far it has come, and the four contrasts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posenc.tools.choose.evidence import agrees, claims
from posenc.tools.compare.config import Rate
from posenc.tools.compare.results import check
from posenc.tools.compare.summary import Estimate, Summary
from posenc.tools.compare.tasks import configured, from_toml
from posenc.tools.compare.tuning import chosen
from posenc.tools.kit.configuration import fingerprint
from posenc.tools.kit.files import digest_of
from posenc.tools.kit.records import Record, read
from posenc.tools.kit.statistics import holm, verdict
from study.run import CPU, GPU, OF_TWO_LAYERS, RECORDS, SCHEMES, tuned

HERE = Path(__file__).parent
LENGTHS = (128, 1024)
MEASURE = "sliding"
LABELS = dict.fromkeys((SCHEMES["windows"], OF_TWO_LAYERS["windows"]), "RoPE in windows, NoPE")
TRIALS = 15
AT_ONE_RATE = Rate(0.005, 1.0)  # the default of posenc compare, and no more for what a scheme learns


def label(scheme: str) -> str:
    """A scheme as tables have it."""
    return LABELS.get(scheme, scheme)


def interval(value: Estimate | None) -> str:
    """A difference with its interval."""
    if value is None:
        return "not measured"
    return f"{value.mean:+.3f} ({value.low:+.3f} to {value.high:+.3f})".replace("-", "−")


def records(part: str) -> list[Record]:
    """Those of all schemes, in their order and from all devices; none where nothing was measured."""
    folders = (RECORDS / part / folder for folder in SCHEMES)
    return [record for on_cpu in folders for out in (on_cpu, on_cpu / GPU) for record in read(out, check)]


def images() -> Summary | None:
    """The comparison on digits, beside the study; None where nothing was measured."""
    made = read(RECORDS / "digits" / "all", check)
    return Summary(made) if made else None


@dataclass(frozen=True)
class Cost:
    """The trainings on one device, and the seconds that half of them took at most: some were halted for other work."""

    device: str
    trainings: int
    seconds: float


def costs(trainings: Iterable[Mapping[str, Any]]) -> list[Cost]:
    """Those of each device."""
    seconds: dict[str, list[float]] = {}
    for record in trainings:
        if "seconds" in record:  # it did not diverge
            device = record["machine"]["device"]
            seconds.setdefault("a CPU core" if device == CPU else f"an {device}", []).append(record["seconds"])
    return [Cost(device, len(each), median(each)) for device, each in sorted(seconds.items())]


@dataclass(frozen=True)
class Text:
    """One text of the study, and the seeds that are planned of each scheme."""

    name: str
    summary: Summary
    seeds: int

    @property
    def trained(self) -> int:
        """Trainings that are tested, of those that are planned."""
        return sum(min(len(self.summary.measured(scheme)), self.seeds) for scheme in self.summary.schemes)

    @property
    def planned(self) -> int:
        return self.seeds * len(SCHEMES)

    @property
    def progress(self) -> str:
        """How many of the trainings are there, in words."""
        if self.complete:
            return f"all {self.planned} trainings are there"
        return f"{self.trained} of {self.planned} trainings are there"

    @property
    def costs(self) -> list[Cost]:
        """What training took, by device."""
        return costs(record for scheme in self.summary.schemes for record in self.summary.of("training", scheme))

    @property
    def complete(self) -> bool:
        """Whether every training is there, or diverged, so that verdicts may be given."""
        return (
            all(len(self.summary.of("training", scheme)) >= self.seeds for scheme in SCHEMES.values())
            and not self.summary.missing()
        )


def text(name: str, seeds: int) -> Text:
    """Its comparison. ValueError for records of several, and for a training at another rate than was tuned."""
    made = records(name)
    trained = [record for record in made if record["kind"] == "training"]
    rates = {scheme: tuned(name, folder_of(scheme)) for scheme in {record["scheme"] for record in trained}}
    for record in trained:
        its, rate = Rate(record["learning_rate"], record["multiplier"]), rates[record["scheme"]]
        if its != rate:
            raise ValueError(f"{name}: {record['scheme']} must be trained at {rate}, got a training at {its}")
    return Text(name, summary(name, made), seeds)


def folder_of(scheme: str) -> str:
    return next(folder for folder, names in SCHEMES.items() if names == scheme)


def summary(name: str, made: Sequence[Record]) -> Summary:
    """Without trials. ValueError for records of several comparisons, or of another plan than the one that is here."""
    found = Summary([{**record, "fingerprint": _anywhere(record)} for record in _once(made)])
    if found.left_out:
        raise ValueError(f"{name} must hold the records of one comparison, got {found.left_out} records of others")
    plan = digest_of((HERE / "plan.md").read_bytes())
    if others := {str(record.get("plan")) for record in found.records} - {plan}:
        raise ValueError(f"{name} must be of the plan {plan}, got records of {', '.join(sorted(others))}")
    return found


@dataclass(frozen=True)
class Twice:
    """The trainings that were made on both devices, and the largest difference of their loss: in the first tenth of the
    steps, and at the end."""

    trainings: int
    first: float
    last: float


def twice(parts: Iterable[str]) -> Twice | None:
    """Those of all parts; None where there is none."""
    curves: dict[tuple[str, str, int], list[NDArray[np.float64]]] = {}
    for part in parts:
        for record in records(part):
            if record["kind"] == "training" and "curve" in record:
                bits = np.array([bits for _, bits in record["curve"]])
                curves.setdefault((part, record["scheme"], record["seed"]), []).append(bits)
    gaps = [abs(each[0] - each[1]) for each in curves.values() if len(each) > 1]
    if not gaps:
        return None
    first = max(float(gap[: len(gap) // 10].max()) for gap in gaps)
    return Twice(len(gaps), first, max(float(gap[-1]) for gap in gaps))


def _once(made: Sequence[Record]) -> list[Record]:
    """The records of trainings; of one that was made on both devices, those of the device that tested it further."""
    counted: dict[tuple[str, int], Counter[str]] = {}
    trained = [record for record in made if record["kind"] != "trial"]
    for record in trained:
        counted.setdefault((record["scheme"], record["seed"]), Counter())[record["machine"]["device"]] += 1
    taken = {training: devices.most_common(1)[0][0] for training, devices in counted.items()}
    return [each for each in trained if taken[each["scheme"], each["seed"]] == each["machine"]["device"]]


def _anywhere(record: Record) -> str:
    """The fingerprint of its comparison, whatever device and versions it was measured with."""
    identity = configured(record["configuration"]).identity(text_digest=record["text"]["digest"])
    return fingerprint({name: value for name, value in identity.items() if name != "device"})


@dataclass(frozen=True)
class Tuned:
    """What tuning did for a scheme: its loss on tuning text, at the trained length and at the longest, at the one rate
    that all have untuned and at its best; its place among the schemes by either; and what the trials cost."""

    scheme: str
    trials: int
    rate: Rate
    untuned: tuple[float, float | None]
    best: tuple[float, float | None]
    seconds: float
    place: int = 0
    untuned_place: int = 0

    @property
    def gain(self) -> float:
        return self.untuned[0] - self.best[0]

    @property
    def at_end(self) -> bool:
        """Whether the rate, or the multiplier, is at the end of those that were tried."""
        config = from_toml(HERE / "python.toml")
        ends = [{min(values), max(values)} for values in (config.tune_rates, config.tune_multipliers)]
        return self.rate.learning_rate in ends[0] or self.rate.multiplier in ends[1]

    @property
    def moved(self) -> int:
        """By how many places."""
        return abs(self.place - self.untuned_place)


def tuning() -> list[Tuned]:
    """Of every scheme with all of its trials, the lowest loss first."""
    found = []
    made = [record for record in records("python") if record["kind"] == "trial"]
    for scheme in SCHEMES.values():
        tried = [record for record in made if record["scheme"] == scheme]
        rate = chosen(scheme, tried)
        if rate is not None and len(tried) == TRIALS:
            seconds = sum(record.get("seconds", 0.0) for record in tried)
            found.append(Tuned(scheme, TRIALS, rate, _loss(tried, AT_ONE_RATE), _loss(tried, rate), seconds))
    untuned = sorted(found, key=lambda each: each.untuned[0])
    found.sort(key=lambda each: each.best[0])
    return [replace(each, place=n, untuned_place=untuned.index(each) + 1) for n, each in enumerate(found, 1)]


def _loss(tried: Iterable[Record], rate: Rate) -> tuple[float, float | None]:
    """Of the trial at a rate, or at its learning rate where the scheme learns nothing; infinite where it diverged."""
    for record in tried:
        if record["learning_rate"] == rate.learning_rate and record["multiplier"] in (rate.multiplier, None):
            bits = record.get("bits")
            return math.inf if bits is None else bits, record.get("longest")
    raise ValueError(f"there must be a trial at {rate}, and there is none")


@dataclass(frozen=True)
class Contrast:
    """A claim of `posenc.tools.choose` on one text: what was published of two schemes and what was found."""

    claim: Mapping[str, Any]
    found: Estimate | None
    verdict: str = ""

    @property
    def agrees(self) -> str:
        """Whether what was found is what was published: yes, no, or undecided; empty without a verdict."""
        return agrees(self.claim["published"]["verdict"], self.verdict) if self.verdict else ""

    def to_dict(self) -> dict[str, Any] | None:
        """The finding as `posenc.tools.choose` has it; None without a verdict."""
        if not self.verdict or self.found is None:
            return None
        numbers = {name: round(getattr(self.found, name), 4) for name in ("mean", "low", "high")}
        said = {"verdict": self.verdict, "seeds": self.found.seeds, "agrees": self.agrees}
        return {"status": "measured", **numbers, **said}


def contrasts(of: Text) -> list[Contrast]:
    """The eight tests of a text, with Holm's correction over them; without verdicts until all trainings are there."""
    made = []
    for claim in claims():
        scheme, other = claim["contrast"]
        made.append(Contrast(claim, of.summary.difference(MEASURE, scheme, other, claim["length"])))
    return judged(made, of.summary.task.margin) if of.complete else made


def judged(made: Sequence[Contrast], margin: float) -> list[Contrast]:
    """The same with their verdicts: "lower" or "higher" where Holm's test of all of them rejects zero, "tied" where the
    90 % interval is within the margin, else "undecided". One that cannot be judged, since its trainings diverged, has
    none and counts as a test."""
    tests = [each.found.found if each.found and each.found.judged else None for each in made]
    shown = holm([1.0 if test is None else float(test.p_value()) for test in tests])
    return [
        each if test is None else replace(each, verdict=verdict(test, margin, differs=bool(differs)).partition(",")[0])
        for each, test, differs in zip(made, tests, shown, strict=True)
    ]


def exploratory(of: Text, length: int) -> list[tuple[str, list[str]]]:
    """Of every scheme, which others it is shown to be lower than, by Holm's tests of all pairs at a length."""
    pairs = {
        (a, b): gap
        for a, b in combinations(of.summary.schemes, 2)
        if (gap := of.summary.difference(MEASURE, a, b, length)) and gap.judged and gap.found
    }
    shown = holm([float(gap.found.p_value()) for gap in pairs.values() if gap.found])
    lower: dict[str, list[str]] = {scheme: [] for scheme in of.summary.schemes}
    for ((a, b), gap), differs in zip(pairs.items(), shown, strict=True):
        if differs:
            better, worse = (a, b) if gap.mean < 0 else (b, a)
            lower[better].append(worse)
    return sorted(lower.items(), key=lambda item: -len(item[1]))
