"""Checks that every backend gives the same outputs and gradients, and that these are derivatives (check 16)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from posenc_check.calls import gradient_tolerances, gradients_of, parameters_of, weighted, with_leaves
from posenc_check.outcome import Outcome, Outcomes, near
from posenc_check.subjects import Batch, Subject, applies, must_show, require
from posenc_check.trial import Case, Check, Trial, TrialPlan, padded, two_documents

STEPS = (1.0, 0.125, 8.0)  # a kink of the function within one step does not affect all of them


def outputs_agree(subject: Subject, batch: Batch, other: Mapping[str, Any], tolerance: float) -> Outcome:
    """The outputs with the options of another backend, against those with the subject's own."""
    made = subject.make()
    expected = batch.masked_outputs(subject.run(made, batch))
    return near(expected, batch.masked_outputs(subject.run(made_as(subject, made, other), batch)), tolerance)


def gradients_agree(subject: Subject, batch: Batch, other: Mapping[str, Any], highest: int) -> Outcomes:
    """The gradients of parameters and of vectors with the options of another backend, against the subject's own."""
    made = subject.make()
    _, expected = gradients_of(subject, made, batch)
    _, actual = gradients_of(subject, made_as(subject, made, other), batch)
    both = [name for name in expected if name in actual]
    applies(both, "nothing in it is trained, and call takes no vectors")
    tolerances = gradient_tolerances(subject, batch, highest)
    for name in both:
        neither = expected[name].isnan() & actual[name].isnan()  # NaN in both is no difference
        a, b = (gradients[name].masked_fill(neither, 0.0) for gradients in (expected, actual))
        yield name, near(a, b, tolerances[name])


def gradients_are_derivatives(subject: Subject, batch: Batch, other: Mapping[str, Any]) -> Outcomes:
    """The gradient of each parameter and vector, along a random line, against finite differences, in float64."""
    require(subject.dtype == torch.float64, "let it run in float64, which differences need")
    made = made_as(subject, subject.make(), other)
    leaves: dict[str, Tensor] = {}
    _, gradients = gradients_of(subject, made, batch, leaves)
    seen = False
    for name, gradient in gradients.items():
        line = _Line(subject, made, batch, leaves, name)
        slope = float((gradient * line.direction).sum())
        tries = [line.slope(scale) for scale in STEPS]
        seen |= any(max(abs(slope), abs(measured)) > 2 * tolerance for measured, tolerance in tries)
        measured, tolerance = min(tries, key=lambda pair: abs(pair[0] - slope) - pair[1])
        yield f"the slope along {name}", near(torch.tensor([measured]), torch.tensor([slope]), tolerance)
    must_show(subject, seen, "no gradient is above the rounding")


class _Line:
    """The outputs, weighted, along a line in one parameter or vector."""

    def __init__(self, subject: Subject, made: Any, batch: Batch, leaves: dict[str, Tensor], name: str) -> None:
        self.subject, self.made, self.batch, self.leaves = subject, made, batch, leaves
        self.leaf = (parameters_of(made) | leaves)[name]
        self.at = at = self.leaf.detach().clone()
        drawn = torch.randn(at.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(at)
        self.direction = drawn * (float(at.square().mean().sqrt()) or 1.0)
        # With a tiny step, the second difference is rounding alone, also that of float32 inside the subject.
        start = self(0.0)
        seconds = [abs(self(step) - 2 * start + self(-step)) for step in (1e-6, 2e-6, 3e-6)]
        self.noise = max(*seconds, 64 * 2**-52 * max(abs(start), 1.0))

    def __call__(self, step: float) -> float:
        with torch.no_grad():
            self.leaf.copy_(self.at + step * self.direction)
            try:
                return float(weighted(with_leaves(self.subject, self.leaves).run(self.made, self.batch)))
            finally:
                self.leaf.copy_(self.at)

    def slope(self, scale: float) -> tuple[float, float]:
        """The central difference, and how far it may be off: its rounding, and four times what 2 steps change."""
        step = scale * self.noise ** (1 / 3)
        near_by, wide = ((self(h) - self(-h)) / (2 * h) for h in (step, 2 * step))
        return near_by, 4 * abs(near_by - wide) + 8 * self.noise / step


def made_as(subject: Subject, made: Any, other: Mapping[str, Any]) -> Any:
    """A build with other options and the same parameters."""
    twin = subject.make(**other)
    if isinstance(twin, nn.Module) and isinstance(made, nn.Module):
        twin.load_state_dict(made.state_dict(), strict=False)
    return twin


# -- cases -------------------------------------------------------------------------------------------------------------

SIZES = (1, 127, 128, 129, 1025)  # around the sizes of blocks


def _others(plan: TrialPlan) -> list[Mapping[str, Any]]:
    """The options of the backends that are not the subject's own."""
    subject = plan.subject
    require(subject.backends, "name in `backends` the options that must change nothing, to run this")
    own = subject.options
    others = [other for other in subject.backends if any(own.get(key) != value for key, value in other.items())]
    require(others, "name in `backends` more than its own options, to run this")
    return others


def _batches(plan: TrialPlan) -> Iterator[Batch]:
    """Texts around the sizes of blocks; and at one size padded, packed, moved, and with fewer queries than keys."""
    subject, some = plan.subject, plan.room(SIZES[3])
    for tokens in sorted({*(plan.room(n) for n in SIZES if n <= plan.limit), some}):
        yield plan.text(1, tokens)
        if tokens == some > 2:
            if subject.can("queries"):
                yield replace(plan.text(1, tokens), queries=tuple(range(tokens - tokens // 3, tokens)))
            if subject.can("padding"):
                mask = [[n >= tokens // 3 for n in range(tokens)], [True] * tokens]
                yield padded(plan, mask, subject.can("positions"))
            if subject.can("document") and subject.can("positions"):
                yield two_documents(plan, tokens, rows=1)
            if subject.can("positions") and plan.has(2 * tokens):
                yield plan.line(2, tokens, tokens, 1)


def _cases(plan: TrialPlan, gradients: bool = False) -> Iterator[Case]:
    for batch, other in product(_batches(plan), _others(plan)):
        highest = 2 * batch.tokens
        near = {"highest": highest} if gradients else {"tolerance": plan.tolerance(highest)}
        yield Case(batch, {"other": dict(other), **near})


def _small(plan: TrialPlan, tokens: int) -> Iterator[Case]:
    """A few tokens, with every backend."""
    for other in ({}, *plan.subject.backends):
        yield Case(plan.text(1, min(tokens, plan.limit)), {"other": dict(other)})


CHECK = Check(
    number=16,
    name="backend parity",
    rule="Every backend gives the same outputs and gradients, for one token and around block sizes.",
    why="A fused kernel that drops a bias, its gradient or its alignment still gives plausible numbers.",
    pains=(9, 10, 11),
    remedy="Pass bias, mask, scale and alignment to every backend, and write the gradient of each.",
    trials=(
        Trial("outputs", outputs_agree, _cases, claims=("backends",)),
        Trial("gradients", gradients_agree, _cases, {"gradients": True}, claims=("backends",)),
        Trial("gradients are derivatives", gradients_are_derivatives, _small, {"tokens": 5}),
    ),
)
