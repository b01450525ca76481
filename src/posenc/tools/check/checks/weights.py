"""Checks, as part of check 19, what the weights of a row sum to, and what two equal tokens weigh for one another."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from posenc.tools.check.calls import instead
from posenc.tools.check.captured import of_one_token
from posenc.tools.check.checks.along import scores_of_one_token
from posenc.tools.check.heads import Attention, Bias, Rotary
from posenc.tools.check.outcome import Outcome, near
from posenc.tools.check.subjects import Batch, Subject, require
from posenc.tools.check.trial import Case, Plan, Trial, padded, two_documents


def values_all_the_same_stay(subject: Attention, batch: Batch, sharper: float) -> Outcome:
    """Attention to values that are all the same must give that value, for queries multiplied by ``sharper``: an error
    in the sum of the weights does not show where one weight is nearly 1."""
    given: list[Tensor] = []

    def call(made: Any, query: Tensor, key: Tensor, value: Tensor, **more: Any) -> Any:
        line = torch.linspace(1, 2, value.size(-1), device=value.device, dtype=value.dtype)
        given.append(line.expand_as(value))
        return subject.call(made, sharper * query, key, given[0], **more)

    came = instead(subject, call).run(subject.make(), batch).detach()
    expected = batch.owed(given[0].transpose(1, 2)[:, :1].expand_as(came))
    # Softmax is often computed in float32, whatever the dtype.
    return near(expected, batch.owed(came), 64 * subject.eps(torch.float32))


def equal_tokens_come_out_equal(subject: Subject, batch: Batch) -> Outcome:
    """A row of one repeated token, in a layer whose tokens differ in their attention weights alone: as all values are
    the same, so are all outputs, except the first, which has no earlier token to be mixed with."""
    batch = of_one_token(batch)
    made = subject.make()
    _, _, alike, _ = scores_of_one_token(subject, made, batch)[0]
    require(
        len(alike) == batch.tokens, "nothing to do: tokens of the same content differ before attention, so values do"
    )
    out = subject.run(made, batch).detach()[:, 1:]
    return near(out[:, :1].expand_as(out), out, 64 * subject.eps(torch.float32) * float(out.abs().max()))


def before_and_after_weigh(subject: Subject, batch: Batch) -> Outcome:
    """A row of one repeated token: how much higher token q scores token k than itself, and k scores q. If the subject
    is directed, the two must differ in at least one attention; if it is not, in none."""
    found = []
    for name, scores, alike, _ in scores_of_one_token(subject, subject.make(), batch):
        away = scores - scores.diagonal(dim1=-2, dim2=-1)[..., None]
        both = away.isfinite() & away.mT.isfinite()
        there, back = away.masked_fill(~both, 0.0), away.mT.masked_fill(~both, 0.0)
        rounding = 64 * subject.eps(torch.float32) * max(float(scores.masked_fill(~both, 0.0).abs().max()), 1.0)
        # Scores that are all equal, as from a table of zeros before training, show nothing.
        if len(alike) == batch.tokens and float(there.abs().max()) > rounding:
            found.append((name, near(there, back, rounding)))
    require(found, "nothing to do: no attention scores tokens of the same content by where they are, to both sides")
    wrong = [(name, same) for name, same in found if same.ok == bool(subject.directed)]
    if not subject.directed and wrong:
        name, same = wrong[0]
        return Outcome(False, f"{name} [head, query, key]: {same.expected}", same.came)
    said = "another score for a token before than for the same token as far after"
    return Outcome(not subject.directed or len(wrong) < len(found), said, "the same of every two tokens, to every head")


# -- cases -------------------------------------------------------------------------------------------------------------

SUMS = "Add and mask scores before the softmax, and change no weight after it."
SIDES = "Take the sign of the distance, not its size alone, where before and after are to differ."


def _values(plan: Plan) -> Iterator[Case]:
    subject = plan.subject
    require(subject.normalized, "claim `normalized=True` if the weights of a row sum to one")
    require(not isinstance(subject, Rotary | Bias), "nothing to do: the softmax around it is the check's own")
    require(
        isinstance(subject, Attention), "nothing to do: a layer cannot be given values, and its equal tokens are tried"
    )
    for tokens in plan.sizes:
        for sharper in (1.0, 16.0):
            yield Case(plan.text(2, tokens), {"sharper": sharper})
    if subject.can("padding") and plan.sizes_above(2):
        tokens = plan.sizes_above(2)[0]
        mask = [[n > 0 for n in range(tokens)], [n < tokens - 1 for n in range(tokens)]]
        yield Case(padded(plan, mask, subject.can("positions")), {"sharper": 1.0})
    if subject.can("document") and subject.can("positions") and plan.sizes_above(2):
        yield Case(two_documents(plan, plan.sizes_above(2)[-1]), {"sharper": 1.0})


def _layers(plan: Plan) -> Iterator[Case]:
    subject = plan.subject
    require(subject.normalized, "claim `normalized=True` if the weights of a row sum to one")
    require(not isinstance(subject, Attention | Rotary | Bias), "nothing to do: attention is given values")
    for tokens in plan.sizes_above(2):
        yield Case(plan.text(1, tokens))


def _sides(plan: Plan) -> Iterator[Case]:
    subject = plan.subject
    require(
        subject.directed is not None,
        "claim `directed=True` if before and after differ, or `directed=False` if they must not",
    )
    require(not subject.causal, "nothing to do: it is causal, and tokens see none after them")
    require(subject.axes == 1 or subject.takes("grid"), "nothing to do: positions have several axes")
    for tokens in plan.sizes_above(2):
        yield Case(plan.text(1, tokens))


MORE = (
    19,
    (
        Trial("values all the same", values_all_the_same_stay, _values, claims=("normalized",), remedy=SUMS),
        Trial("tokens all the same", equal_tokens_come_out_equal, _layers, claims=("normalized",), remedy=SUMS),
        Trial("before and after", before_and_after_weigh, _sides, claims=("directed",), remedy=SIDES),
    ),
)
