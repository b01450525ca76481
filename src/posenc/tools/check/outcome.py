"""The outcome of a trial. Plain PyTorch: scripts hold a copy."""

import linecache
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from traceback import walk_tb
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc.tools.check.subjects import Batch, NotApplicableError, Subject


class Outcome(NamedTuple):
    """Whether it held; what was expected, and what came."""

    ok: bool
    expected: str
    came: str

    @property
    def finite(self) -> bool:
        """Whether it is about numbers, and not about what is none or has none."""
        return re.search(r"\b(nan|inf|infs|nans)\b|finite", f"{self.expected} {self.came}", re.IGNORECASE) is None


Outcomes = Iterator[tuple[str, Outcome]]  # with what each is of


def near(expected: Tensor, came: Tensor, tolerance: float) -> Outcome:
    """Whether two tensors agree everywhere within ``tolerance``; NaN agrees with nothing."""
    expected, came = expected.detach(), came.detach()
    if expected.shape != came.shape:
        return Outcome(False, f"shape {tuple(expected.shape)}", f"shape {tuple(came.shape)}")
    if expected.numel() == 0:
        return Outcome(True, "nothing", "nothing")
    equal = came == expected  # infinite where both are, too
    off = torch.where(equal, 0.0, (came.double() - expected.double()).abs()).nan_to_num(torch.inf)
    worst, at = float(off.max()), [int(n) for n in torch.unravel_index(off.argmax(), off.shape)]
    return Outcome(
        worst <= tolerance,
        f"{float(expected[tuple(at)]):.6g} at {at}",
        f"{float(came[tuple(at)]):.6g}, off by {worst:.2g} (at most {tolerance:.2g})",
    )


def numbers_in(text: str) -> set[int]:
    """The whole numbers in a text: 1,024 too, and 39 of "0-39"."""
    written = re.findall(r"(?<!\w)-?\d+(?:[,_]\d{3})*", text)
    numbers = {int(re.sub("[,_]", "", number)) for number in written}
    return numbers | {int(number) for number in re.findall(r"(?<=\d-)\d+", text)}


def first_failure(outcomes: Iterable[tuple[str, Outcome]]) -> Outcome:
    """The first that did not hold, with its name, or that all did."""
    for name, outcome in outcomes:
        if not outcome.ok:
            return Outcome(False, f"{name}: {outcome.expected}", f"{name}: {outcome.came}")
    return Outcome(True, "all", "all")


def outcome_of(trial: Callable[..., Outcome | Outcomes], subject: Subject, batch: Batch, **values: Any) -> Outcome:
    """What a trial says of a batch, or the first failure of all that it says; an exception is a finding too, and so is
    ending the program, except that it is not applicable."""
    try:
        found = trial(subject, batch, **values)
        return found if isinstance(found, Outcome) else first_failure(list(found))
    except NotApplicableError:
        raise
    except (Exception, SystemExit) as error:
        return Outcome(False, "an answer", described(error))


def described(error: BaseException) -> str:
    """What an error says, and the last line on the way to it that is the subject's own: neither installed nor here."""
    line = ""
    for frame, number in walk_tb(error.__traceback__):
        package, file = frame.f_globals.get("__name__", "").split(".")[0], frame.f_code.co_filename
        here = frame.f_globals is globals() or package == "posenc" or package in sys.stdlib_module_names
        if not (here or "-packages" in file):
            line = f" ({Path(file).name}, line {number}: {linecache.getline(file, number).strip()})"
    return f"{type(error).__name__}: {error}{line}"
