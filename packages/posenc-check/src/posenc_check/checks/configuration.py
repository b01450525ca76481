"""Checks that every option is used or refused, and frequencies are those configured (check 14)."""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posenc_check.checks.rotations import claimed, fastest, first_axis, matrices, row_of, sides, unit
from posenc_check.outcome import Outcome, Outcomes, near
from posenc_check.subjects import REFUSALS, Batch, Rotary, Subject, applies, require
from posenc_check.trial import AT_0_ALONE, Case, Check, Trial, TrialPlan, too_long


def rotations_are_as_claimed(subject: Rotary, batch: Batch) -> Outcomes:
    """The rotation of each basis vector, and its scale, against the claims."""
    positions, made = row_of(batch), subject.make()
    for name, which in sides(subject):
        actual = matrices(subject, made, positions, which).double()
        expected = claimed(subject, positions, unit(actual))
        assert expected is not None
        if subject.scale is None:
            actual = unit(actual)
        else:
            expected = expected.clone()
            expected[..., : subject.rotary_dim] *= subject.scale
        for n, p in enumerate(positions):
            # Four roundings of the phase to float32, each of p theta 2^-23, and four of the rotated numbers.
            phase = 4 * first_axis(p) * fastest(subject) * 2**-23
            tolerance = (phase + 2 * subject.eps(torch.float32)) * (subject.scale or 1.0)
            yield f"{name} at {p}", near(expected[n], actual[n], tolerance)


def names_in(given: Mapping[str, Any], usual: Mapping[str, Any]) -> list[str]:
    """The keys that are new or have another value than usual; for nested configurations, the inner keys."""
    found = []
    for name, value in given.items():
        if isinstance(value, Mapping) and isinstance(usual.get(name), Mapping):
            found += names_in(value, usual[name])
        elif name not in usual or usual[name] != value:
            found.append(name)
    return found


def refusal(subject: Subject, changed: dict[str, Any]) -> Outcome | None:
    """The outcome for the error that refuses these options; None: they are accepted."""
    try:
        subject.make(**changed)
    except Exception as error:
        names = names_in(changed, subject.options)
        named = any(re.search(rf"\b{re.escape(name)}\b", str(error)) for name in names)
        return Outcome(named, f"an error that names {' or '.join(names)}", f"{type(error).__name__}: {error}")
    return None


def it_is_refused(subject: Subject, batch: Batch, changed: dict[str, Any]) -> Outcome:
    """Building with options that must be refused raises an error that names them."""
    expected = f"an error that names {' or '.join(names_in(changed, subject.options))}"
    return refusal(subject, changed) or Outcome(False, expected, "none: it was built")


def an_option_counts(
    subject: Subject,
    batch: Batch,
    changed: dict[str, Any],
    starts: list[int],
    tokens: int,
    tolerance: float,
    longest: int = 0,
    unseen: str = "",
) -> Outcome:
    """Another value of an option changes the outputs, for a row at one of the starts at least, for one whose distances
    double, or for one of ``longest`` tokens; where positions have several axes, also for rows off the diagonal, on
    which all axes are the same. ``unseen``: why it may be that no row shows it."""
    shows = batch.tokens >= tokens and len(set(batch.ids[0])) > 1
    applies(shows, "a row so short or so plain may not show it")  # keeps shrinking from such rows
    if (found := refusal(subject, changed)) is not None:
        return found
    rows = [batch if start == 0 else _at_start(subject, batch, start) for start in starts]
    if subject.axes > 1 and subject.can("positions"):
        rows += [_at_start(subject, batch, start, off_the_diagonal=True) for start in starts]
    if subject.can("positions"):
        spread = [min(2**n - 1, starts[-1] + n) for n in range(batch.tokens)]
        rows.append(replace(batch, positions=[[subject.at(p) for p in spread]]))
    if longest > tokens:
        rows.append(Batch([[batch.ids[0][n % tokens] for n in range(longest)]]))
    if any(_tell_apart(subject, changed, here, tolerance) for here in rows):
        return Outcome(True, "another output", "another output")
    flat = subject.axes > 1 and not subject.can("positions")
    require(not flat, "give call positions: all its axes are the same here, where an option of one may not show")
    if not subject.jitter:
        hidden = not any(_tell_apart(replace(subject, jitter=0.1), changed, here, tolerance) for here in rows)
        require(hidden, "give it a `jitter`, such as 0.02, for parameters begin too small for the option to show")
    require(not unseen, unseen)
    said = "the same output as without" + (f", in rows of up to {longest} tokens" if longest else "")
    return Outcome(False, f"another output, or an error, with {changed}", said)


