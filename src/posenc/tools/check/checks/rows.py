"""Checks, as part of check 19, that the rows of a batch are independent, and that the longest row runs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from posenc.tools.check.outcome import Outcomes, all_finite, near
from posenc.tools.check.subjects import Batch, Subject, require
from posenc.tools.check.trial import Case, Plan, Trial, padded


def rows_do_not_mix(subject: Subject, batch: Batch, tolerance: float) -> Outcomes:
    """Each row alone, against the same row among the others: all at once, or fed to a cache in chunks."""
    made = subject.make()
    with torch.set_grad_enabled(torch.is_grad_enabled() and not batch.chunks):
        together = batch.owed(subject.run(made, batch))
        for row in range(len(batch.ids)):
            one = replace(batch.pick(range(batch.tokens), row), chunks=batch.chunks)
            alone = one.owed(subject.run(made, one))
            yield f"row {row}", near(alone, together[row : row + 1], tolerance)


def the_longest_row_runs(subject: Subject, batch: Batch, tolerance: float, same: bool) -> Outcomes:
    """A row as long as there are positions gives finite numbers. Where later tokens must not matter, its first half
    gives the ``same`` as without the second."""
    with torch.no_grad():
        out = subject.run(subject.make(), batch)
        yield f"a row of {batch.tokens} tokens", all_finite(out, batch)
        half = batch.tokens // 2
        if same and half:
            yield "its first half", near(subject.run(subject.make(), batch.pick(range(half))), out[:, :half], tolerance)


# -- cases -------------------------------------------------------------------------------------------------------------

MIXED = "Take the number of rows and of tokens each from its own axis, and look at no row but one's own."
FAR = 4000  # past the lengths that scalings begin at by default


def _squares(plan: Plan) -> Iterator[Case]:
    subject = plan.subject
    several = [plan.room(2 * math.prod(subject.window))] if isinstance(subject.window, Sequence) else []  # windows
    for size in sorted({plan.room(5), plan.room(getattr(subject, "heads", 3)), *several}):
        batch = plan.text(size, size)
        most = (subject.max_positions or 8 * size) - size
        if subject.can("positions"):
            rows = [[plan.subject.at(min(7 * row, most) + p) for p in range(size)] for row in range(size)]
            batch = replace(batch, positions=rows)
        yield Case(batch, {"tolerance": plan.tolerance(8 * size)})


def _places(plan: Plan, cached: bool = False) -> Iterator[Case]:
    """Rows with gaps, each at other tokens; and where there is room, one far away, past a threshold if it has one."""
    plan.require_that_it_can("positions")
    if cached:
        plan.require_a_cache()
    tokens = plan.sizes_above(1)[:1] or plan.sizes
    for start in (0, max(FAR, 2 * (plan.subject.threshold or 0))):
        if plan.has(start + tokens[0] + 2):
            near_by = plan.broken(2, tokens[0])
            far = plan.broken(1, tokens[0], start)
            batch = Batch(near_by.ids + far.ids, (near_by.positions or []) + (far.positions or []))
            chunks = (tokens[0] - 1, 1) if cached and tokens[0] > 1 else ()
            yield Case(replace(batch, chunks=chunks), {"tolerance": plan.tolerance(start + tokens[0] + 2)})


def _lengths(plan: Plan, cached: bool = False) -> Iterator[Case]:
    """Rows with padding on the left, on the right, and none; one past the threshold, if there is one."""
    plan.require_that_it_can("padding")
    require(not plan.subject.takes("grid"), "nothing to do: call takes a grid, and these are rows of text")
    if cached:
        plan.require_a_cache()
    threshold = plan.subject.threshold
    lengths = [*plan.sizes_above(2)[:1], *([threshold + 3] if threshold and threshold + 3 <= plan.limit else [])]
    for tokens in lengths:
        for some in {max(tokens // 3, 1), tokens - 2}:
            line = range(tokens)
            mask = [[True] * tokens, [n >= some for n in line], [n < tokens - some for n in line]]
            if cached:
                mask = mask[:2]  # what comes after padding on the right is not of its row's text
            batch = padded(plan, mask, plan.subject.can("positions"))
            chunks = (tokens - 1, 1) if cached else ()
            yield Case(replace(batch, chunks=chunks), {"tolerance": plan.tolerance(tokens)})


def _longest(plan: Plan) -> Iterator[Case]:
    subject, most = plan.subject, plan.subject.max_positions or 0
    require(most, "claim `max_positions=N` if there is an end to positions")
    require(not subject.takes("grid"), "nothing to do: call takes a grid, and these are rows of text")
    same = subject.causal and subject.threshold is None
    if subject.can("positions"):
        last = plan.row([most - 1])
        yield Case(last, {"tolerance": 0.0, "same": False})
    require(most <= plan.longest, f"run with `--longest {most}`: no row is longer than {plan.longest} tokens")
    yield Case(plan.text(1, most), {"tolerance": plan.tolerance(most), "same": same})
    if subject.can("positions"):
        yield Case(plan.line(1, most), {"tolerance": plan.tolerance(most), "same": same})


MORE = (
    19,
    (
        Trial("as many rows as tokens", rows_do_not_mix, _squares, remedy=MIXED),
        Trial("rows of other places", rows_do_not_mix, _places, remedy=MIXED),
        Trial("rows of other places, cached", rows_do_not_mix, _places, {"cached": True}, remedy=MIXED),
        Trial("rows of other lengths", rows_do_not_mix, _lengths, remedy=MIXED),
        Trial("rows of other lengths, cached", rows_do_not_mix, _lengths, {"cached": True}, remedy=MIXED),
        Trial("the longest row", the_longest_row_runs, _longest, claims=("max_positions",)),
    ),
)
