"""10. Permutation: tokens with their positions, in another order."""

import random
from collections.abc import Iterator
from dataclasses import replace

from posenc.conformance.outcome import Outcome, near
from posenc.conformance.subjects import PADDING, Batch, Subject
from posenc.conformance.trial import Case, Check, Plan, Trial, two_documents


def outputs_are_permuted(subject: Subject, batch: Batch, seed: int, tolerance: float) -> Outcome:
    """The outputs of tokens in another order, with all that is said of each, against their outputs in that order."""
    places = random.Random(seed).sample(range(batch.tokens), batch.tokens)
    turned = batch.pick(places)
    expected = batch.owed(subject.run(subject.make(), batch))[:, places]
    return near(expected, turned.owed(subject.run(subject.make(), turned)), tolerance)


# -- cases -------------------------------------------------------------------------------------------------------------


def _ordered(plan: Plan, batch: Batch) -> Batch:
    """With the order that causality goes by."""
    line = list(range(batch.tokens))
    return replace(batch, order=[line] * len(batch.ids)) if plan.subject.causal else batch


def _require(plan: Plan, *needs: str) -> None:
    plan.require_that_it_can("positions", *needs)
    if plan.subject.causal:
        plan.require_that_it_can("order")


def _text(plan: Plan) -> Iterator[Case]:
    _require(plan)
    for tokens in plan.sizes:
        if tokens > 1:
            step = 3 if plan.has(tokens + 3) else 0  # rows begin at different positions
            batch = _ordered(plan, plan.line(2, tokens, step=step))
            for seed in range(2):
                yield Case(batch, {"seed": seed, "tolerance": plan.tolerance(tokens + step)})


def _documents(plan: Plan) -> Iterator[Case]:
    _require(plan, "document")
    for tokens in plan.sizes:
        if tokens > 2:
            batch = _ordered(plan, two_documents(plan, tokens))
            yield Case(batch, {"seed": 0, "tolerance": plan.tolerance(tokens)})


def _padding(plan: Plan) -> Iterator[Case]:
    _require(plan, "padding")
    for tokens in plan.sizes:
        if tokens > 2:
            batch = _ordered(plan, plan.line(2, tokens))
            absent = tokens // 3
            document = [[PADDING] * absent + [0] * (tokens - absent), [0] * tokens]
            yield Case(replace(batch, document=document), {"seed": 0, "tolerance": plan.tolerance(tokens)})


CHECK = Check(
    number=10,
    name="permutation",
    rule="Tokens put in another order, with their positions, come out the same, in that order.",
    why="What reads a position off the index of a tensor is right until tokens are sorted, dropped, merged or sharded.",
    pains=(3,),
    trials=(
        Trial("text", outputs_are_permuted, _text),
        Trial("packed documents", outputs_are_permuted, _documents),
        Trial("padding", outputs_are_permuted, _padding),
    ),
)
