"""Checks that permuting tokens with their positions permutes the outputs (check 10)."""

import random
from collections.abc import Iterator
from dataclasses import replace

from posenc.tools.check.outcome import Outcome, near
from posenc.tools.check.subjects import PADDING, Batch, Subject
from posenc.tools.check.trial import Case, Check, Plan, Trial, two_documents


def outputs_are_permuted(subject: Subject, batch: Batch, seed: int, tolerance: float) -> Outcome:
    """Tokens in another order, with their positions, documents and order, give their outputs in that order."""
    places = random.Random(seed).sample(range(batch.tokens), batch.tokens)
    turned = batch.pick(places)
    expected = batch.owed(subject.run(subject.make(), batch))[:, places]
    return near(expected, turned.owed(subject.run(subject.make(), turned)), tolerance)


# -- cases -------------------------------------------------------------------------------------------------------------


def _cases(plan: Plan, needs: tuple[str, ...] = ()) -> Iterator[Case]:
    """Of text, and of what needs more than that: packed documents, or padding."""
    plan.require_that_it_can("positions", *needs, *(["order"] if plan.subject.causal else []))
    for tokens in plan.sizes_above(2 if needs else 1):
        step = 3 if plan.has(tokens + 3) and not needs else 0  # rows begin at different positions
        batch = two_documents(plan, tokens) if "document" in needs else plan.line(2, tokens, step=step)
        if "padding" in needs:
            absent = tokens // 3
            batch = replace(batch, document=[[PADDING] * absent + [0] * (tokens - absent), [0] * tokens])
        if plan.subject.causal:
            batch = replace(batch, order=[list(range(tokens))] * 2)
        for seed in range(1 if needs else 2):
            yield Case(batch, {"seed": seed, "tolerance": plan.tolerance(tokens + step)})


CHECK = Check(
    number=10,
    name="permutation",
    rule="Permuting tokens together with their positions permutes the outputs in the same way.",
    why="Code that takes positions from a tensor index is right until tokens are sorted, dropped, merged or sharded.",
    pains=(3,),
    remedy="Use only the given positions: no arange over the index.",
    trials=(
        Trial("text", outputs_are_permuted, _cases),
        Trial("packed documents", outputs_are_permuted, _cases, {"needs": ("document",)}),
        Trial("padding", outputs_are_permuted, _cases, {"needs": ("padding",)}),
    ),
)
