"""What the records of pieces say, by the rules of pieces.md: who looks back, and how far that carries."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import takewhile
from statistics import median

from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.pieces import MATCHED
from posenc_lab.compare.summary import Summary, check
from posenc_lab.compare.task import BEGUN, listed
from posenc_lab.compare.tasks import from_toml, task_of
from posenc_lab.kit.records import read
from study.archives import RECORDS, unpack
from study.findings import HERE, Part, label, of_plan
from study.run import SCHEMES

SCHEDULE = "rope@64~rope@64~nope"
PLAN = HERE / "pieces.md"
BEGUN_SO_FAR = f"begun, with the gap to which the use stays half of that at the trained length, and {BEGUN} bits"


def name(scheme: str) -> str:
    """A scheme as the page has it; its schedule as the study's other pages have theirs."""
    return label(SCHEMES["windows"]) if scheme == SCHEDULE else label(scheme)


class Pieces(Part):
    """The comparison of pieces.toml, as far as it is measured. A conclusion on a scheme waits for all its seeds."""

    @cached_property
    def config(self) -> CompareConfig:
        return from_toml(HERE / "pieces.toml")

    @property
    def plan(self) -> set[tuple[str, int]]:
        return {(scheme, seed) for scheme in self.config.schemes for seed in self.config.seeds}

    @property
    def complete(self) -> list[str]:
        """The schemes whose seeds are all there."""
        left = {scheme for scheme, _ in self.plan - self.summary.whole()}
        return [scheme for scheme in self.config.schemes if scheme not in left]

    @property
    def schemes(self) -> list[str]:
        """Those of which some training is there, in their order."""
        some = {scheme for scheme, _ in self.plan & self.summary.whole()}
        return [scheme for scheme in self.config.schemes if scheme in some]

    @property
    def longer(self) -> list[int]:
        """The lengths beyond the trained one."""
        return [n for n in self.config.test_lengths if n > self.config.train_length]

    @property
    def seconds(self) -> float:
        """The median of a training without its tests, by those that are there."""
        made = (record for scheme in self.schemes for record in self.summary.of("training", scheme))
        return median([record["seconds"] for record in made if "seconds" in record] or [0.0])

    def gap(self, length: int) -> int:
        """From the far source to its copy in a row."""
        return length - 64

    def use(self, kind: str, scheme: str, length: int) -> float | None:
        """The mean over rows and seeds, in bits per byte; None where nothing is measured."""
        value = self.summary.bits(kind, scheme, length)
        return value.mean if value and value.finite else None

    def control(self, kind: str, *schemes: str) -> tuple[float | None, float | None]:
        """The least and the most that a control gains, with these schemes or all of them, at any length."""
        tests = ((scheme, n) for scheme in schemes or self.schemes for n in self.config.test_lengths)
        uses = [use for scheme, n in tests if (use := self.use(kind, scheme, n)) is not None]
        return (min(uses), max(uses)) if uses else (None, None)

    @property
    def fault(self) -> str:
        """Why nothing may be concluded; empty where the match by construction gains enough at every length."""
        least, _ = self.control("match")
        if least is None:
            return "The match by construction is not measured yet, so nothing is concluded."
        short = "The match by construction does not gain what it must: the rows are wrong, and nothing is concluded."
        return "" if least >= MATCHED else short

    def steps(self, scheme: str) -> list[int | None]:
        """From which step on each seed that is there looks back; None where it does not."""
        found = self.summary.begun(scheme)
        return [found[seed] for seed in self.config.seeds if seed in found]

    def starts(self, scheme: str) -> str:
        """The same in words, for tables."""
        lost = {record["seed"] for record in self.summary.of("training", scheme) if record.get("diverged")}
        found = self.summary.begun(scheme)
        words = ("diverged" if n in lost else "never" if found[n] is None else f"{found[n]:,}" for n in sorted(found))
        return ", ".join(words)

    def looks_back(self, scheme: str) -> bool:
        """Whether every seed has begun, and a shuffled source is of no use."""
        return not self.order_free(scheme) and None not in self.steps(scheme)

    def order_free(self, scheme: str) -> list[int]:
        """The lengths at which a shuffled source is of use too, so that nothing is concluded."""
        return [n for n in self.config.test_lengths if (self.use("shuffled", scheme, n) or 0.0) > BEGUN]

    def helps(self, kind: str, scheme: str, length: int) -> bool:
        """Whether a source is of use."""
        return (self.use(kind, scheme, length) or 0.0) >= BEGUN

    def is_used(self, scheme: str) -> bool:
        """Whether a far and a near source are of use at the trained length; else nothing is said of distance."""
        return all(self.helps(kind, scheme, self.config.train_length) for kind in ("far", "near"))

    def holds(self, kind: str, scheme: str, length: int) -> bool:
        """Whether the use at a length is at least half of that at the trained length."""
        there, trained = (self.use(kind, scheme, n) for n in (length, self.config.train_length))
        return there is not None and trained is not None and there >= trained / 2

    def carries(self, scheme: str, length: int) -> bool:
        """To a far source in rows of a length."""
        return self.is_used(scheme) and self.holds("far", scheme, length) and self.helps("far", scheme, length)

    def conclusion(self, scheme: str) -> str:
        """The rules in words, of a scheme whose seeds are all there."""
        if lengths := self.order_free(scheme):
            return f"a shuffled source is of use too, in rows of {_numbers(lengths)} bytes: **nothing is concluded**."
        steps = [f"seed {seed} {_step(step)}" for seed, step in zip(self.config.seeds, self.steps(scheme), strict=True)]
        if not self.looks_back(scheme):
            words = "; ".join(filter(None, (listed(steps), self.summary.diverged(scheme))))
            return f"not both seeds have begun ({words}), so of distance **nothing is said**."
        clauses = [f"**looks back** ({listed(steps)})"]
        if not self.is_used(scheme):
            why = f"a far or a near source is of less than {BEGUN} bits of use at the trained length"
            return f"{clauses[0]}; {why}, so of distance **nothing is said**."
        reach = [n for n in self.longer if self.carries(scheme, n)]
        rest = [n for n in self.longer if n not in reach]
        by_length = [n for n in rest if not self.holds("near", scheme, n)]
        by_gap = [n for n in rest if n not in by_length and self.helps("near", scheme, n)]
        if reach:
            clauses.append(f"**carries** to gaps of {_numbers(map(self.gap, reach))} bytes")
        if by_gap:
            gaps = _numbers(map(self.gap, by_gap))
            clauses.append(f"**does not carry** to {gaps}, where a near source is still used: it is the distance")
        if unclear := [n for n in rest if n not in by_length + by_gap]:
            gaps = _numbers(map(self.gap, unclear))
            clauses.append(f"**does not carry** to {gaps}, where a near source is of less than {BEGUN} bits too")
        if by_length:
            clauses.append(f"**fails at the length** of rows of {_numbers(by_length)} bytes, with a near source too")
        return f"{'; '.join(clauses)}."

    def so_far(self) -> str:
        """What is seen of the schemes of which a seed is missing, which is no conclusion; empty without one."""
        found: dict[str, list[str]] = {}
        for scheme in (s for s in self.schemes if s not in self.complete):
            reach = [*takewhile(lambda n, of=scheme: self.carries(of, n), self.longer)]  # type: ignore[misc]
            if self.order_free(scheme):
                found.setdefault("of use is a shuffled source too, with", []).append(name(scheme))
            elif not self.looks_back(scheme):
                found.setdefault("not begun", []).append(name(scheme))
            else:
                gap = f"{self.gap(reach[-1]):,}" if reach else "no longer gap"
                found.setdefault(BEGUN_SO_FAR, []).append(f"{name(scheme)} ({gap})")
        clauses = (f"{words}: {listed(schemes)}" for words, schemes in sorted(found.items()))
        return f"**So far, of one seed, and not yet concluded**: {'; '.join(clauses)}." if found else ""

    def in_short(self) -> str:
        """A line on the schemes whose seeds are all there, the furthest first, and what is seen of the others."""
        if self.fault:
            return self.fault
        found: dict[tuple[int, str], list[str]] = {}
        for scheme in self.complete:
            reach = [self.gap(n) for n in self.longer if self.carries(scheme, n)]
            if self.order_free(scheme):
                says = (-3, "nothing is concluded:")
            elif not self.looks_back(scheme):
                says = (-2, "not both seeds have begun:")
            elif not self.is_used(scheme):
                says = (-1, "nothing is said of distance:")
            elif reach:
                says = (max(reach), f"a source {max(reach):,} bytes back is used by")
            else:
                says = (0, "none of the longer gaps is bridged by")
            found.setdefault(says, []).append(name(scheme))
        clauses = "; ".join(f"{words} {listed(schemes)}" for (_, words), schemes in sorted(found.items(), reverse=True))
        return " ".join(filter(None, (f"{clauses[:1].upper()}{clauses[1:]}." if clauses else "", self.so_far())))


def _step(step: int | None) -> str:
    return "not by the last step" if step is None else f"from step {step:,}"


def _numbers(of: Iterable[int]) -> str:
    return listed(f"{n:,}" for n in of)


def bits(value: float | None) -> str:
    """A number of the page's table."""
    return "–" if value is None else f"{value:z.2f}".replace("-", "−")


def pieces() -> Pieces:
    """The comparison with its records. ValueError for records of another plan, or of several comparisons."""
    unpack()
    found = Summary(read(RECORDS / "pieces", check), task_of("pieces"))
    return Pieces("pieces", of_plan("pieces", found, PLAN), len(from_toml(HERE / "pieces.toml").seeds))
