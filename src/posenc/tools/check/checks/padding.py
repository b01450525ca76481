"""Checks that real tokens give the same outputs with and without padding (check 7)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from posenc.tools.check.captured import scores_of
from posenc.tools.check.heads import Bias
from posenc.tools.check.layers import Layer
from posenc.tools.check.outcome import Outcome, Outcomes, near
from posenc.tools.check.subjects import PADDING, VOCABULARY, Batch, Subject, require
from posenc.tools.check.trial import Case, Check, Plan, Trial, padded


def rows_as_alone(subject: Subject, batch: Batch, tolerance: float) -> Iterator[tuple[int, Outcome]]:
    """Every row of a padded batch, where it has tokens, against the same tokens alone."""
    made = subject.make()
    together = subject.run(made, batch)
    for row, real in enumerate(batch.real):
        kept = [n for n, token in enumerate(real) if token]
        if kept:
            expected = subject.run(made, replace(batch.pick(kept, row), document=None))
            yield row, near(expected, together[row : row + 1, kept], tolerance)


def padding_changes_nothing(subject: Subject, batch: Batch, tolerance: float) -> Outcomes:
    """Every row gives the same outputs as without padding."""
    for row, outcome in rows_as_alone(subject, batch, tolerance):
        yield f"row {row}", outcome


def padding_inside_changes_nothing(subject: Subject, batch: Batch, tolerance: float) -> Outcomes:
    """Every row gives the same outputs as without padding. A row with padding between its tokens is left out if
    distances go by the index, as in T5 and a Conformer, and padding at the ends changes nothing."""
    for row, outcome in rows_as_alone(subject, batch, tolerance):
        if not outcome.ok:
            by_index = goes_by_the_index(subject, subject.make(), batch.pick(range(batch.tokens), row), tolerance)
            require(not by_index, "nothing to do: distances go by the index, and padding at the ends changes nothing")
        yield f"row {row}", outcome


def goes_by_the_index(subject: Subject, made: Any, row: Batch, tolerance: float) -> bool:
    """Whether distances go by the index, for a row with padding between its tokens: more padding at the ends changes
    nothing, and the scores, where they are captured, are those of the row without padding.

    False for a causal subject, where a prompt that ends with padding is continued and so has padding inside; and for a
    window, which would show fewer tokens than it claims.
    """
    if subject.causal or subject.window is not None:
        return False
    real = [n for n, token in enumerate(row.real[0]) if token]
    gap = len(real) < real[-1] - real[0] + 1
    if not gap or subject.registers or (subject.max_positions or row.tokens + 3) < row.tokens + 3:
        return False
    longer = Batch([[0, 0, *row.ids[0], 0]], document=[[PADDING, PADDING, *(row.document or [[]])[0], PADDING]])
    out, moved = subject.run(made, row), subject.run(made, longer)
    if not near(out[:, real], moved[:, [n + 2 for n in real]], tolerance).ok:
        return False
    if not isinstance(subject, Layer):
        return True
    found = [scores_of(subject, made, batch) for batch in (row, replace(row, document=None))]
    if not all(found):
        return True
    padded, whole = (scores[0][0][:, real][..., real] for scores in found)
    both = padded.isfinite() & whole.isfinite()
    level = [scores.masked_fill(~both, 0.0) for scores in (padded, whole)]
    padded, whole = (scores - scores.diagonal(dim1=-2, dim2=-1)[..., None] for scores in level)
    fine = 64 * torch.finfo(torch.float32).eps * max(float(x.abs().max()) for x in level)
    return near(whole.masked_fill(~both, 0.0), padded.masked_fill(~both, 0.0), fine).ok


def what_padding_holds_changes_nothing(subject: Subject, batch: Batch) -> Outcome:
    """With other tokens in place of the padding, the real ones give the same output to the bit: padding has zero
    weight."""
    made = subject.make()
    ids = [
        [token if real else (token + 7) % VOCABULARY for token, real in zip(*row, strict=True)]
        for row in zip(batch.ids, batch.real, strict=True)
    ]
    before, after = subject.run(made, batch), subject.run(made, replace(batch, ids=ids))
    return near(batch.owed(before), batch.owed(after), 0.0)


# -- cases -------------------------------------------------------------------------------------------------------------


def _masks(tokens: int, inside: bool) -> list[list[list[bool]]]:
    """Masks with padding on the left, on the right, ``inside`` if asked for, and mixed by row; no row is all
    padding."""
    some, line, whole = max(tokens // 3, 1), range(tokens), [True] * tokens
    rows = [[n >= some for n in line], [n < tokens - some for n in line]]
    if inside:
        rows.append([not some <= n < 2 * some for n in line])
    return [*([row, whole] for row in rows), [*rows, whole]]


def _cases(plan: Plan, explicit: bool = False, inside: bool = False) -> Iterator[Case]:
    plan.require_that_it_can("padding")
    if explicit:
        plan.require_that_it_can("positions")
    require(
        explicit or plan.subject.takes("padding"),
        "let call take `padding` (rows, tokens), and find positions by itself",
    )
    require(
        explicit or not plan.subject.needs("positions"),
        "give `positions` a default in call, if it finds them by itself",
    )
    require(
        explicit or not plan.subject.takes("grid"),
        "nothing to do: patches stand where they are in the grid, padding or not",
    )
    for tokens in plan.sizes_above(2):
        for mask in _masks(tokens, inside):
            yield Case(padded(plan, mask, explicit), {"tolerance": plan.tolerance(tokens)})


def _contents(plan: Plan) -> Iterator[Case]:
    plan.require_that_it_can("padding")
    require(not isinstance(plan.subject, Bias), "nothing to do: a bias is given no tokens, so it can let none through")
    for tokens in plan.sizes_above(2):
        for mask in _masks(tokens, inside=True):
            yield Case(padded(plan, mask, plan.subject.can("positions")))


CHECK = Check(
    number=7,
    name="padding",
    rule="Tokens give the same output as without padding, whether it is left, right, inside, or mixed by row.",
    why="If positions are taken from the index, left-padded rows of a batch get wrong positions.",
    pains=(3,),
    remedy="Take positions from the mask, or from the caller, not from the index; hide padding before the softmax.",
    trials=(
        # Separate trials: code that uses the index may be right with padding at the ends, and cannot be across a gap.
        Trial("with positions, at the ends", padding_changes_nothing, _cases, {"explicit": True}),
        Trial("with positions, inside too", padding_changes_nothing, _cases, {"explicit": True, "inside": True}),
        Trial("with a mask alone, at the ends", padding_changes_nothing, _cases),
        Trial("with a mask alone, inside too", padding_inside_changes_nothing, _cases, {"inside": True}),
        Trial("what it holds", what_padding_holds_changes_nothing, _contents),
    ),
)
