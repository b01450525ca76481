"""Checks that low precision keeps positions as exact far away as near 0 (check 1)."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posenc.tools.check.heads import Bias, Rotary
from posenc.tools.check.measure import (
    claimed,
    fastest,
    first_axis,
    lowered,
    matrices,
    row_of,
    sides,
    unit,
    with_weights_in,
)
from posenc.tools.check.outcome import Outcome, Outcomes, near
from posenc.tools.check.subjects import Batch, Subject, require
from posenc.tools.check.trial import AT_0_ALONE, FAR, Case, Check, Plan, Trial

SHORT = 8  # tokens whose distances no scheme puts together
EARLY, LATE = 64, 257  # rows of a text before anything is lost, and from where bfloat16 has lost the odd ones


def angles_are_exact(subject: Rotary, batch: Batch, dtype: torch.dtype, autocast: torch.dtype | None) -> Outcomes:
    """The rotation of each basis vector in low precision, against the claimed frequencies in float64.

    Without a claim: against R(0) (R(0)' R(1))^p, both from the module in float64 in the same call, so that a schedule
    that depends on the length sees the same, and positions may count from 1. Where a call takes one position at a time:
    against the module itself in float64.
    """
    positions = [subject.at(0), subject.at(1), *row_of(batch)]
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
        if expected is None and subject.takes("positions"):
            expected = torch.stack([start @ torch.linalg.matrix_power(step, first_axis(p)) for p in positions])
        came = unit(lowered(subject, dtype, autocast, matrices, positions, which))
        for n, p in enumerate(positions):
            if float(lengths[n].max()) > low.max or float(lengths[n].min()) < low.tiny:
                continue  # the dtype cannot represent such lengths, or only with few digits
            # A phase p theta in float32 takes some four roundings of up to a unit (the exponent, the power, its
            # reciprocal, the product), each worth p theta 2^-23 at most. Then cos and sin are rounded to the dtype, and
            # so is what they are multiplied with and added up to: four times half a unit.
            tolerance = 4 * 2**-23 * first_axis(p) * fastest(subject) + 2 * subject.eps(autocast or dtype)
            outcome = near((exact if expected is None else expected)[n], came[n], tolerance)
            yield f"{name} at {p}", explained(outcome, autocast or dtype, "angle", first_axis(p) * fastest(subject))


def explained(outcome: Outcome, low: torch.dtype, what: str, size: float) -> Outcome:
    """The outcome; of one that does not hold, with what a number of this size loses in the low dtype."""
    lost = size * torch.finfo(low).eps / 2
    said = f"in {low} the {what} {size:.4g} is off by up to {lost:.2g}, in float32 by {size * 2**-24:.2g}"
    return outcome if outcome.ok else outcome._replace(came=f"{outcome.came}; {said}: compute it in float32")


def outputs(subject: Subject, made: Any, batch: Batch, tokens: slice = slice(None)) -> Tensor:
    """The outputs of these tokens; for a bias, their biases for the tokens that they see."""
    if not isinstance(subject, Bias):
        return subject.run(made, batch).detach()[:, tokens]
    places, seen = subject.places(batch), subject.visible(batch)[:, None]
    bias = subject.bias(made, places, places)
    return bias.detach().masked_fill(~seen | bias.isneginf(), 0.0).transpose(1, 2)[:, tokens]


def from_a_distance(subject: Bias, made: Any, batch: Batch) -> Tensor:
    """The biases of the last token of a batch for the others: (rows, heads, 1, keys)."""
    places = subject.places(batch)
    bias = subject.bias(made, places[:, -1:], places[:, :-1])
    return bias.detach().masked_fill(bias.isneginf(), 0.0)


def far_as_exact_as_near(
    subject: Subject, batch: Batch, dtype: torch.dtype, autocast: torch.dtype | None, effect: float | None
) -> Outcome:
    """The error of low precision far from 0, against its error for the same tokens at 0, 1, 2, … ."""
    flat = [first_axis(p) for p in row_of(batch)]
    require(min(flat), "nothing to do: the tokens begin at 0")
    places = ((batch.moved(-min(flat)),), (batch,))
    return _compared(subject, places, outputs, dtype, autocast, effect, max(flat))


def long_as_exact_as_short(
    subject: Bias, batch: Batch, dtype: torch.dtype, autocast: torch.dtype | None, effect: float | None
) -> Outcome:
    """The error of low precision over long distances, against its error over the shortest ones."""
    last = first_axis(row_of(batch)[-1])
    low = autocast or dtype
    require(last <= torch.finfo(low).max, f"nothing to do: {low} has no numbers like the distance {last}")
    short = Batch([[0] * SHORT], positions=[[subject.at(p) for p in range(SHORT)]])
    return _compared(subject, ((short,), (batch,)), from_a_distance, dtype, autocast, effect, last)


def late_as_exact_as_early(
    subject: Subject, batch: Batch, dtype: torch.dtype, autocast: torch.dtype | None, effect: float | None
) -> Outcome:
    """The error of low precision for the late tokens of a row, against its error for the early ones."""
    require(batch.tokens > LATE, f"nothing to do: no token is at {LATE} or later")
    places = ((batch, slice(None, EARLY)), (batch, slice(LATE, None)))
    return _compared(subject, places, outputs, dtype, autocast, effect, batch.tokens)


def _compared(
    subject: Subject,
    places: tuple[tuple[Any, ...], tuple[Any, ...]],
    measure: Callable[..., Tensor],
    dtype: torch.dtype,
    autocast: torch.dtype | None,
    effect: float | None,
    highest: int,
) -> Outcome:
    """Whether the error at the second of two places is as small as at the first, absolutely or relatively.

    Both errors are the largest of many roundings of the same kind; such a pair seldom differs by a factor of two, so
    four is allowed, and at least four units of the dtype. ``effect`` is what positions do to the outputs; None stands
    for the whole of the outputs. The exact numbers are those of float64, or else of float32: in the two, a logarithm
    close to a whole number may fall into different buckets.
    """
    first, second = (lowered(subject, dtype, autocast, measure, *place) for place in places)
    outcome = Outcome(True, "", "")
    for reference in (subject, replace(subject, dtype=torch.float32)):
        made = with_weights_in(reference, dtype)
        exact_first, exact_second = (measure(reference, made, *place) for place in places)
        size_first, size_second = float(exact_first.abs().max()), float(exact_second.abs().max())
        error = float((first.double() - exact_first.double()).abs().max())
        of_positions = size_second if effect is None else effect
        rounding = max(
            error, error / max(size_first, 1e-30) * size_second, torch.finfo(autocast or dtype).eps * size_second
        )
        # A phase, or a product with a slope, that is rounded to float32 may be off by as much as p units of 2^-23.
        tolerance = 4 * rounding + 4 * 2**-23 * highest * of_positions
        outcome = explained(near(exact_second, second, tolerance), autocast or dtype, "position", highest)
        hidden = (
            f"give it a `jitter`: rounding to {second.dtype} ({tolerance:.2g}) hides what positions do "
            f"({of_positions:.2g})"
        )
        require(not (outcome.ok and tolerance > of_positions / 2), hidden)
        if outcome.ok:
            break
    return outcome


# -- cases -------------------------------------------------------------------------------------------------------------

AT = (0, 255, 256, 257, 2047, 2049, 65535, FAR - 1)  # bfloat16 holds every integer up to 256, float16 up to 2048
END = 2**16  # how far outputs are followed: phases in float32 move them by a thirtieth of all there is of position


def _outputs_in(plan: Plan) -> Iterator[dict[str, Any]]:
    """A low dtype and autocast, each by itself."""
    for values in plan.precisions():
        if values["autocast"] is None or values["dtype"] == torch.float32:
            yield {**values, "effect": None if isinstance(plan.subject, Bias) else plan.effect}


def _of_rotations(plan: Plan) -> Iterator[Case]:
    require(isinstance(plan.subject, Rotary), "nothing to do: a rotation alone has angles")
    end = plan.reach
    require(end > 1, AT_0_ALONE)
    at = sorted({p for p in AT if p < end} | {end - 1})
    for values in plan.precisions():
        yield Case(plan.row(at), values)


def _far(plan: Plan) -> Iterator[Case]:
    require(not isinstance(plan.subject, Rotary), "nothing to do: of a rotation the angles are measured")
    plan.require_that_it_can("positions")
    tokens, end = plan.sizes[-1], min(plan.reach, END)
    require(end > LATE, f"nothing to do: positions end at {end}, where low precision holds them all")
    # One row ends at the first position that bfloat16 lacks, one at the last.
    for start in sorted({LATE + 1 - tokens, end - tokens}):
        for values in _outputs_in(plan):
            if start > 0:
                yield Case(plan.line(1, tokens, start), values)


def _long(plan: Plan) -> Iterator[Case]:
    require(isinstance(plan.subject, Bias), "nothing to do: a bias alone has distances")
    plan.require_that_it_can("positions")
    tokens = plan.sizes[-1]
    end = min(plan.reach, END)
    require(end > SHORT, f"nothing to do: positions end at {end}, and there is no distance that is long")
    for last in sorted({p for p in (*range(tokens, 8 * tokens, tokens), LATE, end - 1) if tokens <= p < end}):
        for values in _outputs_in(plan):
            yield Case(plan.row([*range(tokens), last]), values)


def _late(plan: Plan) -> Iterator[Case]:
    require(not isinstance(plan.subject, Rotary), "nothing to do: of a rotation the angles are measured")
    require(not plan.subject.can("positions"), "nothing to do: call takes positions, so that far ones can be given")
    require(plan.limit >= 300, f"nothing to do: rows end at {plan.limit}, where low precision holds most positions")
    for values in _outputs_in(plan):
        yield Case(plan.text(1, min(plan.limit, 2 * LATE)), values)


CHECK = Check(
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
        Trial("long distances", long_as_exact_as_short, _long),
        Trial("late tokens", late_as_exact_as_early, _late),
    ),
)
