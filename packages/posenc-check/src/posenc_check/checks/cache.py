"""Checks chunks with a cache against one pass (check 8), also around a length at which a scheme changes (check 13)."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

import torch

from posenc_check.outcome import OUTPUT, Outcomes, near
from posenc_check.subjects import Batch, Subject, require
from posenc_check.trial import Case, Check, Trial, TrialPlan, padded, too_long


def cached_equals_at_once(subject: Subject, batch: Batch, tolerance: float) -> Outcomes:
    """The outputs of every chunk, against those of one pass. Where a subject claims a threshold, its outputs may depend
    on the length so far: then each chunk is compared with one pass over all tokens up to its end."""
    ends = [batch.tokens] if subject.threshold is None else list(accumulate(batch.chunks))
    with torch.no_grad():  # as text is generated; some caches take no gradients
        actual = batch.masked_outputs(subject.run(subject.make(), batch))
        at_once = [subject.run(subject.make(), batch.pick(range(end))) for end in ends]
    for start, end, whole in zip([0, *ends], ends, at_once, strict=False):
        expected = batch.pick(range(end)).masked_outputs(whole)
        yield f"tokens {start} to {end - 1}", near(expected[:, start:], actual[:, start:end], tolerance, OUTPUT)


def long_then_short(subject: Subject, batch: Batch, short: int, tolerance: float) -> Outcomes:
    """A short row gives the same before and after a long one; and the long row gives the same as without the short."""
    return _in_turns(subject, batch.pick(range(min(short, batch.tokens))), batch, tolerance)


def far_then_near(subject: Subject, batch: Batch, afar: int, tolerance: float) -> Outcomes:
    """Tokens give the same before and after they were run far away, twice as far apart; and so do the far ones."""
    return _in_turns(subject, batch, batch.shifted(afar, apart=2), tolerance)


def _in_turns(subject: Subject, first: Batch, second: Batch, tolerance: float) -> Outcomes:
    """Runs the first batch, the second, and the first again; then the second in a new build."""
    made = subject.make()
    expected = subject.run(made, first)
    after_first = subject.run(made, second)
    yield "the first again", near(expected, subject.run(made, first), tolerance)
    yield "the second", near(subject.run(subject.make(), second), after_first, tolerance)


# -- cases -------------------------------------------------------------------------------------------------------------


CHUNKS = (1, 3, 7, 64)


def in_chunks(batch: Batch, size: int) -> Batch:
    """The batch in chunks of one size; the last may be smaller."""
    whole, left = divmod(batch.tokens, size)
    return replace(batch, chunks=(size,) * whole + (left,) * (left > 0))


def one_by_one(batch: Batch, prompt: int) -> Batch:
    """The batch as a prompt of that many tokens, followed by single tokens."""
    return replace(batch, chunks=(prompt, *(1,) * (batch.tokens - prompt)))


def _schedules(batch: Batch) -> Iterator[Batch]:
    """The batch in chunks of each size that gives several; and as a prompt and single tokens."""
    for size in CHUNKS:
        if size < batch.tokens:
            yield in_chunks(batch, size)
    if batch.tokens > 2:
        yield one_by_one(batch, (batch.tokens + 1) // 2)


def _text(plan: TrialPlan, with_positions: bool = False) -> Iterator[Case]:
    plan.require_a_cache()
    if with_positions:
        plan.require_that_it_can("positions")
    large = CHUNKS[-1]
    for tokens in sorted({*plan.sizes, min(large + 3, plan.limit)}):
        start = 5 if with_positions and plan.has(tokens + 8) else 0
        batch = plan.line(2, tokens, start, step=4 if start else 0) if with_positions else plan.text(2, tokens)
        # A long row is fed in large chunks alone: token by token would take too long.
        for chunked in _schedules(batch) if tokens <= max(*plan.sizes, large) else [in_chunks(batch, large)]:
            yield Case(chunked, {"tolerance": plan.tolerance(start + tokens + 4)})


def _ragged(plan: TrialPlan, with_positions: bool = False) -> Iterator[Case]:
    """Prompts padded on the left or right, then token by token, or in chunks that cut the padding."""
    plan.require_a_cache()
    plan.require_that_it_can("padding")
    if with_positions:
        plan.require_that_it_can("positions")
    possible = with_positions or plan.subject.takes("padding")
    require(possible, "let call take `padding` (rows, tokens), and find positions by itself")
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
            for chunked in (one_by_one(batch, prompt), in_chunks(batch, 3)):
                yield Case(chunked, {"tolerance": plan.tolerance(tokens)})


SHORT = 5
STEPS = 3  # tokens that are generated across the threshold
AFAR = (0, 1000, 100_000)


def _across(plan: TrialPlan, with_positions: bool = False) -> Iterator[Case]:
    threshold = plan.subject.threshold or 0
    require(threshold, "claim `threshold=N` if it does something else for longer rows")
    plan.require_a_cache()
    if with_positions:
        plan.require_that_it_can("positions")
    else:
        require(threshold < plan.limit, too_long(plan))
    for length in (threshold - 1, threshold, threshold + 1):
        if length < 2 or not plan.has(length - 1):
            continue
        # Where positions are given, the last few tokens before a large threshold are enough.
        tokens = min(length, max(plan.sizes)) if with_positions else length
        batch = plan.line(2, tokens, length - tokens) if with_positions else plan.text(2, tokens)
        yield Case(one_by_one(batch, max(tokens - STEPS, 1)), {"tolerance": plan.tolerance(length)})


def _long(plan: TrialPlan) -> Iterator[Case]:
    limit, threshold = plan.limit, plan.subject.threshold
    require(threshold is None or threshold < limit, too_long(plan))
    for tokens in dict.fromkeys([min((threshold or max(plan.sizes)) + 1, limit), limit]):
        short = min(plan.room(SHORT), tokens - 1)
        if short:
            # Phases, and so their roundings, are the same both times.
            yield Case(plan.text(1, tokens), {"short": short, "tolerance": plan.tolerance()})


def _far(plan: TrialPlan) -> Iterator[Case]:
    plan.require_that_it_can("positions")
    tokens = min(SHORT, (plan.limit + 1) // 2)
    for afar in sorted({*AFAR, plan.subject.threshold or 0}):
        if tokens > 1 and plan.has(2 * (tokens - 1) + afar):
            yield Case(plan.line(2, tokens), {"afar": afar, "tolerance": plan.tolerance()})


CACHE_CHECK = Check(
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
    ),
)

THRESHOLD_CHECK = Check(
    number=13,
    name="threshold",
    rule="Around the length at which a scheme changes its behaviour, a cache gives the result of one pass; and a long "
    "input does not affect later short ones.",
    why="Frequencies that depend on the length disagree with keys cached at a shorter length; and those of a long "
    "request may be reused for short ones.",
    pains=(6,),
    remedy="Choose frequencies by each row's own length, store keys unrotated where they change, and keep nothing "
    "between calls.",
    trials=(
        Trial("cached across it", cached_equals_at_once, _across, claims=("threshold",)),
        Trial(
            "cached across it, with positions",
            cached_equals_at_once,
            _across,
            {"with_positions": True},
            claims=("threshold",),
        ),
        Trial("long, then short", long_then_short, _long, claims=("threshold",)),
        Trial("far, then near", far_then_near, _far, claims=("threshold",)),
    ),
)
