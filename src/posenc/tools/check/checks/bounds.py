"""Checks that positions past the end are refused by name, and sizes are not confused with one another (check 19)."""

from collections.abc import Iterator
from dataclasses import replace
from inspect import signature

import torch

from posenc.scheme import bare_parts
from posenc.schemes.alibi import ALiBi
from posenc.tools.check.calls import instead
from posenc.tools.check.checks.configuration import REFUSED, it_is_refused, refusals
from posenc.tools.check.heads import Bias, Rotary
from posenc.tools.check.like import scheme_of
from posenc.tools.check.outcome import Outcome, Outcomes, near, numbers_in, refused
from posenc.tools.check.subjects import VOCABULARY, Batch, Subject, require
from posenc.tools.check.trial import Case, Check, NotCheckedError, Plan, Trial, texts


def the_end_is_named(subject: Subject, batch: Batch, limit: int, compiled: bool) -> Outcome:
    """A row with a position below 0, or at the limit or past it, which must be refused with the number."""
    flat = subject.places(batch).flatten().tolist()
    outside = [p for p in flat if not 0 <= p < limit]
    past = outside and (not isinstance(subject, Bias) or max(flat) - min(flat) >= limit)
    require(past, "nothing to do: no position, or for a bias no distance, is past the end")
    tried = subject
    if compiled:
        torch._dynamo.reset()
        tried = instead(subject, torch.compile(subject.call, backend="eager"))

    def named(said: str) -> bool:
        return bool(numbers_in(said) & {*outside, limit, limit - 1}) or (min(outside) < 0 and "negative" in said)

    expected = f"an error that names the position {outside[0]} or the limit {limit}"
    return refused(lambda: tried.run(tried.make(), batch), expected, named)


def published_slopes(heads: int) -> list[float]:
    """The slopes of ALiBi: 2^(-8h/H), h = 1 .. H, for a power of two; else those of the power of two below, followed by
    every other slope of twice that power, beginning with the first."""
    power = 2 ** (heads.bit_length() - 1)
    coarse, fine = ([2 ** (-8 * (h + 1) / n) for h in range(n)] for n in (power, 2 * power))
    return [*coarse, *fine[::2][: heads - power]]


def slopes_are_as_published(subject: Bias, batch: Batch, heads: int | None) -> Outcome:
    """What each head subtracts for each distance, against its published slope; with None, against those claimed.

    A softmax does not see what is added to a whole row, so each row is compared relative to a token's own score.
    """
    if heads is None:
        slopes, made = list(subject.slopes or ()), subject.make()
    else:
        slopes, made = published_slopes(heads), subject.make(**{subject.heads_option: heads})
    places, seen = subject.places(batch), subject.visible(batch)[:, None]
    came = subject.bias(made, places, places).double()
    if came.size(1) != len(slopes):
        return Outcome(False, f"{len(slopes)} heads", f"a bias of shape {tuple(came.shape)}")
    came = came - came.diagonal(dim1=-2, dim2=-1)[..., None]
    away = (places[:, None, :, None] - places[:, None, None, :]).abs().double()
    expected = -torch.tensor(slopes, dtype=torch.float64, device=away.device)[:, None, None] * away
    came = came.expand_as(expected)
    return near(expected.masked_fill(~seen, 0.0), came.masked_fill(~seen, 0.0), 2**-20 * float(expected.abs().max()))


def later_tokens_do_not_count(subject: Subject, batch: Batch, tolerance: float) -> Outcomes:
    """With other tokens in the later half, the earlier half gives the same outputs; also with the later half further
    away, where positions are given."""
    early = batch.tokens // 2
    require(early, "nothing to do: there is one token, and none later")
    ids = [row[:early] + [(token + 7) % VOCABULARY for token in row[early:]] for row in batch.ids]
    before, after = subject.run(subject.make(), batch), subject.run(subject.make(), replace(batch, ids=ids))
    yield "other tokens later", near(before[:, :early], after[:, :early], tolerance)
    if batch.positions is not None:
        far = batch.moved(2).positions or []
        rows = [row[:early] + away[early:] for row, away in zip(batch.positions, far, strict=True)]
        after = subject.run(subject.make(), replace(batch, positions=rows))
        yield "later tokens further away", near(before[:, :early], after[:, :early], tolerance)


# -- cases -------------------------------------------------------------------------------------------------------------

MOST_HEADS = 64
LONG = 4097  # tokens
SLOPES = "Take 2^(-8h/H) for a power of two, else those of the power of two below and every other one of twice as many."
LATER = "Hide every key after the query before the softmax, and take no sum or mean over a whole row."


