"""The outcome of a trial. Plain PyTorch: scripts hold a copy."""

import linecache
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc_check.subjects import Batch, NotApplicableError, Subject


class Outcome(NamedTuple):
    """Whether it held; what was expected, and what came."""

    ok: bool
    expected: str
    actual: str

    @property
    def finite(self) -> bool:
        """Whether neither side speaks of NaN or infinity."""
        return re.search(r"\b(nan|inf|infs|nans)\b|finite", f"{self.expected} {self.actual}", re.IGNORECASE) is None


MAX_MESSAGE_CHARACTERS = 10_000  # characters of an error's message

Outcomes = Iterator[tuple[str, Outcome]]  # each with the name of what was compared


def largest(x: Tensor) -> float:
    """The largest absolute value among the finite numbers."""
    return float(x.detach().masked_fill(~x.isfinite(), 0.0).abs().max())


AN_ANSWER = "an answer"  # what is expected where an error comes
OUTPUT = ("row", "token", "channel")  # the axes of what a subject gives


def near(expected: Tensor, actual: Tensor, tolerance: float, axes: Sequence[str] = ()) -> Outcome:
    """Whether two tensors agree everywhere within ``tolerance``; NaN agrees with nothing. ``axes`` are named, if the
    tensors have as many."""
    expected, actual = expected.detach(), actual.detach()
    if expected.shape != actual.shape:
        return Outcome(False, f"shape {tuple(expected.shape)}", f"shape {tuple(actual.shape)}")
    if expected.numel() == 0:
        return Outcome(True, "nothing", "nothing")
    equal = actual == expected  # infinite where both are, too
    off = torch.where(equal, 0.0, (actual.double() - expected.double()).abs()).nan_to_num(torch.inf)
    worst, at = float(off.max()), [int(n) for n in torch.unravel_index(off.argmax(), off.shape)]
    place = ", ".join(f"{axis} {n}" for axis, n in zip(axes, at, strict=True)) if len(axes) == len(at) else str(at)
    off_by, most = f"{worst:.2g}", f"{tolerance:.2g}"
    if off_by == most and worst > tolerance:
        off_by, most = f"{worst:.9g}", f"{tolerance:.9g}"
    return Outcome(
        worst <= tolerance,
        f"{float(expected[tuple(at)]):.6g} at {place}",
        f"{float(actual[tuple(at)]):.6g}, off by {off_by} (at most {most})",
    )


def numbers_in(text: str) -> set[int]:
    """The whole numbers in a text: 1,024 too, and 39 of "0-39"."""
    written = re.findall(r"(?<!\w)-?\d+(?:[,_]\d{3})*", text)
    numbers = {int(re.sub("[,_]", "", number)) for number in written}
    return numbers | {int(number) for number in re.findall(r"(?<=\d-)\d+", text)}


def all_finite(out: Tensor, batch: Batch) -> Outcome:
    """Whether there are finite numbers for every token of the batch."""
    held = out.shape[:2] == (len(batch.ids), batch.tokens) and bool(out.isfinite().all())
    return Outcome(held, f"a finite output for {batch.tokens} tokens", f"{tuple(out.shape)}, or not finite")


def refused(run: Callable[[], object], expected: str, named: Callable[[str], bool]) -> Outcome:
    """Whether ``run`` raises an error whose message is as it must be: ``named`` says so."""
    try:
        run()
    except NotApplicableError:
        raise
    except Exception as error:
        return Outcome(named(str(error)), expected, f"{type(error).__name__}: {error}")
    return Outcome(False, expected, "an answer, and no error")


def first_failure(outcomes: Iterable[tuple[str, Outcome]]) -> Outcome:
    """The first outcome that did not hold, with its name; or that all of them held."""
    for name, outcome in outcomes:
        if not outcome.ok:
            return Outcome(False, f"{name}: {outcome.expected}", f"{name}: {outcome.actual}")
    return Outcome(True, "all", "all")


def outcome_of(trial: Callable[..., Outcome | Outcomes], subject: Subject, batch: Batch, **values: Any) -> Outcome:
    """The outcome of a trial, or the first failure of several; an exception, or an exit, is a finding."""
    try:
        found = trial(subject, batch, **values)
        return found if isinstance(found, Outcome) else first_failure(list(found))
    except NotApplicableError:
        raise
    except (Exception, SystemExit) as error:
        return Outcome(False, AN_ANSWER, describe_error(error))


def describe_error(error: BaseException) -> str:
    """An error in words, with the innermost line of the subject's own code."""
    try:
        message = str(error)
    except Exception as other:  # of the subject's own class
        message = f"its message cannot be read: {type(other).__name__}"
    if len(message) > MAX_MESSAGE_CHARACTERS:
        message = f"{message[:MAX_MESSAGE_CHARACTERS]} … ({len(message):,} characters)"
    return f"{type(error).__name__}: {message}{own_line(walk_tb(error.__traceback__))}"


def own_line(steps: Iterable[tuple[FrameType, int]]) -> str:
    """The innermost line of the subject's own code among frames, of which the outermost is first."""
    line = ""
    for frame, number in steps:
        package, file = frame.f_globals.get("__name__", "").split(".")[0], frame.f_code.co_filename
        here = (
            frame.f_globals is globals() or package in ("posenc", "posenc_check") or package in sys.stdlib_module_names
        )
        if not (here or "-packages" in file):
            line = f" ({Path(file).name}, line {number}: {linecache.getline(file, number).strip()})"
    return line
