"""What the records of the study say: of each text its comparison, how far it has come, and the four contrasts."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Self

from posenc.schemes.catalog import catalog
from posenc_lab.choose.evidence import claims
from posenc_lab.compare.config import Rate
from posenc_lab.compare.puzzle import Recall
from posenc_lab.compare.summary import Estimate, Summary, check
from posenc_lab.compare.tasks import from_toml
from posenc_lab.compare.tuning import chosen
from posenc_lab.kit.files import digest_of
from posenc_lab.kit.records import Record, read
from posenc_lab.kit.statistics import holm, verdict
from posenc_lab.kit.titles import titled
from study.archives import RECORDS, unpack
from study.devices import once
from study.run import FOLDERS, GPU, OF_TWO_LAYERS, SCHEMES, TASKS, Job, tuned

HERE = Path(__file__).parent
PUBLISHED: Mapping[str, Any] = tomllib.loads((HERE / "published.toml").read_text())
LENGTHS = (128, 1024)
MEASURE = "sliding"
WINDOWS = (SCHEMES["windows"], OF_TWO_LAYERS["windows"])
MULTIPLIERS = {entry.name: entry.rate for entry in catalog()}
AT_ONE_RATE = Rate(0.005, 1.0)  # the default of posenc compare, and no more for what a scheme learns


def key(scheme: str) -> str:
    """A scheme as the explorer's records have it."""
    return titled(scheme) if scheme in WINDOWS else scheme


label = titled  # a scheme as tables have it


def signed(value: float) -> str:
    """A difference with its sign."""
    return f"{value:+.3f}".replace("-", "−")


def interval(value: Estimate | None) -> str:
    """A difference with its interval."""
    if value is None:
        return "not measured"
    return f"{value.mean:+.3f} ({value.low:+.3f} to {value.high:+.3f})".replace("-", "−")


def records(part: str) -> list[Record]:
    """Those of all schemes, in their order and from all devices; none where nothing was measured."""
    unpack()
    folders = (RECORDS / part / folder for folder in SCHEMES)
    checks = [] if part in TASKS else [check]
    return [record for on_cpu in folders for out in (on_cpu, on_cpu / GPU) for record in read(out, *checks)]


@dataclass(frozen=True)
class Part:
    """A text or a puzzle of the study: its trainings without those of tuning, and the seeds that are planned of each
    scheme."""

    name: str
    summary: Summary
    seeds: int

    @property
    def plan(self) -> set[tuple[str, int]]:
        """The trainings that are planned, by scheme and seed."""
        return {(Job(self.name, f, ()).scheme, seed) for f in FOLDERS[self.name] for seed in range(self.seeds)}

    @property
    def trained(self) -> int:
        """Trainings with all tests, or diverged, of those that are planned."""
        return len(self.plan & self.summary.whole())

    @property
    def planned(self) -> int:
        return len(self.plan)

    def whole(self) -> Self:
        """Itself. ValueError where a training is missing, since no verdict is given before the last."""
        if self.trained < self.planned:
            raise ValueError(f"{self.name} must have {self.planned} trainings with all tests, got {self.trained}")
        return self


class Text(Part):
    """One text of the study."""

    @property
    def about(self) -> str:
        """How large it is, and what of it is left out."""
        told = self.summary.records[-1]["text"]
        sentences = (f"The text has {told['about'].partition(': ')[2]}", told.get("notice"))
        return " ".join(f"{each}." for each in sentences if each).replace("%", " %")

    def far(self, scheme: str) -> Estimate | None:
        """What far text is worth to a scheme: the loss of the final tokens after all that a window has less that after
        as many as in training."""
        of = self.summary
        return of.difference("final_tokens", scheme, scheme, LENGTHS[-1], "truncated", of.train_length)


def text(name: str, seeds: int) -> Text:
    """The text with its records. ValueError where some are missing."""
    return Text(name, summary(name, records(name)), seeds).whole()


def summary(name: str, made: Sequence[Record]) -> Summary:
    """The records of a part without trials. ValueError for records of several comparisons, or of another plan than the
    one that is here, and for a training at another rate than was tuned."""
    found = of_plan(name, Summary(once(made), Recall() if name in TASKS else None))
    for folder in FOLDERS[name]:
        for record in found.of("training", Job(name, folder, ()).scheme):
            its, rate = Rate(record["learning_rate"], record["multiplier"]), tuned(name, folder)
            if its != rate:
                raise ValueError(f"{name}: {record['scheme']} must be trained at {rate}, got a training at {its}")
    return found


def of_plan(name: str, found: Summary, path: Path = HERE / "plan.md") -> Summary:
    """The same. ValueError for records of several comparisons, or of another plan."""
    if found.left_out:
        raise ValueError(f"{name} must hold the records of one comparison, got {found.left_out} records of others")
    plan = digest_of(path.read_bytes())
    if others := {str(record.get("plan")) for record in found.records} - {plan}:
        raise ValueError(f"{name} must be of the plan {plan}, got records of {', '.join(sorted(others))}")
    return found


@dataclass(frozen=True)
class Short:
    """What holds on every text: the schemes that no other is shown to be lower than, at each length; those whose loss
    changes from the first length to the last by less than the margin, with its interval, those whose loss rises by more
    than a bit, and the others; and those that text further back than in training helps on any text."""

    best: dict[int, list[str]]
    flat: list[str]
    steep: list[str]
    others: list[str]
    gainers: list[str]


