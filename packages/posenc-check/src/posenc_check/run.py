"""Runs the checks on a subject: `check` returns a `Report`."""

import builtins
import contextlib
import importlib
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from traceback import walk_tb
from typing import Any

import torch

from posenc.arguments import number, shown, whole
from posenc.command.progress import Progress
from posenc.encoding.claims import ClaimError, checking_claims
from posenc_check import watch
from posenc_check.checks import CHECKS
from posenc_check.outcome import AN_ANSWER, Outcome, describe_error, outcome_of, own_line
from posenc_check.prepare import prepare_subject, without_warnings
from posenc_check.shrink import shrink
from posenc_check.standalone import given, script
from posenc_check.subjects import Batch, NotApplicableError, Subject
from posenc_check.trial import LENGTHS, LONGEST, NOTHING_TO_DO, THREADS, Case, Check, Trial, TrialPlan

PASSED, FINDING, NOT_APPLICABLE, UNFINISHED = "passed", "finding", "not applicable", "unfinished"
LONGEST_PLAN_CASE = Case(Batch([[0] * 24]))  # the longest batch that a plan itself runs
NOT_CHECKED = "not checked"  # of a claim
SECONDS_PER_CHECK = 60.0  # for each check
PREPARATION_FACTOR = 10  # times as many seconds before the checks, when weights may be downloaded
SHRINK_SHARE = 0.5  # the share of the time left that may be spent on shrinking a finding
SECONDS_OF_GRACE = 5.0  # further seconds in which a case that has begun may end by itself
FLOAT32_NOTE = "run in float32: in float64 there were numbers that are not finite"
SECONDS_BETWEEN_INTERRUPTS = 1.0  # seconds after which a case that continues is interrupted again
SECONDS_UNTIL_KILL = 10.0  # further seconds after which a watched process is ended, if no alarm stopped it


@dataclass(frozen=True)
class Finding:
    """What a check found: the smallest input that shows it, and a script that reproduces it without this package."""

    expected: str
    actual: str
    batch: Batch
    values: dict[str, Any]
    script: str


@dataclass(frozen=True)
class TrialResult:
    """How one trial ended: "passed" after so many cases, "finding", "unfinished" or "not applicable"."""

    name: str
    status: str
    cases: int = 0
    reason: str = ""
    finding: Finding | None = None
    note: str = ""  # how its run differed from the settings of the report


@dataclass(frozen=True)
class Result:
    """How one check ended. It passed if all trials that the subject can take part in did, and there is one."""

    check: Check
    trials: tuple[TrialResult, ...]
    seconds: float = 0.0

    @property
    def status(self) -> str:
        found = {trial.status for trial in self.trials}
        return next(status for status in (FINDING, UNFINISHED, PASSED, NOT_APPLICABLE) if status in found)

    @property
    def reason(self) -> str:
        """Why trials were not applicable, or did not finish."""
        return _join_reasons([trial.reason for trial in self.trials if trial.reason])

    @property
    def threads(self) -> list[str]:
        """Issues in which the same bug was seen before."""
        return [thread for pain in self.check.pains for thread in THREADS[pain]]


class Interrupted(KeyboardInterrupt):
    """The checks were interrupted; ``report`` has the results until then."""

    def __init__(self, report: "Report") -> None:
        super().__init__()
        self.report = report


@dataclass(frozen=True)
class NotChecked:
    """A claim that no trial could try: what is ``said``, such as "compiles=True", why, and the checks of it."""

    claim: str
    said: str
    reason: str
    checks: tuple[int, ...]


