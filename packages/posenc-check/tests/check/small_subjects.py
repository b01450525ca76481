"""Small subjects, a rotation that is right and one that is not; checks that end in every way; scripts run alone."""

import contextlib
import io
import sys
from collections.abc import Iterator
from types import ModuleType

import torch
from torch import Tensor

from posenc_check import Batch, Rotary, Subject
from posenc_check.outcome import Outcome
from posenc_check.subjects import require
from posenc_check.trial import Case, Check, Trial, TrialPlan

MUTANTS = "tests.check.mutants"  # they import posenc too


def nothing(base: float = 10_000.0) -> float:
    return base


def rotate(base: float, x: Tensor, positions: Tensor) -> Tensor:
    rates = base ** (-torch.arange(0, x.size(-1), 2, dtype=torch.float64) / x.size(-1))
    angles = positions[:, None, :, None].double() * rates
    left, right = x.double().chunk(2, -1)
    turned = torch.cat((left * angles.cos() - right * angles.sin(), left * angles.sin() + right * angles.cos()), -1)
    return turned.to(x.dtype)


def rotate_by_index(base: float, x: Tensor, positions: Tensor) -> Tensor:
    return rotate(base, x, torch.arange(x.size(2)).expand(x.size(0), -1))


RIGHT = Rotary(build=nothing, call=rotate, options={"base": 500.0}, relative=True)
WRONG = Rotary(build=nothing, call=rotate_by_index, options={"base": 500.0}, relative=True)  # left padding shows it


def run_alone(script: str) -> tuple[object, str]:
    """The exit code of a script that cannot import posenc, and what it printed."""
    before, path = dict(sys.modules), list(sys.path)
    hidden = [name for name in before if name.startswith(("posenc", MUTANTS))]
    finding = ModuleType("finding")  # dataclasses look their module up
    sys.modules.update({**dict.fromkeys(hidden), "posenc": None, "finding": finding})  # type: ignore[dict-item]
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            try:
                exec(compile(script, "finding.py", "exec"), vars(finding))
            except SystemExit as end:
                return end.code, printed.getvalue()
    finally:
        for name in [name for name, module in sys.modules.items() if getattr(module, "__spec__", None) is None]:
            del sys.modules[name]  # the script made it
        sys.modules.update(before)
        sys.path[:] = path
    raise AssertionError("the script did not say how it ended")


# -- checks of every outcome -------------------------------------------------------------------------------------------


def holds(subject: Subject, batch: Batch) -> Outcome:
    return Outcome(bool(subject.run(subject.make(), batch).isfinite().all()), "finite", "not finite")


def is_hostile(subject: Subject, batch: Batch, least: float) -> Outcome:
    return Outcome(
        batch.tokens < least, "<b>bold</b> & [red]markup[/red]", "a bell \x07, a half \ud83d, ]]> and é\n</pre>"
    )


CLOCK = [0.0]  # put in the place of the real one, so that no test depends on how busy the machine is


def is_slow(subject: Subject, batch: Batch) -> Outcome:
    CLOCK[0] += 100.0
    return Outcome(True, "", "")


def _texts(plan: TrialPlan) -> Iterator[Case]:
    for tokens in (2, 3, 5):
        yield Case(plan.text(2, tokens))


def _with_values(plan: TrialPlan) -> Iterator[Case]:
    yield Case(plan.line(2, 5, start=90), {"least": 3.0})


def _refused(plan: TrialPlan) -> Iterator[Case]:
    require(False, "it is of <another> kind")
    yield from ()


HOLDS = Trial("texts", holds, _texts)
REFUSED = Trial("<others>", holds, _refused)
PASSES = Check(1, "passes", "It is finite.", "What is not spreads.", (1,), (HOLDS, REFUSED))
FINDS = Check(
    2,
    "finds a lot",
    "A <rule> & more.",
    "It <matters>.",
    (7, 8),
    (HOLDS, Trial("a hostile one", is_hostile, _with_values), Trial("another hostile one", is_hostile, _with_values)),
    "Be <kind>.",
)
REFUSES = Check(3, "does not apply", "Nothing.", "For nothing.", (), (REFUSED,))
WAITS = Check(4, "waits", "It ends.", "Time is short.", (), (Trial("for long", is_slow, _texts),))
ONE_OF_EACH = (PASSES, FINDS, REFUSES, WAITS)
