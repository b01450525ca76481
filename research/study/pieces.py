"""What the records of pieces say, by the rules of pieces.md: who looks back, and how far that carries."""

from __future__ import annotations

from collections.abc import Iterable

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


def name(scheme: str) -> str:
    """A scheme as the page has it; its schedule as the study's other pages have theirs."""
    return label(SCHEMES["windows"]) if scheme == SCHEDULE else label(scheme)


class Pieces(Part):
    """The comparison of pieces.toml, as far as it is measured. What is said of a scheme waits for all of its seeds."""

    @property
    def config(self) -> CompareConfig:
        return from_toml(HERE / "pieces.toml")

    @property
    def asked(self) -> set[tuple[str, int]]:
        return {(scheme, seed) for scheme in self.config.schemes for seed in self.config.seeds}

    @property
    def there(self) -> list[str]:
        """The schemes whose seeds are all there."""
        left = {scheme for scheme, _ in self.asked - self.summary.whole()}
        return [scheme for scheme in self.config.schemes if scheme not in left]

    @property
    def begun(self) -> list[str]:
        """Those of which some training is there, in their order."""
        some = {scheme for scheme, _ in self.asked & self.summary.whole()}
        return [scheme for scheme in self.config.schemes if scheme in some]

    @property
    def longer(self) -> list[int]:
        """The lengths beyond the trained one."""
        return [n for n in self.config.test_lengths if n > self.config.train_length]

    def gap(self, length: int) -> int:
        """From the far source to its copy in a row."""
        return length - 64

    def use(self, kind: str, scheme: str, length: int) -> float | None:
        """The mean over rows and seeds, in bits per byte; None where nothing is measured."""
        value = self.summary.bits(kind, scheme, length)
        return value.mean if value and value.finite else None

    def control(self, kind: str, *schemes: str) -> list[float]:
        """What a control gains, with these schemes or all of them, at all lengths, the least first."""
        tests = ((scheme, n) for scheme in schemes or self.begun for n in self.config.test_lengths)
        return sorted(use for scheme, n in tests if (use := self.use(kind, scheme, n)) is not None)

    @property
    def is_sound(self) -> bool:
        """Whether the match by construction gains enough at every length, so that anything may be concluded."""
        found = self.control("match")
        return bool(found) and found[0] >= MATCHED

    def steps(self, scheme: str) -> list[int | None]:
        """From which step on each seed that is there looks back; None where it does not."""
        found = self.summary.begun(scheme)
        return [found[seed] for seed in self.config.seeds if seed in found]

    def looks_back(self, scheme: str) -> bool:
        """Whether every seed has begun, and a shuffled source is of no use."""
        return not self.order_free(scheme) and None not in self.steps(scheme)

    def order_free(self, scheme: str) -> list[int]:
        """The lengths at which a shuffled source is of use too, so that nothing is concluded."""
        return [n for n in self.config.test_lengths if (self.use("shuffled", scheme, n) or 0.0) > BEGUN]

    def holds(self, kind: str, scheme: str, length: int) -> bool:
        """Whether the use at a length is at least half of that at the trained length."""
        there, trained = (self.use(kind, scheme, n) for n in (length, self.config.train_length))
        return there is not None and trained is not None and there >= trained / 2

    def carries(self, scheme: str, length: int) -> bool:
        """To a far source in rows of a length."""
        return self.holds("far", scheme, length) and (self.use("far", scheme, length) or 0.0) >= BEGUN

    def said(self, scheme: str) -> str:
        """The rules in words, of a scheme whose seeds are all there."""
        if lengths := self.order_free(scheme):
            return f"a shuffled source is of use too, in rows of {_numbers(lengths)} bytes: **nothing is concluded**."
        steps = [f"seed {seed} {_step(step)}" for seed, step in zip(self.config.seeds, self.steps(scheme), strict=True)]
        if not self.looks_back(scheme):
            words = "; ".join(filter(None, (listed(steps), self.summary.diverged(scheme))))
            return f"not both seeds have begun ({words}), so of distance **nothing is said**."
        reached = [n for n in self.longer if self.carries(scheme, n)]
        lost = [n for n in self.longer if n not in reached]
        by_length = [n for n in lost if not self.holds("near", scheme, n)]
        by_gap = [n for n in lost if n not in by_length]
        clauses = [f"**looks back** ({listed(steps)})"]
        if reached:
            clauses.append(f"**carries** to gaps of {_numbers(map(self.gap, reached))} bytes")
        if by_gap:
            gaps = _numbers(map(self.gap, by_gap))
            clauses.append(f"**does not carry** to {gaps}, where a near source is still used: it is the distance")
        if by_length:
            clauses.append(f"**fails at the length** of rows of {_numbers(by_length)} bytes, with a near source too")
        return f"{'; '.join(clauses)}."

    def in_short(self) -> list[tuple[str, list[str]]]:
        """What is said of the schemes whose seeds are all there, in a clause, and of which: the furthest first."""
        found: dict[tuple[int, str], list[str]] = {}
        for scheme in self.there:
            reached = [self.gap(n) for n in self.longer if self.carries(scheme, n)]
            if not self.looks_back(scheme):
                says = (-1, "nothing is said of")
            elif reached:
                says = (max(reached), f"a source {max(reached):,} bytes back is used by")
            else:
                says = (0, "none of the longer gaps is bridged by")
            found.setdefault(says, []).append(scheme)
        return [(words, schemes) for (_, words), schemes in sorted(found.items(), reverse=True)]


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
