"""Checks some tokens as queries (check 9), tokens in another order (check 10), and shards of a text (check 12)."""

import random
from collections.abc import Iterator
from dataclasses import replace

import torch

from posenc_check.outcome import Outcome, Outcomes, near
from posenc_check.subjects import Batch, Subject, applies
from posenc_check.trial import Case, Check, Trial, TrialPlan


def queries_equal_rows(subject: Subject, batch: Batch, tolerance: float) -> Outcome:
    """Some tokens as queries give the same as where all tokens are queries."""
    applies(batch.queries, "there are no queries")
    square = subject.run(subject.make(), replace(batch, queries=None))
    return near(square[:, list(batch.queries or ())], subject.run(subject.make(), batch), tolerance)


def outputs_are_permuted(subject: Subject, batch: Batch, seed: int, tolerance: float) -> Outcome:
    """Tokens in another order, with their positions, documents and order, give their outputs in that order."""
    places = random.Random(seed).sample(range(batch.tokens), batch.tokens)
    turned = batch.pick(places)
    expected = batch.masked_outputs(subject.run(subject.make(), batch))[:, places]
    return near(expected, turned.masked_outputs(subject.run(subject.make(), turned)), tolerance)


def shards(batch: Batch, ranks: int, order: str) -> list[list[int]]:
    """The tokens of each rank that has some: a run of them, or for "zigzag" the runs r and 2 ranks - 1 - r of twice
    as many."""
    parts = ranks if order == "contiguous" else 2 * ranks
    runs = [[*range(n * batch.tokens // parts, (n + 1) * batch.tokens // parts)] for n in range(parts)]
    held = runs if parts == ranks else [runs[r] + runs[parts - 1 - r] for r in range(ranks)]
    return [tokens for tokens in held if tokens]


def merged_shards_equal_all(subject: Subject, batch: Batch, ranks: int, order: str, tolerance: float) -> Outcomes:
    """The queries of each rank attend to the keys of each in turn, and results are merged by log-sum-exp."""
    whole, _ = subject.partial(subject.make(), batch)
    made = subject.make()
    for rank, queries in enumerate(sharded := shards(batch, ranks, order)):
        shard = replace(batch, queries=tuple(queries))
        parts = [subject.partial(made, replace(shard, keys=tuple(keys))) for keys in sharded]
        weights = torch.stack([lse for _, lse in parts]).softmax(0)[..., None]
        # A part in which nothing is visible has no weight, and its output may be anything.
        out = sum(torch.where(w > 0, w * out, 0.0) for w, (out, _) in zip(weights, parts, strict=True))
        yield f"rank {rank}", near(whole[:, :, queries], torch.as_tensor(out), tolerance)


def query_shards_equal_rows(subject: Subject, batch: Batch, ranks: int, order: str, tolerance: float) -> Outcomes:
    """The queries of each rank attend to all keys."""
    whole = subject.run(subject.make(), batch)
    made = subject.make()
    for rank, queries in enumerate(shards(batch, ranks, order)):
        actual = subject.run(made, replace(batch, queries=tuple(queries)))
        yield f"rank {rank}", near(whole[:, queries], actual, tolerance)


# -- cases -------------------------------------------------------------------------------------------------------------


AFAR = 50  # how far from the rest some of the keys are


def _last(plan: TrialPlan, with_positions: bool = False) -> Iterator[Case]:
    plan.require_that_it_can("queries")
    if with_positions:
        plan.require_that_it_can("positions")
    else:
        applies(not plan.subject.takes("memory"), "call takes a memory, and where x stands in it must be given")
    for tokens in plan.sizes:
        for start in (0, 7) if with_positions and plan.has(tokens + 8) else (0,):
            for count in sorted({1, (tokens + 1) // 2, tokens - 1} - {0, tokens}):
                batch = plan.line(2, tokens, start, step=2 if start else 0) if with_positions else plan.text(2, tokens)
                last = replace(batch, queries=tuple(range(tokens - count, tokens)))
                yield Case(last, {"tolerance": plan.tolerance(start + tokens + 2)})


def _any(plan: TrialPlan) -> Iterator[Case]:
    plan.require_any_queries()
    for tokens in plan.sizes_above(1):
        for count in sorted({1, (tokens + 1) // 2, tokens}):
            for afar in (0, AFAR) if plan.has(tokens + AFAR + 3) else (0,):
                batch = plan.line(2, tokens, step=3 if afar else 0)
                # The second half is moved away, so that positions are not consecutive.
                half, moved = tokens // 2, batch.shifted(afar).positions or []
                positions = [near[:half] + far[half:] for near, far in zip(batch.positions or [], moved, strict=True)]
                queries = tuple(plan.chance.sample(range(tokens), count))
                tolerance = plan.tolerance(tokens + afar + 3)
                yield Case(replace(batch, positions=positions, queries=queries), {"tolerance": tolerance})


def _cases(plan: TrialPlan) -> Iterator[Case]:
    plan.require_that_it_can("positions", *(["order"] if plan.subject.causal else []))
    for tokens in plan.sizes_above(1):
        step = 3 if plan.has(tokens + 3) else 0  # rows begin at different positions
        batch = plan.line(2, tokens, step=step)
        if plan.subject.causal:
            batch = replace(batch, order=[list(range(tokens))] * 2)
        for seed in range(2):
            yield Case(batch, {"seed": seed, "tolerance": plan.tolerance(tokens + step)})


def _shards(plan: TrialPlan, lse: bool = False, order: str = "contiguous") -> Iterator[Case]:
    if lse:
        plan.require_that_it_can("lse")
    if order == "zigzag" or not plan.subject.takes("offset"):  # a run of tokens has a first one
        plan.require_any_queries()
    for tokens in plan.sizes_above(2):
        for ranks in (2, 3):
            values = {"ranks": ranks, "order": order, "tolerance": plan.tolerance(tokens)}
            yield Case(plan.line(2, tokens), values)


UNEQUAL_CHECK = Check(
    number=9,
    name="unequal lengths",
    rule="Fewer queries than keys, the last or any of them, give the outputs that they have among all queries.",
    why="Indices that are right in a square are wrong in a rectangle: in decoding, in cross-attention, in a block.",
    pains=(5, 11, 18),
    remedy="Align queries with the last of the keys, and take sizes from queries and keys each by itself.",
    trials=(
        Trial("the last of the keys", queries_equal_rows, _last),
        Trial("the last of the keys, with positions", queries_equal_rows, _last, {"with_positions": True}),
        Trial("any of the keys", queries_equal_rows, _any),
    ),
)

PERMUTATION_CHECK = Check(
    number=10,
    name="permutation",
    rule="Permuting tokens together with their positions permutes the outputs in the same way.",
    why="Code that takes positions from a tensor index is right until tokens are sorted, dropped, merged or sharded.",
    pains=(3,),
    remedy="Use only the given positions: no arange over the index.",
    trials=(Trial("text", outputs_are_permuted, _cases),),
)

SHARDING_CHECK = Check(
    number=12,
    name="sharding",
    rule="Shards of a sequence, with their positions in the whole, together give the output of the whole.",
    why="Under context parallelism, a rank that counts its own tokens from 0 has the right shapes and wrong distances.",
    pains=(16, 17),
    remedy="Give each shard the positions of its tokens in the whole sequence, and heads their index among all heads.",
    trials=(
        Trial("contiguous, merged by log-sum-exp", merged_shards_equal_all, _shards, {"lse": True}),
        Trial("zigzag, merged by log-sum-exp", merged_shards_equal_all, _shards, {"lse": True, "order": "zigzag"}),
        Trial("contiguous queries", query_shards_equal_rows, _shards),
        Trial("zigzag queries", query_shards_equal_rows, _shards, {"order": "zigzag"}),
    ),
)
