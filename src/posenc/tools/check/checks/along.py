"""Checks, as part of check 6, shifts along the index of a row, so that it covers code that takes no positions."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc.tools.check.calls import instead
from posenc.tools.check.captured import NO_SCORES, captured_in, of_all_tokens, of_one_token
from posenc.tools.check.heads import Attention
from posenc.tools.check.outcome import Outcome, near
from posenc.tools.check.subjects import Batch, Subject, require
from posenc.tools.check.trial import Case, Plan, Trial, too_long

BLURS = {"conv1d", "conv2d", "lstm", "gru", "rnn_tanh", "rnn_relu"}  # operations that mix neighbouring tokens
ROUNDING = 64 * torch.finfo(torch.float32).eps  # of scores, within which phases and norms are often of float32
OF_ALL = 1e-4  # of all that scores differ by
HIDES = 50.0  # a score this far below the highest of its row has no weight
AT_THE_ENDS = 12  # tokens of a long row that are compared, at each end
FEWEST = 4  # tokens that must be alike for a comparison to mean anything


def weights_by_values(subject: Attention, made: Any, batch: Batch) -> Tensor:
    """The attention weights, (heads, queries, keys), of a batch of one row: the norm of the output where one key alone
    has a value, minus the output where none has. So values may be rotated, or added to."""

    def with_one_value(found: list[Tensor]) -> Any:
        def call(made: Any, query: Tensor, key: Tensor, value: Tensor, **given: Any) -> Any:
            for n in (None, *range(key.size(2))):
                shown = torch.zeros_like(value)
                if n is not None:
                    shown[:, :, n] = 1.0
                found.append(subject.call(made, query, key, shown, **given).detach().double())
            return found[0]

        return call

    outs: list[Tensor] = []
    with torch.no_grad():
        instead(subject, with_one_value(outs)).run(made, batch)
    nothing, *each = (out[0] for out in outs)
    added = float(nothing.abs().max())
    require(
        not added or subject.dtype == torch.float64,
        "nothing to do: in float32, what is added to values hides small weights",
    )
    weights = torch.stack([(out - nothing).norm(dim=-1) for out in each], -1)
    return weights.masked_fill(weights < 1e-8 * added, 0.0)


class Seen(NamedTuple):
    """The scores (heads, queries, keys) of an attention, for a row of one repeated token, and the tokens whose inputs
    to it are still alike. Scores without weight are -inf, and a constant may be added to any row.

    ``told_apart``: nearly all inputs differ, and the differences do not shrink with the distance from the edge.
    """

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
    require(
        not all_of_it.called & BLURS, "nothing to do: a convolution, or a pass over tokens, comes before the scores"
    )
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
    """A row of one repeated token: the scores of any two queries for keys at the same distances differ by a constant,
    in every attention whose inputs are still alike; and in the first, also in a row of one more token."""
    made, eps, tried = subject.make(), max(ROUNDING, 8 * subject.eps(torch.float32)), False
    front = max(subject.sinks, subject.registers)
    for number, (name, scores, alike, told_apart) in enumerate(scores_of_one_token(subject, made, batch)):
        if told_apart and number == 0 and batch.tokens >= FEWEST:
            came = f"{name}: each token another, by its place in the row"
            return Outcome(False, f"{name}: one and the same token everywhere, as it was given", came)
        tokens = [n for n in alike if n >= front]
        if len(tokens) < FEWEST:
            continue  # earlier layers made them differ, as at the edges of a row
        found = by_the_distance_alone(scores, tokens, eps)
        if found is not None and by_the_distance_alone(scores, tokens[1:], eps) is None:
            require(
                False, "claim `registers=1` if the first token has no place: it alone is met otherwise than the rest"
            )
        if (
            found is None
            and number == 0
            and subject.threshold is None
            and batch.tokens < (subject.max_positions or 1e9)
        ):
            longer = scores_of_one_token(subject, made, Batch([[*batch.ids[0], 0]]))[0]
            kept = [n for n in tokens if n in longer.alike]
            found = by_the_distance_alone(scores, kept, eps, longer.scores)
        if found is not None:
            said, (_, expected, came) = found
            return Outcome(False, f"{name}, {said}: {expected}", f"{name}, {said}: {came}")
        tried = True
    require(tried, "nothing to do: no attention has tokens of the same content come to it")
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
    require(not subject.can("positions"), "nothing to do: rows are too short, but moving their positions shows it")
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
        require(len(alike) == row.tokens, f"nothing to do: what is absolute comes before {name}")
        level = scores - scores.amax(-1, keepdim=True)
        require(
            float(level[level.isfinite()].abs().max()) > ROUNDING,
            f"give it a `jitter`, for {name} scores all keys the same",
        )
        if by_the_distance_alone(scores, few, eps, up_to_a_factor=False) is not None:
            return True
    return False


# -- cases -------------------------------------------------------------------------------------------------------------


def _rows(plan: Plan, claim: bool) -> Iterator[Case]:
    subject = plan.subject
    require(subject.relative is not None, "claim `relative=True` or `relative=False` to run this")
    require(subject.relative == claim, f"nothing to do: it claims `relative={subject.relative}`")
    require(subject.axes == 1, "nothing to do: positions have several axes")
    require(not subject.takes("grid"), "nothing to do: call takes a grid, and these are rows of text")
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


MORE = (
    6,
    (
        Trial("along the index, relative", scores_go_by_the_distance, _rows, {"claim": True}, claims=("relative",)),
        Trial("along the index, absolute", something_is_absolute, _rows, {"claim": False}, claims=("relative",)),
    ),
)
