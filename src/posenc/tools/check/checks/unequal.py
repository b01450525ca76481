"""Checks queries that are fewer than the keys (check 9)."""

from collections.abc import Iterator
from dataclasses import replace

from posenc.tools.check.outcome import Outcome, near
from posenc.tools.check.subjects import Batch, Subject, require
from posenc.tools.check.trial import Case, Check, Plan, Trial


def queries_equal_rows_of_the_square(subject: Subject, batch: Batch, tolerance: float) -> Outcome:
    """Some tokens as queries give the same as where all tokens are queries."""
    require(batch.queries, "nothing to do: there are no queries")
    square = subject.run(subject.make(), replace(batch, queries=None))
    return near(square[:, list(batch.queries or ())], subject.run(subject.make(), batch), tolerance)


# -- cases -------------------------------------------------------------------------------------------------------------

AFAR = 50  # how far from the rest some of the keys are


def _last(plan: Plan, with_positions: bool = False) -> Iterator[Case]:
    plan.require_that_it_can("queries")
    if with_positions:
        plan.require_that_it_can("positions")
    else:
        require(
            not plan.subject.takes("memory"),
            "nothing to do: call takes a memory, and where x stands in it must be given",
        )
    for tokens in plan.sizes:
        for start in (0, 7) if with_positions and plan.has(tokens + 8) else (0,):
            for count in sorted({1, (tokens + 1) // 2, tokens - 1} - {0, tokens}):
                batch = plan.line(2, tokens, start, step=2 if start else 0) if with_positions else plan.text(2, tokens)
                last = replace(batch, queries=tuple(range(tokens - count, tokens)))
                yield Case(last, {"tolerance": plan.tolerance(start + tokens + 2)})


def _any(plan: Plan) -> Iterator[Case]:
    plan.require_any_queries()
    for tokens in plan.sizes_above(1):
        for count in sorted({1, (tokens + 1) // 2, tokens}):
            for afar in (0, AFAR) if plan.has(tokens + AFAR + 3) else (0,):
                batch = plan.line(2, tokens, step=3 if afar else 0)
                # The second half is moved away, so that positions are not consecutive.
                half, moved = tokens // 2, batch.moved(afar).positions or []
                positions = [near[:half] + far[half:] for near, far in zip(batch.positions or [], moved, strict=True)]
                queries = tuple(plan.chance.sample(range(tokens), count))
                tolerance = plan.tolerance(tokens + afar + 3)
                yield Case(replace(batch, positions=positions, queries=queries), {"tolerance": tolerance})


CHECK = Check(
    number=9,
    name="unequal lengths",
    rule="Fewer queries than keys, the last or any of them, give the outputs that they have among all queries.",
    why="Indices that are right in a square are wrong in a rectangle: in decoding, in cross-attention, in a block.",
    pains=(5, 11, 18),
    remedy="Align queries with the last of the keys, and take sizes from queries and keys each by itself.",
    trials=(
        Trial("the last of the keys", queries_equal_rows_of_the_square, _last),
        Trial(
            "the last of the keys, with positions", queries_equal_rows_of_the_square, _last, {"with_positions": True}
        ),
        Trial("any of the keys", queries_equal_rows_of_the_square, _any),
    ),
)
