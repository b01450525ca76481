"""Checks that packed documents of one row do not affect one another (check 11)."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from posenc.tools.check.calls import with_leaves
from posenc.tools.check.heads import Bias
from posenc.tools.check.layers import Model
from posenc.tools.check.outcome import Outcomes, near
from posenc.tools.check.subjects import PADDING, VOCABULARY, Batch, Subject, require
from posenc.tools.check.trial import Case, Check, Plan, Trial, packed


def documents_equal_themselves_alone(subject: Subject, batch: Batch, tolerance: float) -> Outcomes:
    """Every document of a packed batch gives the same outputs as alone, at the same positions."""
    together = subject.run(subject.make(), batch)
    for row, of in enumerate(batch.document or []):
        for document in sorted(set(of) - {PADDING}):
            tokens = [n for n, d in enumerate(of) if d == document]
            alone = replace(batch.pick(tokens, row), document=None)
            came = together[row : row + 1, tokens]
            yield f"document {document} of row {row}", near(subject.run(subject.make(), alone), came, tolerance)


def documents_do_not_leak(subject: Subject, batch: Batch) -> Outcomes:
    """With other tokens in one document, the others give the same outputs to the bit: masked tokens have zero
    weight."""
    made, document = subject.make(), torch.tensor(batch.document)
    before = subject.run(made, batch)
    for changed in _documents_of(document):
        it = document == changed
        ids = torch.where(it, (torch.tensor(batch.ids) + 7) % VOCABULARY, torch.tensor(batch.ids)).tolist()
        after = subject.run(made, replace(batch, ids=ids))
        counted = not torch.equal(before[it], after[it])
        require(counted, "give it a `jitter`, for its outputs are the same with other tokens")
        others = _elsewhere(document, it)
        yield f"document {changed} has other tokens", near(others(before), others(after), 0.0)


def documents_take_no_gradient(subject: Subject, batch: Batch) -> Outcomes:
    """The derivative of the other documents by the vectors of one is exactly zero."""
    leaves: dict[str, Tensor] = {}
    document = torch.tensor(batch.document)
    out = with_leaves(subject, leaves).run(subject.make(), batch)
    require(out.requires_grad, "let outputs take gradients, to run this")
    # Not a plain sum, which a normalisation makes constant.
    weights = torch.linspace(1, 2, out.numel(), dtype=torch.float64, device=out.device).view_as(out).cos().to(out.dtype)
    for number in _documents_of(document):
        it, content = document == number, list(leaves.values())
        gradients = torch.autograd.grad((out * weights)[it].sum(), content, retain_graph=True, allow_unused=True)
        by_token = [g if g.dim() == 3 else g.transpose(1, 2) for g in gradients if g is not None]  # heads stand before
        counted = any(g[it].any() for g in by_token)
        require(counted, "give it a `jitter`, for the derivative of its outputs is zero")
        others = _elsewhere(document, it)
        for g in by_token:
            yield f"the derivative of document {number} by the others", near(torch.zeros_like(g), others(g), 0.0)


def _documents_of(document: Tensor) -> list[int]:
    documents = sorted(set(document.flatten().tolist()) - {PADDING})
    require(len(documents) > 1, "nothing to do: there is one document, and no other")
    return documents


def _elsewhere(document: Tensor, it: Tensor) -> Callable[[Tensor], Tensor]:
    """x (rows, tokens, …) with zeros at the document and at padding."""
    hidden = it | (document == PADDING)
    return lambda x: x.masked_fill(hidden.to(x.device).view(*hidden.shape, *[1] * (x.dim() - 2)), 0.0)


# -- cases -------------------------------------------------------------------------------------------------------------


def _rows(plan: Plan) -> Iterator[Batch]:
    """Two rows of three documents, with lengths in opposite order; then the same with padding at the end of a row."""
    plan.require_that_it_can("document")
    for tokens in plan.sizes_above(2):
        lengths = [1, tokens // 2, tokens - tokens // 2 - 1]
        batch = packed(plan, lengths, lengths[::-1])
        yield batch
        if tokens > 3 and plan.subject.can("padding"):
            first, second = batch.document or []
            yield replace(batch, document=[first, [PADDING if d == second[-1] else d for d in second]])


def _with_positions(plan: Plan) -> Iterator[Case]:
    plan.require_that_it_can("positions")
    for batch in _rows(plan):
        yield Case(batch, {"tolerance": plan.tolerance(batch.tokens)})


def _by_documents(plan: Plan) -> Iterator[Case]:
    plan.require_that_it_can("document")
    require(not plan.subject.can("positions"), "nothing to do: call takes positions")
    require(not plan.subject.takes("grid"), "nothing to do: documents in one grid do not stand where they do alone")
    # Without documents or positions, tokens are numbered continuously across a row.
    reason = f"{plan.lacks('positions')}, for the second document does not stand where it does alone"
    require(plan.subject.takes("document") or plan.subject.relative, reason)
    for batch in _rows(plan):
        yield Case(replace(batch, positions=None), {"tolerance": plan.tolerance(batch.tokens)})


def _leaks(plan: Plan, gradients: bool = False) -> Iterator[Case]:
    require(
        not (gradients and isinstance(plan.subject, Model)), "nothing to do: tokens are ids, which have no derivative"
    )
    require(not isinstance(plan.subject, Bias), "nothing to do: a bias is given no tokens, so it can let none through")
    for batch in _rows(plan):
        yield Case(batch if plan.subject.can("positions") else replace(batch, positions=None))


CHECK = Check(
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
        Trial("derivatives", documents_take_no_gradient, _leaks, {"gradients": True}),
    ),
)
