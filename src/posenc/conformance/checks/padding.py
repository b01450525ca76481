"""7. Padding: real tokens equal the unpadded run."""

from collections.abc import Iterator
from dataclasses import replace

from posenc.conformance.heads import Bias
from posenc.conformance.outcome import Outcome, Outcomes, near
from posenc.conformance.subjects import VOCABULARY, Batch, Subject, require
from posenc.conformance.trial import Case, Check, Plan, Trial, padded


def padding_changes_nothing(subject: Subject, batch: Batch, tolerance: float) -> Outcomes:
    """Every row of a padded batch, where it has tokens, against the same tokens alone."""
    made = subject.make()
    together = subject.run(made, batch)
    for row, real in enumerate(batch.real):
        kept = [n for n, token in enumerate(real) if token]
        if kept:
            expected = subject.run(made, replace(batch.pick(kept, row), document=None))
            yield f"row {row}", near(expected, together[row : row + 1, kept], tolerance)


def what_padding_holds_changes_nothing(subject: Subject, batch: Batch) -> Outcome:
    """With other tokens in its place, the real ones come out the same, to the bit: padding weighs exactly nothing."""
    made = subject.make()
    ids = [
        [token if real else (token + 7) % VOCABULARY for token, real in zip(*row, strict=True)]
        for row in zip(batch.ids, batch.real, strict=True)
    ]
    before, after = subject.run(made, batch), subject.run(made, replace(batch, ids=ids))
    return near(batch.owed(before), batch.owed(after), 0.0)


# -- cases -------------------------------------------------------------------------------------------------------------


def _masks(tokens: int, inside: bool) -> list[list[list[bool]]]:
    """Left, right, if asked for ``inside``, and mixed by row; every row keeps a token."""
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
    rule="Real tokens come out as they do without padding, whether it is left, right, inside, or mixed by row.",
    why="Where positions are read off the index, left-padded rows of a batch are answered as if they stood elsewhere.",
    pains=(3,),
    remedy="Take positions from the mask, or from the caller, not from the index; hide padding before the softmax.",
    trials=(
        # Apart, since what goes by the index may get distances and windows right at the ends, and cannot across a gap.
        Trial("with positions, at the ends", padding_changes_nothing, _cases, {"explicit": True}),
        Trial("with positions, inside too", padding_changes_nothing, _cases, {"explicit": True, "inside": True}),
        Trial("with a mask alone, at the ends", padding_changes_nothing, _cases),
        Trial("with a mask alone, inside too", padding_changes_nothing, _cases, {"inside": True}),
        Trial("what it holds", what_padding_holds_changes_nothing, _contents),
    ),
)
