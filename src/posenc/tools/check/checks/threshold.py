"""Checks both sides of the length at which a scheme changes its behaviour (check 13)."""

from collections.abc import Iterator

from posenc.tools.check.checks.cache import cached_equals_at_once, decoded
from posenc.tools.check.outcome import Outcomes, near
from posenc.tools.check.subjects import Batch, Subject, require
from posenc.tools.check.trial import Case, Check, Plan, Trial, too_long


def long_then_short(subject: Subject, batch: Batch, short: int, tolerance: float) -> Outcomes:
    """A short row gives the same before and after a long one; and the long row gives the same as without the short."""
    return _in_turns(subject, batch.pick(range(min(short, batch.tokens))), batch, tolerance)


def far_then_near(subject: Subject, batch: Batch, afar: int, tolerance: float) -> Outcomes:
    """Tokens give the same before and after they were run far away; and the far ones give the same as without the near.
    They are also twice as far apart, since a relative scheme does not see a shift of all."""
    return _in_turns(subject, batch, batch.moved(afar, apart=2), tolerance)


def _in_turns(subject: Subject, first: Batch, second: Batch, tolerance: float) -> Outcomes:
    """Runs the first batch, the second, and the first again; then the second in a new build."""
    made = subject.make()
    expected = subject.run(made, first)
    after_first = subject.run(made, second)
    yield "the first again", near(expected, subject.run(made, first), tolerance)
    yield "the second", near(subject.run(subject.make(), second), after_first, tolerance)


# -- cases -------------------------------------------------------------------------------------------------------------

SHORT = 5
STEPS = 3  # tokens that are generated across the threshold
AFAR = (0, 1000, 100_000)


def _across(plan: Plan, with_positions: bool = False) -> Iterator[Case]:
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
        yield Case(decoded(batch, max(tokens - STEPS, 1)), {"tolerance": plan.tolerance(length)})


def _long(plan: Plan) -> Iterator[Case]:
    limit, threshold = plan.limit, plan.subject.threshold
    require(threshold is None or threshold < limit, too_long(plan))
    for tokens in dict.fromkeys([min((threshold or max(plan.sizes)) + 1, limit), limit]):
        short = min(plan.room(SHORT), tokens - 1)
        if short:
            # Phases, and so their roundings, are the same both times.
            yield Case(plan.text(1, tokens), {"short": short, "tolerance": plan.tolerance()})


def _far(plan: Plan) -> Iterator[Case]:
    plan.require_that_it_can("positions")
    tokens = min(SHORT, (plan.limit + 1) // 2)
    for afar in sorted({*AFAR, plan.subject.threshold or 0}):
        if tokens > 1 and plan.has(2 * (tokens - 1) + afar):
            yield Case(plan.line(2, tokens), {"afar": afar, "tolerance": plan.tolerance()})


CHECK = Check(
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
