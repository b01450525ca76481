"""Checks that outputs computed chunk by chunk with a cache equal those of one pass (check 8)."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from posenc.tools.check.calls import instead
from posenc.tools.check.layers import Layer
from posenc.tools.check.outcome import Outcomes, near
from posenc.tools.check.subjects import Batch, Subject, require
from posenc.tools.check.trial import Case, Check, Plan, Trial, padded, two_documents


def cached_equals_at_once(subject: Subject, batch: Batch, tolerance: float) -> Outcomes:
    """The outputs of every chunk, against those of one pass. Where a subject claims a threshold, its outputs may depend
    on the length so far: then each chunk is compared with one pass over all tokens up to its end."""
    ends = [batch.tokens] if subject.threshold is None else list(accumulate(batch.chunks))
    with torch.no_grad():  # as text is generated; some caches take no gradients
        came = batch.owed(subject.run(subject.make(), batch))
        at_once = [subject.run(subject.make(), batch.pick(range(end))) for end in ends]
    for start, end, whole in zip([0, *ends], ends, at_once, strict=False):
        expected = batch.pick(range(end)).owed(whole)
        yield f"tokens {start} to {end - 1}", near(expected[:, start:], came[:, start:end], tolerance)


def told_later_equals_at_once(subject: Subject, batch: Batch, tolerance: float) -> Outcomes:
    """As `cached_equals_at_once`, where positions are given for the new tokens alone, and the first chunk counts its
    own, which are the same."""
    require(batch.positions is not None, "nothing to do: the batch has no positions")

    def call(made: Any, x: Tensor, **given: Any) -> Any:
        if given.get("cache") is None:
            given.pop("positions", None)
        return subject.call(made, x, **given)

    yield from cached_equals_at_once(instead(subject, call), batch, tolerance)


# -- cases -------------------------------------------------------------------------------------------------------------

CHUNKS = (1, 3, 7, 64)


def fed(batch: Batch, size: int) -> Batch:
    """The batch in chunks of one size; the last may be smaller."""
    whole, left = divmod(batch.tokens, size)
    return replace(batch, chunks=(size,) * whole + (left,) * (left > 0))


def decoded(batch: Batch, prompt: int) -> Batch:
    """The batch as a prompt of that many tokens, followed by single tokens."""
    return replace(batch, chunks=(prompt, *(1,) * (batch.tokens - prompt)))


def _schedules(batch: Batch) -> Iterator[Batch]:
    """The batch in chunks of each size that gives several; and as a prompt and single tokens."""
    for size in CHUNKS:
        if size < batch.tokens:
            yield fed(batch, size)
    if batch.tokens > 2:
        yield decoded(batch, (batch.tokens + 1) // 2)


def _text(plan: Plan, with_positions: bool = False) -> Iterator[Case]:
    plan.require_a_cache()
    if with_positions:
        plan.require_that_it_can("positions")
    large = CHUNKS[-1]
    for tokens in sorted({*plan.sizes, min(large + 3, plan.limit)}):
        start = 5 if with_positions and plan.has(tokens + 8) else 0
        batch = plan.line(2, tokens, start, step=4 if start else 0) if with_positions else plan.text(2, tokens)
        # A long row is fed in large chunks alone: token by token would take too long.
        for chunked in _schedules(batch) if tokens <= max(*plan.sizes, large) else [fed(batch, large)]:
            yield Case(chunked, {"tolerance": plan.tolerance(start + tokens + 4)})


def _broken(plan: Plan) -> Iterator[Case]:
    """Positions that jump: between chunks, within them, and where a prompt ends."""
    plan.require_a_cache()
    plan.require_that_it_can("positions")
    for tokens in plan.sizes_above(2)[:2]:
        if plan.has(tokens + 2):
            batch = plan.broken(2, tokens)
            for first in (1 + tokens // 3, 1 + 2 * tokens // 3):
                yield Case(decoded(batch, first), {"tolerance": plan.tolerance(tokens + 2)})
            yield Case(fed(batch, 3), {"tolerance": plan.tolerance(tokens + 2)})


def _told_later(plan: Plan) -> Iterator[Case]:
    plan.require_a_cache()
    plan.require_that_it_can("positions")
    require(isinstance(plan.subject, Layer), "nothing to do: the positions of all keys are given at every step")
    require(not plan.subject.needs("positions"), "nothing to do: call needs positions, and finds none by itself")
    for tokens in plan.sizes_above(2)[:2]:
        yield Case(decoded(plan.line(2, tokens), (tokens + 1) // 2), {"tolerance": plan.tolerance(tokens)})


def _past_the_window(plan: Plan) -> Iterator[Case]:
    """Rows a few tokens longer than the window, in all layers, so that the first tokens leave it."""
    plan.require_a_cache()
    window = plan.subject.window
    require(window, "claim `window=N` if a token sees no more than that many tokens, with itself")
    require(isinstance(window, int), "nothing to do: the window is one of a grid")
    assert isinstance(window, int)
    tokens = plan.subject.sinks + plan.subject.depth * window + 4
    require(
        tokens <= plan.limit,
        f"build it with a smaller window: one of {window} needs rows of {tokens} tokens, which are too long",
    )
    batch = plan.text(2, tokens)
    for chunked in (decoded(batch, max(tokens - 6, 1)), decoded(batch, 1), fed(batch, max(window - 1, 2))):
        yield Case(chunked, {"tolerance": plan.tolerance(tokens)})


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
            for chunked in (decoded(batch, prompt), fed(batch, 3)):
                yield Case(chunked, {"tolerance": plan.tolerance(tokens)})


def _documents(plan: Plan) -> Iterator[Case]:
    plan.require_a_cache()
    plan.require_that_it_can("document", "positions")
    for tokens in plan.sizes_above(2):
        for chunked in _schedules(two_documents(plan, tokens)):
            yield Case(chunked, {"tolerance": plan.tolerance(tokens)})


CHECK = Check(
    number=8,
    name="cache",
    rule="With a cache, in chunks or as a prompt and then token by token, outputs equal those of one pass.",
    why="With wrong positions of new tokens, or a mask aligned to the wrong corner, generation differs from training; "
    "the text is still plausible, but worse.",
    pains=(5, 6),
    remedy="Give new tokens the positions that follow the cached ones, and let their mask end at the lower right.",
    trials=(
        Trial("positions by itself", cached_equals_at_once, _text),
        Trial("with positions", cached_equals_at_once, _text, {"with_positions": True}),
        Trial("ragged, with positions", cached_equals_at_once, _ragged, {"with_positions": True}),
        Trial("ragged, with a mask alone", cached_equals_at_once, _ragged),
        Trial("with gaps", cached_equals_at_once, _broken),
        Trial("positions told in decoding alone", told_later_equals_at_once, _told_later),
        Trial("past the window", cached_equals_at_once, _past_the_window, claims=("window",)),
        Trial("packed documents", cached_equals_at_once, _documents),
    ),
)
