"""Checks that shards of a sequence, each with its global positions, together give the whole (check 12)."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from posenc.tools.check.outcome import Outcomes, near
from posenc.tools.check.subjects import Batch, Subject, require
from posenc.tools.check.trial import Case, Check, Plan, Trial, two_documents


def shards(batch: Batch, ranks: int, zigzag: bool) -> list[list[int]]:
    """The tokens of each rank: consecutive ones; or, with ``zigzag``, parts r and 2 ranks - 1 - r of each document cut
    into 2 ranks parts, which balances the work of causal attention: [0, 3, 4, 7] and [1, 2, 5, 6] for two documents of
    four tokens."""
    of = batch.document[0] if batch.document and zigzag else [0] * batch.tokens
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for document in dict.fromkeys(of):
        tokens = [n for n, d in enumerate(of) if d == document]
        parts = 2 * ranks if zigzag else ranks
        for part in range(parts):
            share = tokens[part * len(tokens) // parts : (part + 1) * len(tokens) // parts]
            shares[min(part, parts - 1 - part) if zigzag else part] += share
    return [share for share in shares if share]


def merged_shards_equal_the_whole(
    subject: Subject, batch: Batch, ranks: int, zigzag: bool, tolerance: float
) -> Outcomes:
    """The queries of each rank attend to the keys of one rank after the other; the results are merged by
    log-sum-exp."""
    whole, _ = subject.partial(subject.make(), batch)
    made = subject.make()
    for rank, queries in enumerate(sharded := shards(batch, ranks, zigzag)):
        shard = replace(batch, queries=tuple(queries))
        parts = [subject.partial(made, replace(shard, keys=tuple(keys))) for keys in sharded]
        weights = torch.stack([lse for _, lse in parts]).softmax(0)[..., None]
        # A part in which nothing is visible has no weight, and its output may be anything.
        out = sum(torch.where(w > 0, w * out, 0.0) for w, (out, _) in zip(weights, parts, strict=True))
        yield f"rank {rank}", near(whole[:, :, queries], torch.as_tensor(out), tolerance)


def query_shards_equal_rows(subject: Subject, batch: Batch, ranks: int, zigzag: bool, tolerance: float) -> Outcomes:
    """The queries of each rank attend to all keys."""
    whole = subject.run(subject.make(), batch)
    made = subject.make()
    for rank, queries in enumerate(shards(batch, ranks, zigzag)):
        came = subject.run(made, replace(batch, queries=tuple(queries)))
        yield f"rank {rank}", near(whole[:, queries], came, tolerance)


# -- cases -------------------------------------------------------------------------------------------------------------


def _cases(plan: Plan, lse: bool = False, zigzag: bool = False, documents: bool = False) -> Iterator[Case]:
    if lse:
        plan.require_that_it_can("lse")
    if zigzag or not plan.subject.takes("offset"):  # a run of tokens has a first one
        plan.require_any_queries()
    if documents:
        require(not plan.subject.takes("memory"), "nothing to do: call takes a memory, and is not given its documents")
        plan.require_that_it_can("document")
    for tokens in plan.sizes_above(2):
        batch = two_documents(plan, tokens) if documents else plan.line(2, tokens)
        for ranks in (2, 3):
            yield Case(batch, {"ranks": ranks, "zigzag": zigzag, "tolerance": plan.tolerance(tokens)})


CHECK = Check(
    number=12,
    name="sharding",
    rule="Shards of a sequence, with their positions in the whole, together give the output of the whole.",
    why="Under context parallelism, a rank that counts its own tokens from 0 has the right shapes and wrong distances.",
    pains=(16, 17),
    remedy="Give each shard the positions of its tokens in the whole sequence, and heads their index among all heads.",
    trials=(
        Trial("contiguous, merged by log-sum-exp", merged_shards_equal_the_whole, _cases, {"lse": True}),
        Trial("zigzag, merged by log-sum-exp", merged_shards_equal_the_whole, _cases, {"lse": True, "zigzag": True}),
        Trial(
            "zigzag of documents, merged by log-sum-exp",
            merged_shards_equal_the_whole,
            _cases,
            {"lse": True, "zigzag": True, "documents": True},
        ),
        Trial("contiguous queries", query_shards_equal_rows, _cases),
        Trial("zigzag queries", query_shards_equal_rows, _cases, {"zigzag": True}),
        Trial("zigzag queries of documents", query_shards_equal_rows, _cases, {"zigzag": True, "documents": True}),
    ),
)