def _ends(plan: Plan, compiled: bool = False) -> Iterator[Case]:
    subject = plan.subject
    require(subject.max_positions, "claim `max_positions=N` where positions have an end")
    require(subject.compiles or not compiled, "claim `compiles=True` to run this")
    grids = subject.on_grids and not subject.can("positions")
    require(not grids, "nothing to do: each axis has an end of its own, which check 20 tries")
    limit = subject.max_positions or 0
    values = {"limit": limit, "compiled": compiled}
    if subject.can("positions"):
        for row in ([0, limit], [0, limit + 1], [limit - 1, -1]):
            yield Case(plan.row(row), values)
    elif isinstance(subject, Rotary) and subject.takes("offset"):
        for p in (limit, limit + 1, -1):
            yield Case(plan.row([p]), values)
    else:
        # Where memory grows with the length alone, a row may be as long as it is where that is tried.
        longest = max(plan.longest, LONG) if subject.linear_memory else plan.longest
        require(
            limit < longest, f"{plan.lacks('positions')}, or run it with `--longest {limit + 1}`, to go past the end"
        )
        yield Case(plan.text(1, limit + 1), values)


HEADS_OPTIONS = ("heads", "num_heads", "n_heads", "n_head", "nheads", "num_attention_heads")  # as build may call it


def _heads_of_a_line(subject: Bias, batch: Batch) -> int:
    """The number of heads of a bias that subtracts the distance times a fixed slope, a different one for each head, as
    ALiBi does; else 0."""
    places = subject.places(batch)
    bias = subject.bias(subject.make(), places, places)
    if subject.axes > 1 or batch.tokens < 4 or bias.requires_grad:
        return 0
    came = (bias - bias.diagonal(dim1=-2, dim2=-1)[..., None])[0].double()
    slopes = came[:, 1:, :-1].diagonal(dim1=-2, dim2=-1)[:, 0]
    away = (places[0, :, None] - places[0, None, :]).clamp(min=0)
    off = (came - slopes[:, None, None] * away).tril().abs().max()
    linear = float(off) <= 2**-20 * float(came.tril().abs().max())  # no number at all is not linear either
    return len(slopes) if linear and len(slopes.unique()) == len(slopes) > 1 else 0


def _ways_out(subject: Bias) -> str:
    """What to claim, so that slopes are checked for other numbers of heads."""
    has = {*subject.options, *signature(subject.build).parameters}
    named = next((name for name in HEADS_OPTIONS if name in has), None)
    if named is None:
        return "claim `slopes`, or let build take the number of heads and name it in `heads_option`"
    return f"claim `heads_option={named!r}`, which names the option that says how many heads there are, or `slopes`"


def _slopes(plan: Plan) -> Iterator[Case]:
    subject = plan.subject
    require(isinstance(subject, Bias), "nothing to do: a bias alone has slopes")
    assert isinstance(subject, Bias)
    alibi = subject.like is None or any(isinstance(part, ALiBi) for part in bare_parts(scheme_of(subject)))
    require(subject.slopes or alibi, "nothing to do: the heads of what it is `like` are tried in check 21")
    tokens = min(7, plan.limit)
    batch = plan.line(1, tokens) if subject.can("positions") else plan.text(1, tokens)
    if not (subject.slopes or subject.heads_option):
        if subject.like is None and (heads := _heads_of_a_line(subject, batch)):
            raise NotCheckedError(
                f"{_ways_out(subject)}: it is linear in the distance, and runs with {heads} heads alone"
            )
        require(False, "claim `slopes`, or the `heads_option` that ALiBi's go by, if it is linear in the distance")
    if subject.slopes:
        yield Case(batch, {"heads": None})
    for heads in range(1, MOST_HEADS + 1) if subject.heads_option else ():
        yield Case(batch, {"heads": heads})


def _causal(plan: Plan) -> Iterator[Case]:
    require(plan.subject.causal, "claim `causal=True` if no token sees those after it")
    require(
        not isinstance(plan.subject, Rotary | Bias), "nothing to do: what is causal around it is of the check itself"
    )
    yield from texts(plan)
    if plan.subject.can("positions") and plan.subject.threshold is None:
        for tokens in plan.sizes_above(1):
            if plan.has(tokens + 1):
                yield Case(plan.line(2, tokens), {"tolerance": plan.tolerance(tokens + 2)})


CHECK = Check(
    number=19,
    name="bounds",
    rule="Positions past the end are rejected with the limit, slopes are right for any number of heads, and neither "
    "other rows, nor later tokens, nor keys outside a window matter.",
    why="An index past a table wraps around, is clamped, or crashes the device; and if batch size and length are "
    "equal, swapped axes go unnoticed.",
    pains=(14, 16, 18),
    remedy="Compare positions with the limit before the look-up, and raise an error with the number; take each size "
    "from its own axis.",
    trials=(
        Trial("positions past the end", the_end_is_named, _ends, claims=("max_positions",)),
        Trial(
            "positions past the end, compiled", the_end_is_named, _ends, {"compiled": True}, claims=("max_positions",)
        ),
        Trial("values that are refused", it_is_refused, refusals, {"known": True}, claims=("refused",), remedy=REFUSED),
        Trial("slopes", slopes_are_as_published, _slopes, claims=("slopes", "heads_option"), remedy=SLOPES),
        Trial("later tokens", later_tokens_do_not_count, _causal, remedy=LATER),
    ),
)