@dataclass(frozen=True)
class Report:
    """The results of the checks of a subject, and their settings."""

    subject: Subject
    name: str
    results: list[Result] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every check passed or is not applicable, and every claim was tried."""
        return not self.not_checked and all(result.status in (PASSED, NOT_APPLICABLE) for result in self.results)

    @property
    def not_checked(self) -> list[NotChecked]:
        """The claims that no trial could try, among those all of whose checks were run."""
        claimed = {name: value for name, value in given(self.subject).items() if value is not None}
        ended = {result.check.number: result.trials for result in self.results}
        found = []
        for claim in dict.fromkeys(c for entry in CHECKS for t in entry.trials for c in t.claims if c in claimed):
            of = [(entry.number, n) for entry in CHECKS for n, t in enumerate(entry.trials) if claim in t.claims]
            ends = [ended[number][n] for number, n in of if number in ended]
            if len(ends) == len(of) and all(end.status == NOT_APPLICABLE for end in ends):
                said, numbers = f"{claim}={shown(claimed[claim])}", tuple(dict.fromkeys(number for number, _ in of))
                found.append(NotChecked(claim, said, _join_reasons([end.reason for end in ends]), numbers))
        return found

    @property
    def findings(self) -> list[tuple[Check, TrialResult]]:
        """Every finding, with its check."""
        return [(r.check, trial) for r in self.results for trial in r.trials if trial.finding is not None]


def _join_reasons(reasons: list[str]) -> str:
    """Each reason once; if some say what can be done, those alone."""
    helpful = [reason for reason in reasons if not reason.startswith(NOTHING_TO_DO)]
    first, *others = dict.fromkeys(helpful or reasons or [""])
    return "; ".join([first, *(reason.removeprefix(NOTHING_TO_DO).strip() for reason in others)])


def check(
    subject: Subject,
    *,
    name: str = "",
    checks: Sequence[int] | None = None,
    lengths: Sequence[int] = LENGTHS,
    longest: int = LONGEST,
    seed: int = 0,
    seconds: float = SECONDS_PER_CHECK,
    progress: Progress | None = None,
) -> Report:
    """Runs the checks of these numbers (None: all) on a subject.

    The same subject, settings and seed give the same report, as far as no check runs out of its ``seconds``: it is then
    "unfinished", which is no pass. ``lengths`` are the tokens of a row in most trials, and ``longest`` bounds them all.

    Raises ValueError for a wrong argument, for a subject that claims what cannot be or of which no script can be made,
    and, with what it said, for one that does not run at all; `Interrupted`, which has the report so far, in place of a
    KeyboardInterrupt.
    """
    progress = Progress() if progress is None else progress
    # Imported before any time limit: an interrupted import would leave the module half initialised.
    importlib.import_module("torch._dynamo")
    wanted = select_checks(checks)
    lengths, longest = _whole_numbers("lengths", lengths), whole("longest", longest)
    if not lengths or min(lengths) < 1 or longest < max(lengths):
        raise ValueError(f"lengths must be from 1 to longest = {longest}, got {lengths}")
    seed = whole("seed", seed, 0)
    subject, note = prepare_in_time(subject, seconds, name or "the subject")
    report = Report(subject, name or subject.build.__qualname__)
    report.settings.update(seed=seed, lengths=lengths, longest=longest, seconds=seconds, dtype=str(subject.dtype))
    if note:
        report.settings["note"] = note
    report.settings["checks"] = [entry.number for entry in wanted]
    progress.begin(len(wanted))
    try:
        with progress:
            for entry in wanted:
                plan = TrialPlan(subject, tuple(sorted(lengths)), longest, seed)
                progress.advance(0, f"{report.name}: {entry.number}. {entry.name}")
                report.results.append(_result(entry, plan, report.name, seconds))
                progress.advance(1, f"{report.name}: {entry.number}. {entry.name}")
    except KeyboardInterrupt:
        raise Interrupted(report) from None
    return report


def require_seconds(seconds: float) -> float:
    """The seconds of a check. ValueError for what is no number above 0."""
    if not number("seconds", seconds) > 0:
        raise ValueError(f"seconds must be above 0, got {seconds}")
    return seconds


def prepare_in_time(subject: Subject, seconds: float, name: str) -> tuple[Subject, str]:
    """`prepare_subject`, with a time limit of ten times the seconds of a check. Raises ValueError if the subject does
    not run, or does not return; `ClaimError` for a scheme of posenc with a term that is not what its `Distance`
    declares."""
    allowed = PREPARATION_FACTOR * require_seconds(seconds)
    watch.record_stage(f"{name}: before the checks", allowed + SECONDS_OF_GRACE + SECONDS_UNTIL_KILL)
    try:
        with _time_limit(time.monotonic() + allowed), checking_claims():
            return prepare_subject(subject)
    except _TimeIsUp:
        raise ValueError(f"the subject does not return within {allowed:g} s, ten times `seconds`") from None
    except (ClaimError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if isinstance(error, ValueError) and not own_line(walk_tb(error.__traceback__)):
            raise  # what `prepare_subject` says of the subject
        raise ValueError(f"the subject does not run: {describe_error(error)}") from error


def select_checks(checks: Sequence[int] | None) -> list[Check]:
    """The checks of these numbers, in their order; None: all. ValueError for a number that is none of them."""
    every = [entry.number for entry in CHECKS]
    wanted = every if checks is None else _whole_numbers("checks", checks)
    unknown = [number for number in wanted if number not in every]
    if unknown or not wanted:
        raise ValueError(f"checks must be of {', '.join(map(str, every))}, got {unknown[0] if unknown else 'none'}")
    return [entry for entry in CHECKS if entry.number in wanted]


def _whole_numbers(name: str, values: object) -> list[int]:
    each = isinstance(values, Sequence) and all(isinstance(n, Integral) and not isinstance(n, bool) for n in values)
    if not each:
        raise ValueError(f"{name} must be a list or tuple of whole numbers, got {shown(values)}")
    return [int(value) for value in values]  # type: ignore[attr-defined]


def _result(entry: Check, plan: TrialPlan, name: str, seconds: float) -> Result:
    begun = time.monotonic()
    trials = []
    for index, trial in enumerate(entry.trials):
        # Most trials are quick, so one may take up to a quarter of the time left.
        share = (begun + seconds - time.monotonic()) / min(len(entry.trials) - index, 4)
        trials.append(_trial(entry, trial, plan, name, time.monotonic() + share))
    return Result(entry, tuple(trials), time.monotonic() - begun)


def _trial(entry: Check, trial: Trial, plan: TrialPlan, name: str, until: float) -> TrialResult:
    done, reasons, again = 0, [], False
    found: list[tuple[Case, Outcome]] = []  # each smaller than the one before it
    watch.record_stage(
        f"{name}: {entry.number}. {entry.name}, {trial.name}",
        max(until - time.monotonic(), 0) + SECONDS_OF_GRACE + SECONDS_UNTIL_KILL,
    )
    try:
        with without_warnings(), _time_limit(until):
            for case in trial.cases(plan, **trial.kind):
                if time.monotonic() > until:
                    return TrialResult(trial.name, UNFINISHED, done, f"the time was up after {done} cases")
                try:
                    case, outcome = _run_case(trial, plan, case)
                except NotApplicableError as error:
                    reasons.append(str(error))
                    continue
                again = not (outcome.ok or outcome.finite) and plan.subject.dtype == torch.float64
                if again:
                    break
                if not outcome.ok and (reason := unclaimed_limit(plan.subject, case, outcome)):
                    reasons.append(reason)
                    continue
                if not outcome.ok:
                    stop = time.monotonic() + max(until - time.monotonic(), 0) * SHRINK_SHARE
                    found.append((case, outcome))
                    _shrink_finding(trial, plan, found, stop)
                    break
                done += 1
    except NotApplicableError as error:
        reasons.append(str(error))
    except _TimeIsUp:
        if not found:  # what was found stays found
            return TrialResult(trial.name, UNFINISHED, done, f"the time was up within case {done + 1}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plan runs the subject too, to measure its rounding
        if found and isinstance(error, Exception):
            raise
        if not found:
            if isinstance(error, Exception):  # what pytest.skip raises is none, and the subject may raise it again
                with without_warnings():
                    reason = unclaimed_limit(
                        plan.subject, LONGEST_PLAN_CASE, Outcome(False, AN_ANSWER, describe_error(error))
                    )
                if reason:
                    return TrialResult(trial.name, NOT_APPLICABLE, 0, reason)
            code = getattr(plan.subject.call, "__code__", None)
            own = any(frame.f_code is code for frame, _ in walk_tb(error.__traceback__))
            reason = f"the cases could not be made: {'your call raised ' if own else ''}{describe_error(error)}"
            return TrialResult(trial.name, UNFINISHED, done, reason)
    if again:  # in float64, a mask of the lowest float32 number may become -inf when it is cast
        single = replace(plan, subject=replace(plan.subject, dtype=torch.float32))
        return replace(_trial(entry, trial, single, name, until), note=FLOAT32_NOTE)
    if found:  # the script is made after the alarm, which would stop it halfway
        return TrialResult(trial.name, FINDING, done + 1, "", _finding(entry, trial, plan, name, *found[-1]))
    if done:
        return TrialResult(trial.name, PASSED, done)
    why = "; ".join(dict.fromkeys(reasons)) or "nothing to do: there is no case of it"
    return TrialResult(trial.name, NOT_APPLICABLE, 0, why)


def _run_case(trial: Trial, plan: TrialPlan, case: Case) -> tuple[Case, Outcome]:
    """The case, with the values that the oracle adds to it, and its outcome."""
    if trial.oracle is not None:
        case = Case(case.batch, {**case.values, **trial.oracle(plan.subject, case.batch, **case.values)})
    return case, outcome_of(trial.function, plan.subject, case.batch, **case.values)


def _shrink_finding(trial: Trial, plan: TrialPlan, found: list[tuple[Case, Outcome]], until: float) -> None:
    """Appends smaller and smaller cases that show the same finding."""
    case, first = found[-1]

    def shows(smaller: Batch) -> bool:
        try:
            tried, outcome = _run_case(trial, plan, Case(smaller, case.values))
        except NotApplicableError:
            return False
        if outcome.ok or _difference_kind(outcome) != _difference_kind(first):
            return False
        found.append((tried, outcome))
        return True

    shrink(case.batch, shows, is_finished=lambda: time.monotonic() > until)


def _finding(entry: Check, trial: Trial, plan: TrialPlan, name: str, case: Case, found: Outcome) -> Finding:
    heading = [f"{name}: check {entry.number}, {entry.name}, {trial.name}", entry.rule]
    heading += [f"What to do: {remedy}"] if (remedy := entry.remedy_of(trial)) else []
    with without_warnings():
        script_text = script(plan.subject, trial, case, "\n".join(heading), entry.script_of(trial.name))
    return Finding(found.expected, found.actual, case.batch, dict(case.values), script_text)


def _difference_kind(outcome: Outcome) -> str:
    """What must stay the same while a finding is shrunk: whether it is an error, and its message without numbers."""
    return re.sub(r"\d+", "0", outcome.actual) if outcome.expected == AN_ANSWER else "a difference"


class _TimeIsUp(BaseException):
    """Raised at the time limit. It is no Exception, so that the subject does not catch it by mistake."""


@contextlib.contextmanager
def _time_limit(until: float) -> Iterator[None]:
    """Raises `_TimeIsUp` soon after ``until``, and again if the subject continues; outside the main thread, where
    signals do not work, it does nothing. A timer of the caller continues afterwards with the rest of its time."""
    reaches = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if not reaches or signal.getsignal(signal.SIGALRM) is None:  # None: it was not set from Python, and cannot be again
        yield
        return

    def ring(number: int, frame: object) -> None:
        raise _TimeIsUp

    rest, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    begun = time.monotonic()
    before = signal.signal(signal.SIGALRM, ring)
    try:
        try:
            after = max(until - begun, 0.0) + SECONDS_OF_GRACE
            signal.setitimer(signal.ITIMER_REAL, min(after, threading.TIMEOUT_MAX), SECONDS_BETWEEN_INTERRUPTS)
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:  # twice, since the alarm may ring just before the first
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if rest:
            left = rest - (time.monotonic() - begun)
            signal.setitimer(signal.ITIMER_REAL, max(left, 1e-6), interval)  # at once if its time is over


NEAR_POSITION = 4  # a position that every subject has
# The errors of a table that is read past its end, or cut to fewer rows than there are tokens; or errors raised on
# purpose. Any error class that is not built in counts too.
PAST_THE_END = r"""(?xs) (IndexError|ValueError|AssertionError)\b
    | RuntimeError: .* (size\ of\ tensor | expanded\ size | must\ match) | .* line\ \d+:\ raise\b"""


def unclaimed_limit(subject: Subject, case: Case, outcome: Outcome) -> str:
    """What to claim if plain rows that reach as far, or further, fail alike, and near 0 do not; else ""."""
    kind = outcome.actual.partition(":")[0]
    error = re.match(PAST_THE_END, outcome.actual) or not hasattr(builtins, kind)
    if subject.max_positions is not None or outcome.expected != AN_ANSWER or not error:
        return ""
    # A trial may move the batch by one of its values.
    reach = max([case.batch.tokens - 1, *_numbers(case.batch.positions), *_numbers(case.values)])
    if reach <= NEAR_POSITION:
        return ""
    given = case.batch.positions is not None
    farther = (reach, reach + 1, 2 * reach + 1)
    ends = _error_kind(subject, NEAR_POSITION, given) == "" and all(
        _error_kind(subject, p, given) == kind for p in farther
    )
    return f"claim max_positions, for there are positions that it lacks: {outcome.actual}" if ends else ""


def _error_kind(subject: Subject, position: int, given: bool) -> str:
    """The kind of error raised by a plain row whose last token is at this position, which is ``given`` or an index."""
    try:
        if given:
            subject.run(subject.make(), Batch([[1, 2]], positions=[[subject.at(0), subject.at(position)]]))
        else:
            subject.run(subject.make(), Batch([[1] * (position + 1)]))
    except NotApplicableError:
        return "it cannot be given such a row"
    except (Exception, SystemExit) as error:
        return describe_error(error).partition(":")[0]
    return ""


def _numbers(value: Any) -> Iterator[int]:
    """All whole numbers in a value."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(part)