def _at_start(subject: Subject, batch: Batch, start: int, off_the_diagonal: bool = False) -> Batch:
    """The row at positions from ``start`` on; off the diagonal, patches in rows and columns follow a third of it."""
    line = [subject.at(start + n) for n in range(batch.tokens)]
    if off_the_diagonal:
        text = batch.tokens // 3
        front = [start + text] * (subject.axes - 2)
        line[text:] = [[*front, start + text + n // 5 % 3, start + text + n % 5] for n in range(batch.tokens - text)]
    return replace(batch, positions=[line])


def _tell_apart(subject: Subject, changed: dict[str, Any], batch: Batch, tolerance: float) -> bool:
    """Whether the changed option gives another output for this batch, or refuses it."""
    before = subject.run(subject.make(), batch)
    try:
        after = subject.run(subject.make(**changed), batch)
    except (IndexError, *REFUSALS):  # as of a position past a smaller end
        return True
    return before.shape != after.shape or not near(before, after, tolerance).ok


def builds_share_nothing(subject: Subject, batch: Batch, changed: dict[str, Any], tolerance: float) -> Outcomes:
    """The outputs are the same before and after another instance was built, and run, with another option."""
    applies(refusal(subject, changed) is None, f"{', '.join(changed)} is refused")
    made = subject.make()
    before: Tensor = subject.run(made, batch)
    subject.run(subject.make(**changed), batch)
    yield "the one that was there before", near(before, subject.run(made, batch), tolerance)
    yield "one built anew", near(before, subject.run(subject.make(), batch), tolerance)


# -- cases -------------------------------------------------------------------------------------------------------------

FREQUENCIES = "Compute base^(-2c/rotary_dim) in float32 or better from the options, with the scaling that they name."
REFUSED = "Check options where it is built, and raise a ValueError that names the one which cannot be."
SHARED = "Keep what follows from options on the one that was built with them, not on the class or in a file's globals."
GOLDEN = (1, 2, 17, 100, 1000, 10_000)
STARTS = (0, 4096, 100_000)  # the effect of an option may show only far away


def _golden(plan: TrialPlan) -> Iterator[Case]:
    subject = plan.subject
    applies(isinstance(subject, Rotary), "a rotation alone has frequencies")
    assert isinstance(subject, Rotary)
    possible = subject.frequencies is not None or subject.base is not None
    require(possible, "claim `base=10_000.0`, or `frequencies`, to run this")
    given = subject.can("positions") or subject.takes("offset")
    end = min(n for n in (subject.max_positions, subject.threshold, max(GOLDEN) + 1) if n is not None)
    at = [p for p in GOLDEN if p < (end if given else min(end, plan.limit))]
    require(at, AT_0_ALONE)
    yield Case(plan.row(at))


def _varied(plan: TrialPlan) -> Iterator[Case]:
    """For each option a row; a long one where positions cannot be given, as the effect may show only late."""
    require(plan.subject.varied, "name in `varied` another value of each option, to run this")
    for name, value in plan.subject.varied.items():
        batch = plan.text(1, plan.room(23 if plan.subject.can("positions") else 600))
        yield Case(batch, {"changed": {name: value}, "tolerance": plan.tolerance()})


def _counting(plan: TrialPlan) -> Iterator[Case]:
    subject = plan.subject
    for batch, values in _varied(plan):
        end = (subject.max_positions or max(STARTS) + batch.tokens) - batch.tokens
        starts = [p for p in STARTS if p <= end and (p == 0 or subject.can("positions"))]
        # The arithmetic is the same, so a change smaller than the rounding of float32 counts too.
        threshold = subject.threshold or 0
        longest = threshold + 1 if threshold else 0 if subject.can("positions") else plan.limit
        seen = longest <= plan.limit
        values = {**values, "starts": starts, "tokens": batch.tokens, "longest": plan.room(longest) if seen else 0}
        values["unseen"] = "" if seen else too_long(plan)
        yield Case(batch, {**values, "tolerance": plan.noise})


def refusals(plan: TrialPlan, known: bool) -> Iterator[Case]:
    """The options that are claimed to be refused: ``known`` ones with wrong values, or unknown ones."""
    subject = plan.subject
    words = f"name in `refused` {'values' if known else 'unknown options'} that build must refuse, to run this"
    require(subject.refused, words)
    has = {*subject.options, *inspect.signature(subject.build).parameters}
    given = [changed for changed in subject.refused if has.issuperset(names_in(changed, subject.options)) == known]
    require(given, words)
    for changed in given:
        yield Case(Batch([[0]]), {"changed": dict(changed)})


CHECK = Check(
    number=14,
    name="configuration",
    rule="Frequencies and lengths match the configuration; each option has an effect, and an unknown one is rejected.",
    why="If a key is misread or ignored, the model runs with wrong frequencies.",
    pains=(7,),
    remedy="Read each option where it is used, and raise a ValueError that names one which is unknown or has no "
    "meaning.",
    trials=(
        Trial(
            "frequencies",
            rotations_are_as_claimed,
            _golden,
            claims=("base", "frequencies", "rotary_dim", "scale"),
            remedy=FREQUENCIES,
        ),
        Trial("options count", an_option_counts, _counting, claims=("varied",)),
        Trial("unknown options", it_is_refused, refusals, {"known": False}, claims=("refused",), remedy=REFUSED),
        Trial("nothing is shared", builds_share_nothing, _varied, remedy=SHARED),
    ),
)
