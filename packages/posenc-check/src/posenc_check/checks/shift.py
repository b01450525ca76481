"""Checks what shifting all positions changes (check 6), also along the index, where call takes no positions."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc_check.calls import instead
from posenc_check.captured import NO_SCORES, captured_in, of_all_tokens, of_one_token
from posenc_check.outcome import Outcome, near
from posenc_check.subjects import Attention, Batch, Bias, Rotary, Subject, applies, require
from posenc_check.trial import Case, Check, Plan, Trial, too_long

GROWS = 16  # how much faster than the amount a rounding of phases may grow, by chance


def moving_all_changes_nothing(subject: Subject, batch: Batch, by: int, tolerance: float) -> Outcome:
    """The outputs at positions p and p + by are the same, and moving only some of the tokens changes them."""
    expected = subject.run(subject.make(), batch)
    outcome = near(expected, subject.run(subject.make(), batch.moved(by)), tolerance)
    if outcome.ok and not subject.order_free and subject.can("positions") and batch.positions is not None:
        away = batch.moved(1).positions or []  # by no more, since distances may have an end
        apart = Batch(batch.ids, [kept[:1] + row[1:] for kept, row in zip(batch.positions, away, strict=True)])
        seen = not near(expected, subject.run(subject.make(), apart), tolerance).ok
        require(
            seen,
            "give it a `jitter`, for its outputs do not go by positions: moving all but the first by 1 changes nothing",
        )
    return outcome


def moving_some_changes_something(subject: Subject, batch: Batch, by: list[int], tolerances: list[float]) -> Outcome:
    """Moving half of the tokens, or one onto the token before it, changes the outputs, perhaps only with jitter."""
    half = batch.tokens // 2
    applies(half, "there is one token, and moving it moves all")
    rows = batch.positions or []
    away = [batch.moved(n).positions or [] for n in by]
    moved = [[row[:half] + far[half:] for row, far in zip(rows, there, strict=True)] for there in away]
    moved.append([row[:half] + row[half - 1 : half] + row[half + 1 :] for row in rows])
    for jitter in (subject.jitter, max(subject.jitter, 0.5)):
        tried = replace(subject, jitter=jitter)
        expected = tried.run(tried.make(), batch)
        for positions, tolerance in zip(moved, (*tolerances, tolerances[0]), strict=True):
            came = tried.run(tried.make(), replace(batch, positions=positions))
            if not near(expected, came, tolerance).ok:
                return Outcome(True, "a change", "a change")
    return Outcome(
        False,
        "outputs that change when some of the tokens are moved to other positions, away from the rest",
        "the same: the positions that it is given change nothing. If that is meant, claim order_free=True",
    )


def moving_all_changes_something(subject: Subject, batch: Batch, by: list[int], tolerances: list[float]) -> Outcome:
    """The outputs at p and p + by differ by more than rounding, for one amount at least, perhaps with jitter."""
    several = all(len(set(row)) > 1 for row in batch.ids)
    applies(several, "attention to one and the same token gives the same from everywhere")
    changes: list[float] = []
    for amount, most in zip(by, tolerances, strict=True):  # further only if needed, since positions may have an end
        change = _change(subject, batch, amount)
        if isinstance(change, Outcome):
            return change
        grown = [GROWS * earlier * amount / n for n, earlier in zip(by, changes, strict=False)]
        most = min(most, max(tolerances[0], *grown)) if grown else most
        changes.append(change)
        if change > most:
            return Outcome(True, "a change", "a change")
        if not subject.jitter and amount == by[0]:
            moved = _change(replace(subject, jitter=0.1), batch, amount)
            if not isinstance(moved, Outcome) and moved > 100 * most:  # which is no rounding of larger outputs
                return Outcome(True, "a change", "a change")
    sizes = ", ".join(f"{c:.2g} ({most:.2g})" for c, most in zip(changes, tolerances, strict=True))
    return Outcome(
        False,
        f"outputs that change when all positions are moved by {' or '.join(map(str, by))}",
        f"outputs that change by no more than rounding does (in brackets): {sizes}",
    )


def _change(subject: Subject, batch: Batch, by: int) -> float | Outcome:
    """How far the outputs move; or what is wrong with them."""
    expected, came = (subject.run(subject.make(), there) for there in (batch, batch.moved(by)))
    if came.shape != expected.shape or not came.isfinite().all():
        return near(expected, came, 0.0)
    return float((came - expected).abs().max())


BLURS = {"conv1d", "conv2d", "lstm", "gru", "rnn_tanh", "rnn_relu"}  # operations that mix neighbouring tokens
ROUNDING = 64 * torch.finfo(torch.float32).eps  # of scores, within which phases and norms are often of float32
OF_ALL = 1e-4  # of all that scores differ by
HIDES = 50.0  # a score this far below the highest of its row has no weight
AT_THE_ENDS = 12  # tokens of a long row that are compared, at each end
FEWEST = 4  # tokens that must be alike for a comparison to mean anything


def weights_by_values(subject: Attention, made: Any, batch: Batch) -> Tensor:
    """The attention weights, (heads, queries, keys): the norm of outputs where one key alone has a value."""
    outs: list[Tensor] = []

    def call(made: Any, query: Tensor, key: Tensor, value: Tensor, **given: Any) -> Any:
        for n in range(-1, key.size(2)):
            shown = torch.zeros_like(value)
            shown[:, :, n : n + 1] = 1.0  # none for -1
            outs.append(subject.call(made, query, key, shown, **given).detach().double())
        return outs[0]

    with torch.no_grad():
        instead(subject, call).run(made, batch)
    nothing, *each = (out[0] for out in outs)
    added = float(nothing.abs().max())
    applies(not added or subject.dtype == torch.float64, "in float32, what is added to values hides small weights")
    weights = torch.stack([(out - nothing).norm(dim=-1) for out in each], -1)
    return weights.masked_fill(weights < 1e-8 * added, 0.0)


class Seen(NamedTuple):
    """The scores (heads, queries, keys) of an attention for a row of one repeated token, -inf without weight, and the
    tokens whose inputs to it are ``alike``, or ``told_apart``: nearly all differ, as much far from the edge as near."""

    name: str
    scores: Tensor
    alike: list[int]
    told_apart: bool = False


def scores_of_one_token(subject: Subject, made: Any, batch: Batch) -> list[Seen]:
    """The scores of every attention in a run of one repeated token. NotApplicableError where none are captured."""
    batch = of_one_token(batch).pick(range(batch.tokens), 0)
    if isinstance(subject, Attention):
        scores = weights_by_values(subject, made, batch).log()
        return [Seen("attention", _hidden(scores), list(range(batch.tokens)))]
    all_of_it = captured_in(subject, made, batch)
    captured = of_all_tokens(all_of_it, batch)
    require(captured, NO_SCORES)
    applies(not all_of_it.called & BLURS, "a convolution, or a pass over tokens, comes before the scores")
    another = captured_in(subject, made, replace(batch, ids=[[2] * batch.tokens]))
    of_places = [x for inputs in another.inputs for x in inputs]  # where they are the same
    of_tokens = [[x for x in inputs if not any(torch.equal(x, y) for y in of_places)] for _, inputs in captured]
    # Before the first attention there may be no linear layer, as in this package's own: tokens are as they came.
    alike = [_alike(inputs, batch.tokens, n > 0) for n, inputs in enumerate(of_tokens)]
    return [Seen(f"attention {n}", _hidden(s[0]), *alike[n]) for n, (s, _) in enumerate(captured)]


def _hidden(scores: Tensor) -> Tensor:
    return scores.masked_fill(scores < scores.amax(-1, keepdim=True) - HIDES, -torch.inf)


def _alike(inputs: list[Tensor], tokens: int, later: bool) -> tuple[list[int], bool]:
    """The tokens whose inputs to linear layers equal those of the middle token, and whether all tokens are told apart.
    Without captured inputs: no token in a ``later`` attention, and all of them in the first. ``inputs`` are those that
    depend on the tokens; the table of Transformer-XL, which has as many rows, does not."""
    flat = [x.flatten(0, -2).double() for x in inputs if x.shape[:-1].numel() == tokens]
    given = [x for x in flat if x.abs().max()]
    if not given:
        return [] if later or inputs else list(range(tokens)), False
    middle = tokens // 2
    same = torch.stack([(x - x[middle]).abs().amax(-1) <= ROUNDING * x.abs().max() for x in given]).all(0)
    steps = given[0].diff(dim=0).norm(dim=-1)
    return same.nonzero().flatten().tolist(), bool(same.sum() == 1 and steps[middle] > steps[0] / 2)


def by_the_distance_alone(
    scores: Tensor, tokens: list[int], eps: float, longer: Tensor | None = None, *, up_to_a_factor: bool = True
) -> tuple[str, Outcome] | None:
    """None where scores[q, k] - scores[q, k'] depends on k - q and k' - q alone; else where it does not. With the
    scores of a ``longer`` row: None where they are the same there. A factor of the whole row, such as a temperature
    that depends on the length, is ignored unless ``up_to_a_factor`` is False."""
    seen = scores[scores.isfinite()]
    if not seen.numel():
        return None
    tolerance = OF_ALL * float(seen.max() - seen.min()) + eps * max(float(seen.abs().max()), 1.0)
    for one, other in combinations(tokens, 2) if longer is None else zip(tokens, tokens, strict=True):
        ways = [way for k in tokens if (way := k - one) + other in tokens]
        here = scores[:, one, [one + way for way in ways]]
        there = (scores if longer is None else longer)[:, other, [other + way for way in ways]]
        for head in range(len(scores)):
            both = here[head].isfinite() & there[head].isfinite()
            if both.sum() < 2:
                continue
            first, second = (x[head][both] - x[head][both][0] for x in (here, there))
            scaled = up_to_a_factor and second.norm() > tolerance < first.norm()
            factor = float(first.norm() / second.norm()) if scaled else 1.0
            if not near(first, second, tolerance).ok and not near(first, factor * second, tolerance).ok:
                worst = int((first - second).abs().argmax())
                a, b = (ways[int(n)] for n in both.nonzero()[[0, worst], 0])
                said = f"head {head}: how much further token {one} scores the token {b:+} away than the one {a:+} away"
                where = f"for token {other}" if longer is None else "in a row of one more token"
                return said, Outcome(False, f"{float(first[worst]):.6g}", f"{float(second[worst]):.6g} {where}")
    return None


def scores_go_by_the_distance(subject: Subject, batch: Batch) -> Outcome:
    """A row of one repeated token: scores of any two queries at the same distances differ by a constant."""
    made, eps, tried = subject.make(), max(ROUNDING, 8 * subject.eps(torch.float32)), False
    front, room = max(subject.sinks, subject.registers), batch.tokens < (subject.max_positions or 1e9)
    for number, (name, scores, alike, told_apart) in enumerate(scores_of_one_token(subject, made, batch)):
        if told_apart and number == 0 and batch.tokens >= FEWEST:
            came = f"{name}: each token another, by its place in the row"
            return Outcome(False, f"{name}: one and the same token everywhere, as it was given", came)
        tokens = [n for n in alike if n >= front]
        if len(tokens) < FEWEST:
            continue  # earlier layers made them differ, as at the edges of a row
        found = by_the_distance_alone(scores, tokens, eps)
        first = found is None or by_the_distance_alone(scores, tokens[1:], eps) is not None
        require(first, "claim `registers=1` if the first token has no place: it alone is met otherwise than the rest")
        if found is None and number == 0 and subject.threshold is None and room:
            longer = scores_of_one_token(subject, made, Batch([[*batch.ids[0], 0]]))[0]
            found = by_the_distance_alone(scores, [n for n in tokens if n in longer.alike], eps, longer.scores)
        if found is not None:
            said, (_, expected, came) = found
            return Outcome(False, f"{name}, {said}: {expected}", f"{name}, {said}: {came}")
        tried = True
    applies(tried, "no attention has tokens of the same content come to it")
    return Outcome(True, "the same", "the same")


def something_is_absolute(subject: Subject, batch: Batch, longer: list[int]) -> Outcome:
    """A row of one repeated token: if scores depend on the distance alone, and all tokens give the same output, nothing
    is absolute. If the inputs to an attention differ from token to token, something is. What only counts far from the
    beginning shows in one of the ``longer`` rows, of which the ends are compared."""
    eps = max(ROUNDING, 8 * subject.eps(torch.float32))
    row = of_one_token(batch).pick(range(batch.tokens), 0)
    for one in (row, *(Batch([row.ids[0][:1] * tokens]) for tokens in longer)):
        if _is_absolute(subject, subject.make(), one, eps):
            return Outcome(True, "something absolute", "something absolute")
    applies(not subject.can("positions"), "rows are too short, but moving their positions shows it")
    came = "scores that go by the distance alone, and one and the same token comes out the same everywhere"
    longest = max(batch.tokens, *longer, 0)
    return Outcome(False, f"something that goes by the place of a token in a row of up to {longest} tokens", came)


def _is_absolute(subject: Subject, made: Any, row: Batch, eps: float) -> bool:
    """Whether a row of one repeated token shows that something depends on the place of a token."""
    out = subject.run(made, row).detach()
    if not near(out[:, :1].expand_as(out), out, ROUNDING * float(out.abs().max())).ok:
        return True
    few = [n for n in range(row.tokens) if min(n, row.tokens - 1 - n) < AT_THE_ENDS]
    for name, scores, alike, told_apart in scores_of_one_token(subject, made, row):
        if told_apart:
            return True
        applies(len(alike) == row.tokens, f"what is absolute comes before {name}")
        level = scores - scores.amax(-1, keepdim=True)
        possible = float(level[level.isfinite()].abs().max()) > ROUNDING
        require(possible, f"give it a `jitter`, for {name} scores all keys the same")
        if by_the_distance_alone(scores, few, eps, up_to_a_factor=False) is not None:
            return True
    return False


# -- cases -------------------------------------------------------------------------------------------------------------


ABSOLUTE = "Look positions up as they are given, or claim `relative=True`, if this is what it is to be."
SHIFTS = (1, 1000, 100_000)
AWAY = (1, 7, 300, 100_000)


def _require(plan: Plan, claim: str) -> None:
    subject, other = plan.subject, "absolute" if claim == "relative" else "relative"
    what = "changes nothing" if claim == "relative" else "changes outputs"
    require(subject.relative is not None, f"claim `relative={claim == 'relative'}` if moving all positions {what}")
    applies(subject.relative == (claim == "relative"), f"it claims to be {other}")
    require(subject.can("positions") or subject.takes("offset"), plan.lacks("positions"))


def _relative(plan: Plan) -> Iterator[Case]:
    _require(plan, "relative")
    for by in SHIFTS:
        for tokens in plan.sizes:
            if plan.has(highest := tokens - 1 + by):
                yield Case(plan.line(2, tokens), {"by": by, "tolerance": plan.tolerance(highest)})


def _some(plan: Plan) -> Iterator[Case]:
    subject = plan.subject
    require(subject.can("positions"), plan.lacks("positions"))
    applies(not subject.order_free, "it claims to be `order_free`")
    for tokens in plan.sizes_above(3):
        by = [n for n in _beyond(AWAY, subject) if plan.has(tokens - 1 + n)]
        if by:
            tolerances = [plan.rounding(tokens - 1 + n) for n in by]
            # If all tokens are the same to it, or a bias begins as zeros, nothing could show.
            given = isinstance(subject, Rotary | Bias) or plan.effect > plan.tolerance(tokens - 1 + by[0])
            applies(given, "outputs do not go by the order of the tokens either")
            yield Case(plan.line(2, tokens), {"by": by, "tolerances": tolerances})
            return


def _beyond(amounts: tuple[int, ...], subject: Subject) -> list[int]:
    """These amounts, and one that leads well beyond the subject's threshold, from which on something may count."""
    return sorted({*amounts, 2 * (subject.threshold or 0) or amounts[0]})


def _absolute(plan: Plan) -> Iterator[Case]:
    _require(plan, "absolute")
    subject = plan.subject
    for tokens in plan.sizes_above(1):
        by = [c for c in _beyond(SHIFTS, subject) if plan.has(tokens - 1 + c)]
        if by:
            tolerances = [plan.rounding(tokens - 1 + c) for c in by]
            yield Case(plan.line(2, tokens), {"by": by, "tolerances": tolerances})


def _rows(plan: Plan, claim: bool) -> Iterator[Case]:
    subject = plan.subject
    require(subject.relative is not None, "claim `relative=True` or `relative=False` to run this")
    applies(subject.relative == claim, f"it claims `relative={subject.relative}`")
    applies(subject.axes == 1, "positions have several axes")
    applies(not subject.takes("grid"), "call takes a grid, and these are rows of text")
    sizes = plan.sizes_above(FEWEST - 1)
    for tokens in sizes if claim else sizes[:1]:
        yield Case(plan.text(1, tokens), {} if claim else {"longer": _longer(plan, sizes[1:])})


def _longer(plan: Plan, sizes: list[int]) -> list[int]:
    """Further lengths: where no positions can be given, also the longest, and past a threshold."""
    if plan.subject.can("positions"):
        return sizes
    threshold = plan.subject.threshold or 0
    require(threshold < plan.limit, too_long(plan))
    return sorted({*sizes, min(plan.limit, threshold + AT_THE_ENDS), plan.limit})


CHECK = Check(
    number=6,
    name="shift",
    rule="Shifting all positions by the same amount changes nothing in relative schemes and something in absolute "
    "ones; shifting some of them changes something in both.",
    why="If a scheme claims to be relative and is not, the same text gives another result in a later chunk or behind "
    "padding.",
    pains=(1, 3),
    remedy="Compute scores from the difference of the positions that are given, never from the index or from the "
    "length.",
    trials=(
        Trial("relative", moving_all_changes_nothing, _relative, claims=("relative",)),
        Trial("absolute", moving_all_changes_something, _absolute, claims=("relative",), remedy=ABSOLUTE),
        Trial("some moved", moving_some_changes_something, _some, remedy=ABSOLUTE),
        Trial("along the index, relative", scores_go_by_the_distance, _rows, {"claim": True}, claims=("relative",)),
        Trial("along the index, absolute", something_is_absolute, _rows, {"claim": False}, claims=("relative",)),
    ),
)
