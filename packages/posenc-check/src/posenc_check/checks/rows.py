"""Checks that padding (check 7) and other documents of a row (check 11) change nothing."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from posenc_check.outcome import OUTPUT, Outcome, Outcomes, near
from posenc_check.subjects import PADDING, VOCABULARY, Batch, Bias, Model, Subject, applies, must_show, require
from posenc_check.trial import Case, Check, Trial, TrialPlan, packed, padded


def padding_changes_nothing(subject: Subject, batch: Batch, tolerance: float) -> Outcomes:
    """Every row, where it has tokens, gives the same outputs as without padding."""
    made = subject.make()
    together = subject.run(made, batch)
    for row, real in enumerate(batch.real):
        if kept := [n for n, token in enumerate(real) if token]:
            expected = subject.run(made, replace(batch.pick(kept, row), document=None))
            yield f"row {row}", near(expected, together[row : row + 1, kept], tolerance, OUTPUT)


def what_padding_holds_changes_nothing(subject: Subject, batch: Batch) -> Outcome:
    """With other tokens in place of the padding, the real ones give the same to the bit: padding has zero weight."""
    made = subject.make()
    ids = [
        [token if real else (token + 7) % VOCABULARY for token, real in zip(*row, strict=True)]
        for row in zip(batch.ids, batch.real, strict=True)
    ]
    before, after = subject.run(made, batch), subject.run(made, replace(batch, ids=ids))
    return near(batch.masked_outputs(before), batch.masked_outputs(after), 0.0)


def documents_equal_themselves_alone(subject: Subject, batch: Batch, tolerance: float) -> Outcomes:
    """Every document of a packed batch gives the same outputs as alone, at the same positions."""
    together = subject.run(subject.make(), batch)
    for row, of in enumerate(batch.document or []):
        for document in sorted(set(of) - {PADDING}):
            tokens = [n for n, d in enumerate(of) if d == document]
            alone = replace(batch.pick(tokens, row), document=None)
            actual = together[row : row + 1, tokens]
            yield (
                f"document {document} of row {row}",
                near(subject.run(subject.make(), alone), actual, tolerance, OUTPUT),
            )


def documents_do_not_leak(subject: Subject, batch: Batch) -> Outcomes:
    """With other tokens in one document, the others give the same to the bit: masked tokens have zero weight."""
    made, document = subject.make(), torch.tensor(batch.document)
    before = subject.run(made, batch)
    for changed in _documents_of(document):
        it = document == changed
        ids = torch.where(it, (torch.tensor(batch.ids) + 7) % VOCABULARY, torch.tensor(batch.ids)).tolist()
        after = subject.run(made, replace(batch, ids=ids))
        counted = not torch.equal(before[it], after[it])
        must_show(subject, counted, "its outputs are the same with other tokens")
        others = _elsewhere(document, it)
        yield f"document {changed} has other tokens", near(others(before), others(after), 0.0)


def _documents_of(document: Tensor) -> list[int]:
    documents = sorted(set(document.flatten().tolist()) - {PADDING})
    applies(len(documents) > 1, "there is one document, and no other")
    return documents


def _elsewhere(document: Tensor, it: Tensor) -> Callable[[Tensor], Tensor]:
    """x (rows, tokens, …) with zeros at the document and at padding."""
    hidden = it | (document == PADDING)
    return lambda x: x.masked_fill(hidden.to(x.device).view(*hidden.shape, *[1] * (x.dim() - 2)), 0.0)


# -- cases -------------------------------------------------------------------------------------------------------------


def _masks(tokens: int, inside: bool) -> list[list[list[bool]]]:
    """Masks with padding on the left, on the right, ``inside`` if asked for, and mixed by row."""
    some, line, whole = max(tokens // 3, 1), range(tokens), [True] * tokens
    rows = [[n >= some for n in line], [n < tokens - some for n in line]]
    if inside:
        rows.append([not some <= n < 2 * some for n in line])
    return [*([row, whole] for row in rows), [*rows, whole]]


def _cases(plan: TrialPlan, explicit: bool = False, inside: bool = False) -> Iterator[Case]:
    plan.require_that_it_can("padding")
    if explicit:
        plan.require_that_it_can("positions")
    possible = explicit or plan.subject.takes("padding")
    require(possible, "let call take `padding` (rows, tokens), and find positions by itself")
    require(
        explicit or not plan.subject.needs("positions"),
        "give `positions` a default in call, if it finds them by itself",
    )
    applies(explicit or not plan.subject.takes("grid"), "patches stand where they are in the grid, padding or not")
    by_index = inside and not explicit and not plan.subject.causal and plan.subject.window is None
    applies(not by_index, "distances may go by the index, as in T5, and then by that of padding too")
    for tokens in plan.sizes_above(2):
        for mask in _masks(tokens, inside):
            yield Case(padded(plan, mask, explicit), {"tolerance": plan.tolerance(tokens)})


def _contents(plan: TrialPlan) -> Iterator[Case]:
    plan.require_that_it_can("padding")
    applies(not isinstance(plan.subject, Bias), "a bias is given no tokens, so it can let none through")
    for tokens in plan.sizes_above(2):
        for mask in _masks(tokens, inside=True):
            yield Case(padded(plan, mask, plan.subject.can("positions")))


def _rows(plan: TrialPlan) -> Iterator[Batch]:
    """Two rows of three documents, with lengths in opposite order; then the same with padding at the end of a row."""
    plan.require_that_it_can("document")
    for tokens in plan.sizes_above(2):
        lengths = [1, tokens // 2, tokens - tokens // 2 - 1]
        batch = packed(plan, lengths, lengths[::-1])
        yield batch
        if tokens > 3 and plan.subject.can("padding"):
            first, second = batch.document or []
            yield replace(batch, document=[first, [PADDING if d == second[-1] else d for d in second]])


def _with_positions(plan: TrialPlan) -> Iterator[Case]:
    plan.require_that_it_can("positions")
    for batch in _rows(plan):
        yield Case(batch, {"tolerance": plan.tolerance(batch.tokens)})


def _by_documents(plan: TrialPlan) -> Iterator[Case]:
    plan.require_that_it_can("document")
    applies(not plan.subject.can("positions"), "call takes positions")
    applies(not plan.subject.takes("grid"), "documents in one grid do not stand where they do alone")
    # Without documents or positions, tokens are numbered continuously across a row.
    reason = f"{plan.lacks('positions')}, for the second document does not stand where it does alone"
    require(plan.subject.takes("document") or plan.subject.relative, reason)
    for batch in _rows(plan):
        yield Case(replace(batch, positions=None), {"tolerance": plan.tolerance(batch.tokens)})


def _leaks(plan: TrialPlan, gradients: bool = False) -> Iterator[Case]:
    applies(not (gradients and isinstance(plan.subject, Model)), "tokens are ids, which have no derivative")
    applies(not isinstance(plan.subject, Bias), "a bias is given no tokens, so it can let none through")
    for batch in _rows(plan):
        yield Case(batch if plan.subject.can("positions") else replace(batch, positions=None))


HOLES = (
    "Take positions from the mask, mask.cumsum(-1) - 1, not from the index. Much code fails here and is right at the "
    "ends. If your masks have no holes, it does not matter: --checks can leave check 7 out, with all of its trials."
)

PADDING_CHECK = Check(
    number=7,
    name="padding",
    rule="Tokens give the same output as without padding, whether it is left, right, inside, or mixed by row.",
    why="If positions are taken from the index, left-padded rows of a batch get wrong positions.",
    pains=(3,),
    remedy="Take positions from the mask, or from the caller, not from the index; hide padding before the softmax.",
    trials=(
        # Separate trials: code that uses the index may be right with padding at the ends, and cannot be across a gap.
        Trial("with positions, at the ends", padding_changes_nothing, _cases, {"explicit": True}),
        Trial(
            "with positions, inside too",
            padding_changes_nothing,
            _cases,
            {"explicit": True, "inside": True},
            remedy=HOLES,
        ),
        Trial("with a mask alone, at the ends", padding_changes_nothing, _cases),
        Trial("with a mask alone, inside too", padding_changes_nothing, _cases, {"inside": True}, remedy=HOLES),
        Trial("what it holds", what_padding_holds_changes_nothing, _contents),
    ),
)

PACKING_CHECK = Check(
    number=11,
    name="packing",
    rule="Each packed document gives the same output as alone, and no other document changes a bit of it.",
    why="If documents attend to each other, or positions continue across them, the model trains on wrong texts; the "
    "loss hardly shows it.",
    pains=(4,),
    remedy="Mask attention between documents, and count positions from 0 in each.",
    trials=(
        Trial("alone, with positions", documents_equal_themselves_alone, _with_positions),
        Trial("alone, with documents alone", documents_equal_themselves_alone, _by_documents),
        Trial("other tokens", documents_do_not_leak, _leaks),
    ),
)
