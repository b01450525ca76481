"""8. Cache: what comes chunk by chunk is what comes at once."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

import torch

from posenc.conformance.outcome import Outcomes, near
from posenc.conformance.subjects import Batch, Subject, require
from posenc.conformance.trial import Case, Check, Plan, Trial, padded, two_documents


def cached_equals_at_once(subject: Subject, batch: Batch, tolerance: float) -> Outcomes:
    """The outputs of every chunk against those of all tokens at once. Where a subject claims a threshold, its outputs
    may go by the length so far: then those of a chunk against those of all tokens up to its end at once."""
    ends = [batch.tokens] if subject.threshold is None else list(accumulate(batch.chunks))
    with torch.no_grad():  # as text is generated; some caches take no gradients
        came = batch.owed(subject.run(subject.make(), batch))
        at_once = [subject.run(subject.make(), batch.pick(range(end))) for end in ends]
    for start, end, whole in zip([0, *ends], ends, at_once, strict=False):
        expected = batch.pick(range(end)).owed(whole)
        yield f"tokens {start} to {end - 1}", near(expected[:, start:], came[:, start:end], tolerance)


# -- cases -------------------------------------------------------------------------------------------------------------

CHUNKS = (1, 3, 7, 64)


def fed(batch: Batch, size: int) -> Batch:
    """The batch in chunks of one size, the last of what is left."""
    whole, left = divmod(batch.tokens, size)
    return replace(batch, chunks=(size,) * whole + (left,) * (left > 0))


def _schedules(batch: Batch) -> Iterator[Batch]:
    """In chunks of each size that gives several; and a prompt, then token by token."""
    for size in CHUNKS:
        if size < batch.tokens:
            yield fed(batch, size)
    if batch.tokens > 2:
        prompt = (batch.tokens + 1) // 2
        yield replace(batch, chunks=(prompt, *(1,) * (batch.tokens - prompt)))


def _text(plan: Plan, with_positions: bool = False) -> Iterator[Case]:
    plan.require_a_cache()
    if with_positions:
        plan.require_that_it_can("positions")
    large = CHUNKS[-1]
    for tokens in sorted({*plan.sizes, min(large + 3, plan.limit)}):
        start = 5 if with_positions and plan.has(tokens + 8) else 0
        batch = plan.line(2, tokens, start, step=4 if start else 0) if with_positions else plan.text(2, tokens)
        # So many tokens one by one would cost more than they show.
        for chunked in _schedules(batch) if tokens <= max(*plan.sizes, large) else [fed(batch, large)]:
            yield Case(chunked, {"tolerance": plan.tolerance(start + tokens + 4)})


def _ragged(plan: Plan, with_positions: bool = False) -> Iterator[Case]:
    """Prompts of several lengths, padded on the left or on the right, then token by token, or in chunks that cut the
    padding."""
    plan.require_a_cache()
    plan.require_that_it_can("padding")
    if with_positions:
        plan.require_that_it_can("positions")
    require(
        with_positions or plan.subject.takes("padding"),
        "let call take `padding` (rows, tokens), and find positions by itself",
    )
    for tokens in plan.sizes:
        prompt = tokens - max(tokens // 4, 1)
        if prompt < 2:
            continue
        new = [True] * (tokens - prompt)
        paddings = (prompt - 1, 0, 1)
        left = [[False] * n + [True] * (prompt - n) + new for n in paddings]
        right = [[True] * (prompt - n) + [False] * n + new for n in paddings]
        for mask in (left, right):
            batch = padded(plan, mask, with_positions)
            for chunks in ((prompt, *(1,) * len(new)), fed(batch, 3).chunks):
                yield Case(replace(batch, chunks=chunks), {"tolerance": plan.tolerance(tokens)})


def _documents(plan: Plan) -> Iterator[Case]:
    plan.require_a_cache()
    plan.require_that_it_can("document", "positions")
    for tokens in plan.sizes_above(2):
        for chunked in _schedules(two_documents(plan, tokens)):
            yield Case(chunked, {"tolerance": plan.tolerance(tokens)})


CHECK = Check(
    number=8,
    name="cache",
    rule="Fed to a cache in chunks, or a prompt and then token by token, tokens come out as they do all at once.",
    why="A new token that is given the wrong position, or a mask that is aligned at the wrong corner, makes a model "
    "generate by other rules than those it was trained by; it still speaks, only worse.",
    pains=(5, 6),
    remedy="Give new tokens the positions that follow the cached ones, and let their mask end at the lower right.",
    trials=(
        Trial("positions by itself", cached_equals_at_once, _text),
        Trial("with positions", cached_equals_at_once, _text, {"with_positions": True}),
        Trial("ragged, with positions", cached_equals_at_once, _ragged, {"with_positions": True}),
        Trial("ragged, with a mask alone", cached_equals_at_once, _ragged),
        Trial("packed documents", cached_equals_at_once, _documents),
    ),
)
