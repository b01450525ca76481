"""Checks that no two neighbouring positions look the same in low precision (check 2)."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from posenc.tools.check.heads import Bias, Rotary
from posenc.tools.check.measure import lowered, of_two_tokens, row_of, sides, turned
from posenc.tools.check.outcome import Outcome, Outcomes
from posenc.tools.check.subjects import Batch, Subject, require
from posenc.tools.check.trial import AT_0_ALONE, FAR, Case, Check, Plan, Trial


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
    require(compared, "nothing to do: no two positions are neighbours")
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
            exact = turned(subject, subject.make(), vector.to(subject.dtype), first, which)[0]
            seen = float(exact.diff(dim=1).abs().max()) / float(exact.abs().max())
            hidden = 0 < seen < 4 * subject.eps(autocast or dtype)
            require(not hidden, f"claim `distinct_to=N`, for one step turns less than {autocast or dtype} can tell")
        came = lowered(subject, dtype, autocast, turned, vector.to(dtype), positions, which)[0]
        outcome = neighbours(list(zip(positions, came.unbind(1), strict=True)), step)
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
    came = lowered(subject, dtype, autocast, last_row, row_of(batch))
    return neighbours(list(zip(row_of(batch), came.unbind(-1), strict=True)), [1])


def outputs_differ(subject: Subject, batch: Batch, dtype: torch.dtype, autocast: torch.dtype | None) -> Outcome:
    """Rows of two tokens give different outputs, where the second moves on by one from row to row."""
    assert batch.positions is not None
    require(of_two_tokens(batch), "nothing to do: the rows are not of the same two tokens")
    came = lowered(subject, dtype, autocast, type(subject).run, batch)
    places = [row[-1] for row in batch.positions]
    return neighbours(list(zip(places, came.unbind(0), strict=True)), [1] * subject.axes)


# -- cases -------------------------------------------------------------------------------------------------------------

ALL_TO = 1024  # all positions below it are tried; then those near powers of two, where the spacing of floats doubles


def _windows(end: int) -> list[int]:
    """Positions below ``end``: the first, and those around every power of two and at the end."""
    around = [2**n for n in range(2, 64) if 2**n < end] + [end]
    chosen = set(range(min(end, ALL_TO)))
    chosen.update(p for middle in around for p in range(max(middle - 8, 0), min(middle + 8, end)))
    return sorted(chosen)


def _of_rotations(plan: Plan) -> Iterator[Case]:
    require(isinstance(plan.subject, Rotary), "nothing to do: a rotation alone can be seen by itself")
    end = min(plan.subject.distinct_to or FAR, plan.reach)
    require(end > 1, AT_0_ALONE)
    for values in plan.precisions():
        yield Case(plan.row(_windows(end)), values)


def _claimed(plan: Plan) -> int:
    require(plan.subject.distinct_to, "claim `distinct_to=N`, up to where no two neighbours look the same")
    return min(plan.subject.distinct_to or 0, plan.reach)


def _of_biases(plan: Plan) -> Iterator[Case]:
    require(isinstance(plan.subject, Bias), "nothing to do: a bias alone has distances")
    end = _claimed(plan)
    require(plan.subject.axes == 1, "nothing to do: distances on several axes are no line")
    for values in plan.precisions():
        yield Case(plan.row(_windows(end)), values)


def _of_outputs(plan: Plan) -> Iterator[Case]:
    own = isinstance(plan.subject, Bias | Rotary)
    require(not own, "nothing to do: it is compared by itself, not by what it does to outputs")
    end = _claimed(plan)
    plan.require_that_it_can("positions")
    places = [p for p in _windows(end) if p < 64 or p > ALL_TO or any(abs(p - 2**n) < 4 for n in range(11))]
    rows = [[plan.subject.at(0), plan.subject.at(p)] for p in places]
    for values in plan.precisions():
        yield Case(Batch([[1, 2]] * len(rows), positions=rows), values)


CHECK = Check(
    number=2,
    name="distinct",
    rule="In low precision, adjacent positions stay distinct, up to the last.",
    why="If two positions have the same bits, the order of their tokens is lost without an error.",
    pains=(1,),
    remedy="Compute phases and distances in float32, with autocast switched off, from integer positions.",
    trials=(
        Trial("rotations", rotations_differ, _of_rotations, claims=("distinct_to",)),
        Trial("biases", biases_differ, _of_biases, claims=("distinct_to",)),
        Trial("outputs", outputs_differ, _of_outputs, claims=("distinct_to",)),
    ),
)
