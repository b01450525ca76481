"""Checks what shifting all positions changes (check 6)."""

from collections.abc import Iterator
from dataclasses import replace

from posenc_check.outcome import OUTPUT, Outcome, near
from posenc_check.subjects import Batch, Bias, Rotary, Subject, applies, must_show, require
from posenc_check.trial import Case, Check, Trial, TrialPlan

GROWS = 16  # how much faster than the amount a rounding of phases may grow, by chance


def moving_all_changes_nothing(subject: Subject, batch: Batch, by: int, tolerance: float) -> Outcome:
    """The outputs at positions p and p + by are the same, and moving only some of the tokens changes them."""
    expected = subject.run(subject.make(), batch)
    outcome = near(expected, subject.run(subject.make(), batch.shifted(by)), tolerance, OUTPUT)
    if outcome.ok and not subject.order_free and subject.can("positions") and batch.positions is not None:
        away = batch.shifted(1).positions or []  # by no more, since distances may have an end
        apart = Batch(batch.ids, [kept[:1] + row[1:] for kept, row in zip(batch.positions, away, strict=True)])
        seen = not near(expected, subject.run(subject.make(), apart), tolerance).ok
        must_show(subject, seen, "its outputs do not go by positions: moving all but the first by 1 changes nothing")
    return outcome


def moving_some_changes_something(subject: Subject, batch: Batch, by: list[int], tolerances: list[float]) -> Outcome:
    """Moving half of the tokens, or one onto the token before it, changes the outputs, perhaps only with jitter."""
    half = batch.tokens // 2
    applies(half, "there is one token, and moving it moves all")
    rows = batch.positions or []
    away = [batch.shifted(n).positions or [] for n in by]
    moved = [[row[:half] + far[half:] for row, far in zip(rows, there, strict=True)] for there in away]
    moved.append([row[:half] + row[half - 1 : half] + row[half + 1 :] for row in rows])
    for jitter in (subject.jitter, max(subject.jitter, 0.5)):
        tried = replace(subject, jitter=jitter)
        expected = tried.run(tried.make(), batch)
        for positions, tolerance in zip(moved, (*tolerances, tolerances[0]), strict=True):
            actual = tried.run(tried.make(), replace(batch, positions=positions))
            if not near(expected, actual, tolerance).ok:
                return Outcome(True, "a change", "a change")
    return Outcome(
        False,
        "outputs that change when some of the tokens are moved to other positions, away from the rest",
        "the same: the positions that it is given change nothing. If that is meant, claim order_free=True",
    )


def moving_all_changes_something(subject: Subject, batch: Batch, by: list[int], tolerances: list[float]) -> Outcome:
    """The outputs at p and p + by differ by more than rounding, for one amount at least, perhaps with jitter."""
    several = all(len(set(row)) > 1 for row in batch.ids)
    applies(several, "attention to one and the same token gives the same from everywhere")
    changes: list[float] = []
    for amount, most in zip(by, tolerances, strict=True):  # further only if needed, since positions may have an end
        change = _change(subject, batch, amount)
        if isinstance(change, Outcome):
            return change
        grown = [GROWS * earlier * amount / n for n, earlier in zip(by, changes, strict=False)]
        most = min(most, max(tolerances[0], *grown)) if grown else most
        changes.append(change)
        if change > most:
            return Outcome(True, "a change", "a change")
        if not subject.jitter and amount == by[0]:
            moved = _change(replace(subject, jitter=0.1), batch, amount)
            if not isinstance(moved, Outcome) and moved > 100 * most:  # which is no rounding of larger outputs
                return Outcome(True, "a change", "a change")
    sizes = ", ".join(f"{c:.2g} ({most:.2g})" for c, most in zip(changes, tolerances, strict=True))
    return Outcome(
        False,
        f"outputs that change when all positions are moved by {' or '.join(map(str, by))}",
        f"outputs that change by no more than rounding does (in brackets): {sizes}",
    )


def _change(subject: Subject, batch: Batch, by: int) -> float | Outcome:
    """How far the outputs move; or what is wrong with them."""
    expected, actual = (subject.run(subject.make(), there) for there in (batch, batch.shifted(by)))
    if actual.shape != expected.shape or not actual.isfinite().all():
        return near(expected, actual, 0.0)
    return float((actual - expected).abs().max())


# -- cases -------------------------------------------------------------------------------------------------------------


UNUSED = "Compute from the positions that call is given, not from the index."
ABSOLUTE = "Look positions up as they are given, or claim `relative=True`, if this is what it is to be."
SHIFTS = (1, 1000, 100_000)
AWAY = (1, 7, 300, 100_000)


def _require(plan: TrialPlan, claim: str) -> None:
    subject, other = plan.subject, "absolute" if claim == "relative" else "relative"
    what = "changes nothing" if claim == "relative" else "changes outputs"
    require(subject.relative is not None, f"claim `relative={claim == 'relative'}` if moving all positions {what}")
    applies(subject.relative == (claim == "relative"), f"it claims to be {other}")
    require(subject.can("positions") or subject.takes("offset"), plan.lacks("positions"))


def _relative(plan: TrialPlan) -> Iterator[Case]:
    _require(plan, "relative")
    for by in SHIFTS:
        for tokens in plan.sizes:
            if plan.has(highest := tokens - 1 + by):
                yield Case(plan.line(2, tokens), {"by": by, "tolerance": plan.tolerance(highest)})


def _some(plan: TrialPlan) -> Iterator[Case]:
    subject = plan.subject
    require(subject.can("positions"), plan.lacks("positions"))
    applies(not subject.order_free, "it claims to be `order_free`")
    for tokens in plan.sizes_above(3):
        by = [n for n in _beyond(AWAY, subject) if plan.has(tokens - 1 + n)]
        if by:
            tolerances = [plan.rounding(tokens - 1 + n) for n in by]
            # If all tokens are the same to it, or a bias begins as zeros, nothing could show.
            given = isinstance(subject, Rotary | Bias) or plan.effect > plan.tolerance(tokens - 1 + by[0])
            applies(given, "outputs do not go by the order of the tokens either")
            yield Case(plan.line(2, tokens), {"by": by, "tolerances": tolerances})
            return


def _beyond(amounts: tuple[int, ...], subject: Subject) -> list[int]:
    """These amounts, and one that leads well beyond the subject's threshold, from which on something may count."""
    return sorted({*amounts, 2 * (subject.threshold or 0) or amounts[0]})


def _absolute(plan: TrialPlan) -> Iterator[Case]:
    _require(plan, "absolute")
    subject = plan.subject
    for tokens in plan.sizes_above(1):
        by = [c for c in _beyond(SHIFTS, subject) if plan.has(tokens - 1 + c)]
        if by:
            tolerances = [plan.rounding(tokens - 1 + c) for c in by]
            yield Case(plan.line(2, tokens), {"by": by, "tolerances": tolerances})


CHECK = Check(
    number=6,
    name="shift",
    rule="Shifting all positions by the same amount changes nothing in relative schemes and something in absolute "
    "ones; shifting some of them changes something in both.",
    why="If a scheme claims to be relative and is not, the same text gives another result in a later chunk or behind "
    "padding.",
    pains=(1, 3),
    remedy="Compute scores from the difference of the positions that are given, never from the index or from the "
    "length.",
    trials=(
        Trial("relative", moving_all_changes_nothing, _relative, claims=("relative",)),
        Trial("absolute", moving_all_changes_something, _absolute, claims=("relative",), remedy=ABSOLUTE),
        Trial("some moved", moving_some_changes_something, _some, remedy=UNUSED),
    ),
)