def short(texts: Sequence[Text]) -> Short:
    """Of the texts that are tested."""
    margin = texts[0].summary.task.margin
    rises = {s: [rise for of in texts if (rise := _rise(of.summary, s))] for s in SCHEMES.values()}
    known = {s: each for s, each in rises.items() if len(each) == len(texts)}
    flat = [s for s, each in known.items() if all(-margin < x.low and x.high < margin for x in each)]
    steep = [s for s, each in known.items() if all(x.low > 1 for x in each)]
    return Short(
        {n: [s for s in rises if all(s in of.summary.best(MEASURE, n) for of in texts)] for n in LENGTHS},
        flat,
        steep,
        [s for s in rises if s not in flat + steep],
        [s for s in rises if any((gain := of.far(s)) and gain.high < 0 for of in texts)],
    )


def highest_gain(texts: Sequence[Text]) -> float:
    """The most that any scheme gains on any text from half the trained length to all of it, in bits."""
    half, whole = LENGTHS[0] // 2, LENGTHS[0]
    found = (of.summary.difference(MEASURE, s, s, half, MEASURE, whole) for of in texts for s in SCHEMES.values())
    return max(each.mean for each in found if each)


def _rise(of: Summary, scheme: str) -> Estimate | None:
    first, last = LENGTHS
    return of.difference(MEASURE, scheme, scheme, last, MEASURE, first)


@dataclass(frozen=True)
class Tuned:
    """What tuning did for a scheme: its loss on tuning text, at the trained length and at the longest, at the one rate
    that all have untuned and at its best; its place among the schemes by either; what the trials cost; and, where
    `posenc compare` has another multiplier than 1 by default, that and the losses with it."""

    scheme: str
    trials: int
    rate: Rate
    untuned: tuple[float, float | None]
    best: tuple[float, float | None]
    seconds: float
    by_default: tuple[float, float, float | None] | None = None
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
    """Of every scheme, the lowest loss first. ValueError without trials."""
    found = []
    made = [record for record in records("python") if record["kind"] == "trial"]
    for scheme in SCHEMES.values():
        tried = [record for record in made if record["scheme"] == scheme]
        rate = chosen(scheme, tried)
        if rate is None:
            raise ValueError(f"{scheme} must have trials on python, and has none")
        seconds = sum(record.get("seconds", 0.0) for record in tried)
        default = MULTIPLIERS.get(scheme, 1.0)
        with_it = (default, *_loss(tried, replace(AT_ONE_RATE, multiplier=default))) if default != 1 else None
        losses = _loss(tried, AT_ONE_RATE), _loss(tried, rate)
        found.append(Tuned(scheme, len(tried), rate, *losses, seconds, with_it))
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
    """A claim of `posenc_lab.choose` on one text: what was published of two schemes and what was found."""

    claim: Mapping[str, Any]
    found: Estimate | None
    verdict: str = ""

    @property
    def agrees(self) -> str:
        """Whether what was found is what was published: yes, no, or undecided."""
        if self.verdict in ("", "undecided"):
            return "undecided"
        return "yes" if self.verdict == self.claim["published"]["verdict"] else "no"

    def to_dict(self) -> dict[str, Any] | None:
        """The finding as `posenc_lab.choose` has it; None without a verdict."""
        if not self.verdict or self.found is None:
            return None
        numbers = {name: round(getattr(self.found, name), 6) for name in ("mean", "low", "high")}
        said = {"verdict": self.verdict, "seeds": self.found.seeds, "agrees": self.agrees}
        return {"status": "measured", **numbers, **said}


def contrasts(of: Text) -> list[Contrast]:
    """The eight tests of a text, with Holm's correction over them."""
    made = []
    for claim in claims():
        scheme, other = claim["contrast"]
        made.append(Contrast(claim, of.summary.difference(MEASURE, scheme, other, claim["length"])))
    return judged(made, of.summary.task.margin)


def judged(made: Sequence[Contrast], margin: float, careful: bool = True) -> list[Contrast]:
    """The same with their verdicts: "lower" or "higher" where Holm's test of all of them rejects zero, "tied" where the
    90 % interval is within the margin, else "undecided". One that cannot be judged, since its trainings diverged, has
    none and counts as a test. If not ``careful``, by Satterthwaite's degrees of freedom alone."""
    tests = [each.found.found if each.found and each.found.judged else None for each in made]
    used = [test if careful or test is None else test._replace(fewest=test.freedom) for test in tests]
    shown = holm([1.0 if test is None else float(test.p_value()) for test in used])
    return [
        each if test is None else replace(each, verdict=verdict(test, margin, differs=bool(differs)).partition(",")[0])
        for each, test, differs in zip(made, tests, shown, strict=True)
    ]


def exploratory(of: Text, length: int) -> Counter[str]:
    """Of every scheme, how many others it is shown to be lower than, by Holm's tests of all pairs at a length."""
    pairs = {
        (a, b): gap
        for a, b in combinations(of.summary.schemes, 2)
        if (gap := of.summary.difference(MEASURE, a, b, length)) and gap.judged and gap.found
    }
    shown = holm([float(gap.found.p_value()) for gap in pairs.values() if gap.found])
    tested = zip(pairs.items(), shown, strict=True)
    return Counter(a if gap.mean < 0 else b for ((a, b), gap), differs in tested if differs)
