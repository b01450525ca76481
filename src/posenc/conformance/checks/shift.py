"""6. Shift: moving all positions by the same amount."""

from collections.abc import Iterator

from posenc.conformance.outcome import Outcome, near
from posenc.conformance.subjects import Batch, Subject, require
from posenc.conformance.trial import Case, Check, Plan, Trial


def moving_all_changes_nothing(subject: Subject, batch: Batch, by: int, tolerance: float) -> Outcome:
    """The outputs at positions p and at p + by; and, so that something was seen, that moving some of the tokens does
    change them."""
    expected = subject.run(subject.make(), batch)
    outcome = near(expected, subject.run(subject.make(), batch.moved(by)), tolerance)
    if outcome.ok and not subject.order_free and subject.can("positions") and batch.positions is not None:
        away = batch.moved(1).positions or []  # by no more: there may be an end to distances
        apart = Batch(batch.ids, [kept[:1] + row[1:] for kept, row in zip(batch.positions, away, strict=True)])
        seen = not near(expected, subject.run(subject.make(), apart), tolerance).ok
        require(
            seen,
            "give it a `jitter`, for its outputs do not go by positions: moving all but the first by 1 changes nothing",
        )
    return outcome


def moving_all_changes_something(subject: Subject, batch: Batch, by: list[int], tolerance: float) -> Outcome:
    """The outputs at positions p and at p + by: one of the amounts must change them by more than rounding does."""
    several = all(len(set(row)) > 1 for row in batch.ids)
    require(several, "nothing to do: attention to one and the same token gives the same from everywhere")
    expected = subject.run(subject.make(), batch)
    largest = 0.0
    for amount in by:
        came = subject.run(subject.make(), batch.moved(amount))
        if came.shape != expected.shape or not came.isfinite().all():
            return near(expected, came, tolerance)
        largest = max(largest, float((came - expected).abs().max()))
    amounts = " or ".join(str(amount) for amount in by)
    return Outcome(
        largest > tolerance,
        f"outputs that change when all positions are moved by {amounts}",
        f"outputs that change by {largest:.2g}, no more than rounding does ({tolerance:.2g})",
    )


# -- cases -------------------------------------------------------------------------------------------------------------

ABSOLUTE = "Look positions up as they are given, or claim `relative=True`, if this is what it is to be."
SHIFTS = (1, 1000, 100_000)


def _require(plan: Plan, claim: str) -> None:
    subject, other = plan.subject, "absolute" if claim == "relative" else "relative"
    what = "changes nothing" if claim == "relative" else "changes outputs"
    require(subject.relative is not None, f"claim `relative={claim == 'relative'}` if moving all positions {what}")
    require(subject.relative == (claim == "relative"), f"nothing to do: it claims to be {other}")
    require(subject.can("positions") or subject.takes("offset"), plan.lacks("positions"))


def _relative(plan: Plan) -> Iterator[Case]:
    _require(plan, "relative")
    for by in SHIFTS:
        for tokens in plan.sizes:
            if plan.has(highest := tokens - 1 + by):
                yield Case(plan.line(2, tokens), {"by": by, "tolerance": plan.tolerance(highest)})


def _absolute(plan: Plan) -> Iterator[Case]:
    _require(plan, "absolute")
    for tokens in plan.sizes_above(1):
        by = [c for c in SHIFTS if plan.has(tokens - 1 + c)]
        if by:
            yield Case(plan.line(2, tokens), {"by": by, "tolerance": plan.tolerance(tokens - 1 + by[-1])})


CHECK = Check(
    number=6,
    name="shift",
    rule="Moving all positions by the same amount changes nothing in relative schemes, and something in absolute ones.",
    why="What is called relative and is not answers a text by where it stands in the window: in a later chunk, behind "
    "padding, it is another text.",
    pains=(1, 3),
    remedy="Compute scores from the difference of the positions that are given, never from the index or from the "
    "length.",
    trials=(
        Trial("relative", moving_all_changes_nothing, _relative, claims=("relative",)),
        Trial("absolute", moving_all_changes_something, _absolute, claims=("relative",), remedy=ABSOLUTE),
    ),
)
