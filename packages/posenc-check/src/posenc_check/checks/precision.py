"""Checks that low precision keeps positions exact far away (check 1), and neighbours apart (check 2)."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from posenc_check.checks.rotations import (
    claimed,
    fastest,
    first_axis,
    in_low_precision,
    matrices,
    of_two_tokens,
    rotate_vectors,
    row_of,
    sides,
    unit,
    with_weights_in,
)
from posenc_check.outcome import OUTPUT, Outcome, Outcomes, largest, near
from posenc_check.subjects import Batch, Bias, Rotary, Subject, applies, must_show, require
from posenc_check.trial import AT_0_ALONE, FAR, Case, Check, Trial, TrialPlan

EARLY, LATE = 64, 257  # rows of a text before anything is lost, and from where bfloat16 has lost the odd ones


def angles_are_exact(subject: Rotary, batch: Batch, dtype: torch.dtype, autocast: torch.dtype | None) -> Outcomes:
    """The rotation of each basis vector in low precision, against the claimed frequencies in float64.

    Without a claim: against R(0) (R(0)' R(1))^p, both from the module in float64 in the same call, so that a schedule
    that depends on the length sees the same, and positions may count from 1. Where a call takes one position at a time:
    against the module itself in float64.
    """
    first = [subject.at(0), subject.at(1)]
    positions = [*first, *row_of(batch)]
    low = torch.finfo(autocast or dtype)
    made = with_weights_in(subject, dtype)
    for name, which in sides(subject):
        exact = matrices(subject, made, positions, which)
        lengths = exact.double().norm(dim=-2)
        exact = unit(exact)
        start, step = exact[0], exact[0].mT @ exact[1]
        turn = float((step - torch.eye(subject.head_dim, device=exact.device)).abs().max())
        require(not turn < 2**-23, "let it turn something: position 1 turns nothing")
        expected = claimed(subject, positions, exact)
        if expected is not None and largest(expected[1] - exact[1]) > 4 * torch.finfo(torch.bfloat16).eps:
            expected = None  # another base or layout, which is no matter of precision, and other checks report
        if expected is None and subject.takes("positions"):
            expected = torch.stack([start @ torch.linalg.matrix_power(step, first_axis(p)) for p in positions])
        actual = unit(in_low_precision(subject, dtype, autocast, matrices, positions, which))
        for n, p in enumerate(positions):
            if n < len(first):
                continue  # the batch says what is compared
            if float(lengths[n].max()) > low.max or float(lengths[n].min()) < low.tiny:
                continue  # the dtype cannot represent such lengths, or only with few digits
            # A phase p theta in float32 takes some four roundings of up to a unit (the exponent, the power, its
            # reciprocal, the product), each worth p theta 2^-23 at most. Then cos and sin are rounded to the dtype, and
            # so is what they are multiplied with and added up to: four times half a unit.
            tolerance = 4 * 2**-23 * first_axis(p) * fastest(subject) + 2 * subject.eps(autocast or dtype)
            given = (exact if expected is None else expected)[n], actual[n], tolerance
            yield (
                f"{name} at {p}",
                explain_rounding(*given, autocast or dtype, "angle", first_axis(p) * fastest(subject)),
            )


def explain_rounding(
    expected: Tensor, actual: Tensor, tolerance: float, low: torch.dtype, what: str, size: float
) -> Outcome:
    """`near`; where it is off by what a number of this size loses in the low dtype, or not much more, it says so."""
    outcome = near(expected, actual, tolerance, OUTPUT if what == "position" else ())
    lost = size * torch.finfo(low).eps / 2
    said = f"in {low} the {what} {size:.4g} is off by up to {lost:.2g}, in float32 by {size * 2**-24:.2g}"
    if outcome.ok or not largest(actual.double() - expected.double()) <= 16 * lost:
        return outcome
    return outcome._replace(actual=f"{outcome.actual}; {said}: compute it in float32")


def outputs(subject: Subject, made: Any, batch: Batch, tokens: slice = slice(None)) -> Tensor:
    """The outputs of these tokens; for a bias, their biases for the tokens that they see."""
    if not isinstance(subject, Bias):
        return subject.run(made, batch).detach()[:, tokens]
    places, seen = subject.places(batch), subject.visible(batch)[:, None]
    bias = subject.bias(made, places, places)
    return bias.detach().masked_fill(~seen | bias.isneginf(), 0.0).transpose(1, 2)[:, tokens]


def far_as_exact_as_near(
    subject: Subject, batch: Batch, dtype: torch.dtype, autocast: torch.dtype | None, effect: float | None
) -> Outcome:
    """The error of low precision far from 0, or late in a row, against that near 0, or early, absolute or relative.

    Both are the largest of many roundings of the same kind; such a pair seldom differs by a factor of two, so four is
    allowed, and at least four units of the dtype. ``effect`` is what positions do to the outputs; None stands for the
    whole of them. The exact numbers are those of float64, or else of float32: in the two, a logarithm close to a whole
    number may fall into different buckets.
    """
    places: Any = ((batch, slice(None, EARLY)), (batch, slice(LATE, None)))
    flat = [first_axis(p) for p in row_of(batch)] if batch.positions else [*range(batch.tokens)]
    if batch.positions:
        applies(min(flat), "the tokens begin at 0")
        places = ((batch.shifted(-min(flat)),), (batch,))
    applies(batch.positions or batch.tokens > LATE, f"no token is at {LATE} or later")
    first, second = (in_low_precision(subject, dtype, autocast, outputs, *place) for place in places)
    low, outcome = autocast or dtype, Outcome(True, "", "")
    for reference in (subject, replace(subject, dtype=torch.float32)):
        made = with_weights_in(reference, dtype)
        exact_first, exact_second = (outputs(reference, made, *place) for place in places)
        size_first, size_second = float(exact_first.abs().max()), float(exact_second.abs().max())
        error = float((first.double() - exact_first.double()).abs().max())
        of_positions = size_second if effect is None else effect
        rounding = max(error, error / max(size_first, 1e-30) * size_second, torch.finfo(low).eps * size_second)
        # A phase, or a product with a slope, that is rounded to float32 may be off by as much as p units of 2^-23.
        tolerance = 4 * rounding + 4 * 2**-23 * max(flat) * of_positions
        outcome = explain_rounding(exact_second, second, tolerance, low, "position", max(flat))
        hidden = f"rounding to {second.dtype} ({tolerance:.2g}) hides what positions do ({of_positions:.2g})"
        must_show(subject, not outcome.ok or tolerance <= of_positions / 2, hidden)
        if outcome.ok:
            break
    return outcome


def neighbours(rows: list[tuple[Any, Tensor]], step: list[int]) -> Outcome:
    """Whether no two positions that are a step apart give the same bits."""
    compared = 0
    for (p, first), (q, second) in pairwise(rows):
        a, b = (place if isinstance(place, list) else [place] for place in (p, q))
        if [y - x for x, y in zip(a, b, strict=True)] != step:
            continue
        compared += 1
        if torch.equal(first, second):
            return Outcome(False, f"something else at {q} than at {p}", "the same, to the bit")
    applies(compared, "no two positions are neighbours")
    return Outcome(True, "no two alike", "no two alike")


def rotations_differ(subject: Rotary, batch: Batch, dtype: torch.dtype, autocast: torch.dtype | None) -> Outcomes:
    """One vector, rotated to neighbouring positions, gives different numbers."""
    positions, step = row_of(batch), [1] * subject.axes
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(1, subject.head_dim, generator=generator, dtype=torch.float64).to(subject.device)
    for name, which in sides(subject):
        if subject.distinct_to is None:
            # A step rotates by the same angle everywhere. If that is less than two units of the dtype, it cannot show;
            # if it is zero, it is a finding.
            first = [subject.at(p) for p in range(min(4, subject.max_positions or 4))]
            exact = rotate_vectors(subject, subject.make(), vector.to(subject.dtype), first, which)[0]
            seen = float(exact.diff(dim=1).abs().max()) / float(exact.abs().max())
            hidden = 0 < seen < 4 * subject.eps(autocast or dtype)
            require(not hidden, f"claim `distinct_to=N`, for one step turns less than {autocast or dtype} can tell")
        actual = in_low_precision(subject, dtype, autocast, rotate_vectors, vector.to(dtype), positions, which)[0]
        outcome = neighbours(list(zip(positions, actual.unbind(1), strict=True)), step)
        yield name, outcome
        if not outcome.ok:
            break


def last_row(subject: Bias, made: Any, distances: list[int]) -> Tensor:
    """The bias of a query for keys at these distances before it: (heads, distances)."""
    last = max(distances)
    if subject.can("positions"):
        query = torch.tensor([[last]], device=subject.device)
        return subject.bias(made, query, last - torch.tensor([distances], device=subject.device))[0, :, 0]
    line = torch.arange(last + 1, device=subject.device)[None]
    return subject.bias(made, line[:, -1:], line)[0, :, 0].flip(-1)[:, distances]


def biases_differ(subject: Bias, batch: Batch, dtype: torch.dtype, autocast: torch.dtype | None) -> Outcome:
    """The biases of a query for neighbouring keys differ; the positions of the batch are distances."""
    actual = in_low_precision(subject, dtype, autocast, last_row, row_of(batch))
    return neighbours(list(zip(row_of(batch), actual.unbind(-1), strict=True)), [1])


def outputs_differ(subject: Subject, batch: Batch, dtype: torch.dtype, autocast: torch.dtype | None) -> Outcome:
    """Rows of two tokens give different outputs, where the second moves on by one from row to row."""
    applies(of_two_tokens(batch), "the rows are not of the same two tokens")
    actual = in_low_precision(subject, dtype, autocast, type(subject).run, batch)
    places = [row[-1] for row in batch.positions]
    return neighbours(list(zip(places, actual.unbind(0), strict=True)), [1] * subject.axes)


# -- cases -------------------------------------------------------------------------------------------------------------


AT = (0, 1, 255, 256, 257, 2047, 2049, 65535, FAR - 1)  # bfloat16 holds every integer up to 256, float16 up to 2048
END = 2**16  # how far outputs are followed: phases in float32 move them by a thirtieth of all there is of position


def _outputs_in(plan: TrialPlan) -> Iterator[dict[str, Any]]:
    """A low dtype and autocast, each by itself."""
    for values in plan.precisions():
        if values["autocast"] is None or values["dtype"] == torch.float32:
            yield {**values, "effect": None if isinstance(plan.subject, Bias) else plan.effect}


def _of_rotations(plan: TrialPlan) -> Iterator[Case]:
    applies(isinstance(plan.subject, Rotary), "a rotation alone has angles")
    end = plan.reach
    require(end > 1, AT_0_ALONE)
    at = sorted({p for p in AT if p < end} | {end - 1})
    for values in plan.precisions():
        yield Case(plan.row(at), values)


def _far(plan: TrialPlan) -> Iterator[Case]:
    applies(not isinstance(plan.subject, Rotary), "of a rotation the angles are measured")
    plan.require_that_it_can("positions")
    tokens, end = plan.sizes[-1], min(plan.reach, END)
    applies(end > LATE, f"positions end at {end}, where low precision holds them all")
    # One row ends at the first position that bfloat16 lacks, one at the last.
    for start in sorted({LATE + 1 - tokens, end - tokens}):
        for values in _outputs_in(plan):
            if start > 0:
                yield Case(plan.line(1, tokens, start), values)


def _late(plan: TrialPlan) -> Iterator[Case]:
    applies(not isinstance(plan.subject, Rotary), "of a rotation the angles are measured")
    applies(not plan.subject.can("positions"), "call takes positions, so that far ones can be given")
    applies(plan.limit >= 300, f"rows end at {plan.limit}, where low precision holds most positions")
    for values in _outputs_in(plan):
        yield Case(plan.text(1, min(plan.limit, 2 * LATE)), values)


ALL_TO = 1024  # all positions below it are tried; then those near powers of two, where the spacing of floats doubles


def _windows(end: int) -> list[int]:
    """Positions below ``end``: the first, and those around every power of two and at the end."""
    around = [2**n for n in range(2, 64) if 2**n < end] + [end]
    chosen = set(range(min(end, ALL_TO)))
    chosen.update(p for middle in around for p in range(max(middle - 8, 0), min(middle + 8, end)))
    return sorted(chosen)


def _distinct_of_rotations(plan: TrialPlan) -> Iterator[Case]:
    applies(isinstance(plan.subject, Rotary), "a rotation alone can be seen by itself")
    end = min(plan.subject.distinct_to or FAR, plan.reach)
    require(end > 1, AT_0_ALONE)
    for values in plan.precisions():
        yield Case(plan.row(_windows(end)), values)


def _claimed(plan: TrialPlan) -> int:
    require(plan.subject.distinct_to, "claim `distinct_to=N`, up to where no two neighbours look the same")
    return min(plan.subject.distinct_to or 0, plan.reach)


def _of_biases(plan: TrialPlan) -> Iterator[Case]:
    applies(isinstance(plan.subject, Bias), "a bias alone has distances")
    end = _claimed(plan)
    applies(plan.subject.axes == 1, "distances on several axes are no line")
    for values in plan.precisions():
        yield Case(plan.row(_windows(end)), values)


def _of_outputs(plan: TrialPlan) -> Iterator[Case]:
    own = isinstance(plan.subject, Bias | Rotary)
    applies(not own, "it is compared by itself, not by what it does to outputs")
    end = _claimed(plan)
    plan.require_that_it_can("positions")
    places = [p for p in _windows(end) if p < 64 or p > ALL_TO or any(abs(p - 2**n) < 4 for n in range(11))]
    rows = [[plan.subject.at(0), plan.subject.at(p)] for p in places]
    for values in plan.precisions():
        yield Case(Batch([[1, 2]] * len(rows), positions=rows), values)


PHASE_CHECK = Check(
    number=1,
    name="phase",
    rule="In bfloat16, float16 and under autocast, large positions are as precise as small ones.",
    why="bfloat16 cannot represent odd integers above 256: positions or phases in it make neighbours equal.",
    pains=(1,),
    remedy="Compute positions, phases, sines and cosines in float32, with autocast switched off, from integer "
    "positions; cast the result.",
    trials=(
        Trial("angles", angles_are_exact, _of_rotations),
        Trial("far positions", far_as_exact_as_near, _far),
        Trial("late tokens", far_as_exact_as_near, _late),
    ),
)

DISTINCT_CHECK = Check(
    number=2,
    name="distinct",
    rule="In low precision, adjacent positions stay distinct, up to the last.",
    why="If two positions have the same bits, the order of their tokens is lost without an error.",
    pains=(1,),
    remedy="Compute phases and distances in float32, with autocast switched off, from integer positions.",
    trials=(
        Trial("rotations", rotations_differ, _distinct_of_rotations, claims=("distinct_to",)),
        Trial("biases", biases_differ, _of_biases, claims=("distinct_to",)),
        Trial("outputs", outputs_differ, _of_outputs, claims=("distinct_to",)),
    ),
)
