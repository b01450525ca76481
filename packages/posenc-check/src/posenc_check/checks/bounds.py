"""Checks ends of positions, sizes that may be confused, windows, and sums of weights (check 19)."""

import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc_check.calls import with_call
from posenc_check.captured import NO_SCORES, captured_in, of_all_tokens, of_one_token
from posenc_check.checks.configuration import REFUSED, it_is_refused, refusals
from posenc_check.outcome import Outcome, Outcomes, all_finite, near, numbers_in, refused
from posenc_check.subjects import VOCABULARY, Attention, Batch, Bias, Rotary, Subject, applies, require
from posenc_check.trial import Case, Check, Trial, TrialPlan, padded, texts, two_documents


def the_end_is_named(subject: Subject, batch: Batch, limit: int, compiled: bool) -> Outcome:
    """A row with a position below 0, or at the limit or past it, which must be refused with the number."""
    flat = subject.places(batch).flatten().tolist()
    outside = [p for p in flat if not 0 <= p < limit]
    past = outside and (not isinstance(subject, Bias) or max(flat) - min(flat) >= limit)
    applies(past, "no position, or for a bias no distance, is past the end")
    tried = subject
    if compiled:
        torch._dynamo.reset()
        tried = with_call(subject, torch.compile(subject.call, backend="eager"))

    def names_the_end(said: str) -> bool:
        return bool(numbers_in(said) & {*outside, limit, limit - 1}) or (min(outside) < 0 and "negative" in said)

    expected = f"an error that names the position {outside[0]} or the limit {limit}"
    return refused(lambda: tried.run(tried.make(), batch), expected, names_the_end)


def published_slopes(heads: int) -> list[float]:
    """The slopes of ALiBi: 2^(-8h/H), or those of the power of two below and every other one of twice it."""
    power = 2 ** (heads.bit_length() - 1)
    coarse, fine = ([2 ** (-8 * (h + 1) / n) for h in range(n)] for n in (power, 2 * power))
    return [*coarse, *fine[::2][: heads - power]]


def slopes_are_as_published(subject: Bias, batch: Batch, heads: int | None) -> Outcome:
    """What each head subtracts for each distance, from a token's own score, against its published or claimed slope."""
    if heads is None:
        slopes, made = list(subject.slopes or ()), subject.make()
    else:
        slopes, made = published_slopes(heads), subject.make(**{subject.heads_option: heads})
    places, seen = subject.places(batch), subject.visible(batch)[:, None]
    actual = subject.bias(made, places, places).double()
    if actual.size(1) != len(slopes):
        return Outcome(False, f"{len(slopes)} heads", f"a bias of shape {tuple(actual.shape)}")
    actual = actual - actual.diagonal(dim1=-2, dim2=-1)[..., None]
    away = (places[:, None, :, None] - places[:, None, None, :]).abs().double()
    expected = -torch.tensor(slopes, dtype=torch.float64, device=away.device)[:, None, None] * away
    actual = actual.expand_as(expected)
    return near(expected.masked_fill(~seen, 0.0), actual.masked_fill(~seen, 0.0), 2**-20 * float(expected.abs().max()))


def later_tokens_do_not_count(subject: Subject, batch: Batch, tolerance: float) -> Outcomes:
    """With other tokens in the later half, also further away, the earlier half gives the same outputs."""
    early = batch.tokens // 2
    applies(early, "there is one token, and none later")
    ids = [row[:early] + [(token + 7) % VOCABULARY for token in row[early:]] for row in batch.ids]
    before, after = subject.run(subject.make(), batch), subject.run(subject.make(), replace(batch, ids=ids))
    yield "other tokens later", near(before[:, :early], after[:, :early], tolerance)
    if batch.positions is not None:
        far = batch.shifted(2).positions or []
        rows = [row[:early] + away[early:] for row, away in zip(batch.positions, far, strict=True)]
        after = subject.run(subject.make(), replace(batch, positions=rows))
        yield "later tokens further away", near(before[:, :early], after[:, :early], tolerance)


def rows_do_not_mix(subject: Subject, batch: Batch, tolerance: float) -> Outcomes:
    """Each row alone, against the same row among the others."""
    made = subject.make()
    together = batch.masked_outputs(subject.run(made, batch))
    for row in range(len(batch.ids)):
        one = batch.pick(range(batch.tokens), row)
        yield f"row {row}", near(one.masked_outputs(subject.run(made, one)), together[row : row + 1], tolerance)


def the_longest_row_runs(subject: Subject, batch: Batch, tolerance: float, same: bool) -> Outcomes:
    """The longest row gives finite numbers; where later tokens must not matter, its first half the ``same``."""
    with torch.no_grad():
        out = subject.run(subject.make(), batch)
        yield f"a row of {batch.tokens} tokens", all_finite(out, batch)
        half = batch.tokens // 2
        if same and half:
            yield "its first half", near(subject.run(subject.make(), batch.pick(range(half))), out[:, :half], tolerance)


def window_mask(subject: Subject, batch: Batch, at_most: bool) -> Tensor:
    """Which tokens may affect which (``at_most``), or must, through all layers: sinks may see all, or not."""
    index = torch.arange(batch.tokens)
    sink = index < subject.sinks
    near = ((index[:, None] - index).abs() < subject.window) | sink  # type: ignore[operator]
    if at_most:
        near = near | sink[:, None]
    once = (near & subject.visible(batch).cpu()).double()
    reach = torch.eye(batch.tokens).double().expand_as(once)
    for _ in range(subject.depth):
        reach = ((once + torch.eye(batch.tokens)) @ reach).clamp(max=1)
    return reach > 0


def what_the_window_shows_counts(subject: Subject, batch: Batch, changed: list[int]) -> Outcomes:
    """With another content in one token, the outputs of tokens that may not see it are the same to the bit. Of those
    that must see it, as far away as the window allows, at least one changes, for at least one of the ``changed``
    tokens, since a single weight may be too small to show."""
    window = subject.window or 0
    made, least, most = (
        subject.make(),
        window_mask(subject, batch, at_most=False),
        window_mask(subject, batch, at_most=True),
    )
    with torch.no_grad():
        before, own, found = subject.run(made, batch), False, dict[Any, list[tuple[bool, str]]]()
        for token in (n for n in changed if n < batch.tokens):
            ids = [[(c + 7) % VOCABULARY if n == token else c for n, c in enumerate(row)] for row in batch.ids]
            after = subject.run(made, replace(batch, ids=ids))
            differs = (before != after).flatten(2).any(-1).cpu()
            said = f"token {{}} of row {{}}, with other content in token {token}, which it"
            for row, query in (differs & ~most[:, :, token]).nonzero().tolist()[:1]:
                yield f"{said.format(query, row)} does not see", Outcome(False, "the same to the bit", "another output")
            own = own or bool(differs[:, token].any())
            for row, query in least[:, :, token].nonzero().tolist():
                one = bool(differs[row, query]), f"{said.format(query, row)} sees"
                if query != token and token >= subject.sinks:
                    found.setdefault(query - token, []).append(one)  # by how far the token is before the query
                elif abs(query - token) > (window - 1) * subject.depth:
                    found.setdefault(f"sink {token}", []).append(one)
    applies(own, "outputs are the same with another token")
    ways = [way for way in found if isinstance(way, int)]
    for way, seen in found.items():
        if way in (min(ways, default=0), max(ways, default=0)) or way not in ways:
            same = "the same, here and wherever one is as far from the other"
            yield seen[0][1], Outcome(any(does for does, _ in seen), "another output", same)


def values_all_the_same_stay(subject: Attention, batch: Batch, sharper: float) -> Outcome:
    """Attention to values that are all the same must give that value, for queries multiplied by ``sharper``."""
    given: list[Tensor] = []

    def call(made: Any, query: Tensor, key: Tensor, value: Tensor, **more: Any) -> Any:
        line = torch.linspace(1, 2, value.size(-1), device=value.device, dtype=value.dtype)
        given.append(line.expand_as(value))
        return subject.call(made, sharper * query, key, given[0], **more)

    actual = with_call(subject, call).run(subject.make(), batch).detach()
    expected = batch.masked_outputs(given[0].transpose(1, 2)[:, :1].expand_as(actual))
    # Softmax is often computed in float32, whatever the dtype.
    return near(expected, batch.masked_outputs(actual), 64 * subject.eps(torch.float32))


class AttentionScores(NamedTuple):
    """The scores (heads, queries, keys) of an attention for a row of one repeated token, -inf without weight, and
    whether the tokens that come to it are ``are_tokens_equal``."""

    name: str
    scores: Tensor
    are_tokens_equal: bool


NEGLIGIBLE_SCORE_GAP = 50.0  # a score this far below the highest of its row has no weight


def scores_of_one_token(subject: Subject, made: Any, batch: Batch) -> list[AttentionScores]:
    """The scores of every attention in a run of one repeated token. NotApplicableError where none are captured."""
    batch = of_one_token(batch).pick(range(batch.tokens), 0)
    if isinstance(subject, Attention):
        found = [("attention", weights_by_values(subject, made, batch).log(), True)]
    else:
        captured = of_all_tokens(captured_in(subject, made, batch), batch)
        require(captured, NO_SCORES)
        another = captured_in(subject, made, replace(batch, ids=[[2] * batch.tokens]))
        of_places = [x for inputs in another.inputs for x in inputs]  # where they are the same
        found = []
        for n, (scores, inputs) in enumerate(captured):
            of_tokens = [x for x in inputs if not any(torch.equal(x, y) for y in of_places)]
            found.append((f"attention {n}", scores[0], _are_equal(of_tokens, batch.tokens, n == 0)))
    hidden = [x < x.amax(-1, keepdim=True) - NEGLIGIBLE_SCORE_GAP for _, x, _ in found]
    return [
        AttentionScores(name, x.masked_fill(no, -torch.inf), same)
        for (name, x, same), no in zip(found, hidden, strict=True)
    ]


def _are_equal(inputs: list[Tensor], tokens: int, first: bool) -> bool:
    """Whether these inputs of linear layers, which go by the tokens, are the same for all of them. Before the ``first``
    attention there may be no linear layer: tokens are then as they came. A table of as many rows as there are tokens,
    such as Transformer-XL's, is not among them."""
    given = [x for x in (x.flatten(0, -2).double() for x in inputs) if len(x) == tokens and x.abs().max()]
    if not given:
        return first and not inputs
    return all(near(x[:1].expand_as(x), x, 64 * 2**-23 * float(x.abs().max())).ok for x in given)


def weights_by_values(subject: Attention, made: Any, batch: Batch) -> Tensor:
    """The attention weights, (heads, queries, keys): the norm of outputs where one key alone has a value."""
    outs: list[Tensor] = []

    def call(made: Any, query: Tensor, key: Tensor, value: Tensor, **given: Any) -> Any:
        for n in range(-1, key.size(2)):
            window_mask = torch.zeros_like(value)
            window_mask[:, :, n : n + 1] = 1.0  # none for -1
            outs.append(subject.call(made, query, key, window_mask, **given).detach().double())
        return outs[0]

    with torch.no_grad():
        with_call(subject, call).run(made, batch)
    nothing, *each = (out[0] for out in outs)
    added = float(nothing.abs().max())
    applies(not added or subject.dtype == torch.float64, "in float32, what is added to values hides small weights")
    weights = torch.stack([(out - nothing).norm(dim=-1) for out in each], -1)
    return weights.masked_fill(weights < 1e-8 * added, 0.0)


def equal_tokens_come_out_equal(subject: Subject, batch: Batch) -> Outcome:
    """A row of one repeated token, in a layer where weights alone differ: all outputs but the first are the same."""
    batch = of_one_token(batch)
    made = subject.make()
    applies(
        scores_of_one_token(subject, made, batch)[0].are_tokens_equal,
        "tokens of the same content differ before attention",
    )
    out = subject.run(made, batch).detach()[:, 1:]
    return near(out[:, :1].expand_as(out), out, 64 * subject.eps(torch.float32) * float(out.abs().max()))


def before_and_after_weigh(subject: Subject, batch: Batch) -> Outcome:
    """A row of one repeated token: the score of q for k and of k for q differ if directed, else never."""
    found = []
    for name, scores, are_tokens_equal in scores_of_one_token(subject, subject.make(), batch):
        away = scores - scores.diagonal(dim1=-2, dim2=-1)[..., None]
        both = away.isfinite() & away.mT.isfinite()
        there, back = away.masked_fill(~both, 0.0), away.mT.masked_fill(~both, 0.0)
        rounding = 64 * subject.eps(torch.float32) * max(float(scores.masked_fill(~both, 0.0).abs().max()), 1.0)
        # Scores that are all equal, as from a table of zeros before training, show nothing.
        if are_tokens_equal and float(there.abs().max()) > rounding:
            found.append((name, near(there, back, rounding)))
    applies(found, "no attention scores tokens of the same content by where they are, to both sides")
    wrong = [(name, same) for name, same in found if same.ok == bool(subject.directed)]
    if not subject.directed and wrong:
        name, same = wrong[0]
        return Outcome(False, f"{name} [head, query, key]: {same.expected}", same.actual)
    said = "another score for a token before than for the same token as far after"
    return Outcome(not subject.directed or len(wrong) < len(found), said, "the same of every two tokens, to every head")


# -- cases -------------------------------------------------------------------------------------------------------------


MAX_HEADS = 64
LONG_ROW_TOKENS = 4097  # tokens
SLOPES_REMEDY = (
    "Take 2^(-8h/H) for a power of two, else those of the power of two below and every other one of twice as many."
)
LATER_TOKENS_REMEDY = "Hide every key after the query before the softmax, and take no sum or mean over a whole row."


def _ends(plan: TrialPlan, compiled: bool = False) -> Iterator[Case]:
    subject = plan.subject
    require(subject.max_positions, "claim `max_positions=N` where positions have an end")
    require(subject.compiles or not compiled, "claim `compiles=True` to run this")
    grids = subject.on_grids and not subject.can("positions")
    require(not grids, "claim `max_grid=(rows, columns)` in its place, for call takes a grid")
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
        longest = max(plan.longest, LONG_ROW_TOKENS) if subject.linear_memory else plan.longest
        possible = limit < longest
        require(possible, f"{plan.lacks('positions')}, or run it with `--longest {limit + 1}`, to go past the end")
        yield Case(plan.text(1, limit + 1), values)


def _slopes(plan: TrialPlan) -> Iterator[Case]:
    subject = plan.subject
    applies(isinstance(subject, Bias), "a bias alone has slopes")
    assert isinstance(subject, Bias)
    alibi = subject.like is None or "alibi" in str(subject.like).lower()
    applies(subject.slopes or alibi, "what it is `like` is tried in check 21")
    names_the_end = subject.slopes or subject.heads_option
    require(names_the_end, "claim `slopes`, or the `heads_option` that ALiBi's go by, if it is linear in the distance")
    tokens = min(7, plan.limit)
    batch = plan.line(1, tokens) if subject.can("positions") else plan.text(1, tokens)
    if subject.slopes:
        yield Case(batch, {"heads": None})
    for heads in range(1, MAX_HEADS + 1) if subject.heads_option else ():
        yield Case(batch, {"heads": heads})


def _causal(plan: TrialPlan) -> Iterator[Case]:
    require(plan.subject.causal, "claim `causal=True` if no token sees those after it")
    applies(not isinstance(plan.subject, Rotary | Bias), "what is causal around it is of the check itself")
    yield from texts(plan)
    if plan.subject.can("positions") and plan.subject.threshold is None:
        for tokens in plan.sizes_above(1):
            if plan.has(tokens + 1):
                yield Case(plan.line(2, tokens), {"tolerance": plan.tolerance(tokens + 2)})


ROWS_REMEDY = "Take the number of rows and of tokens each from its own axis, and look at no row but one's own."
FAR_POSITION = 4000  # past the lengths that scalings begin at by default


def _squares(plan: TrialPlan) -> Iterator[Case]:
    subject = plan.subject
    for size in sorted({plan.room(5), plan.room(getattr(subject, "heads", 3))}):
        batch = plan.text(size, size)
        most = (subject.max_positions or 8 * size) - size
        if subject.can("positions"):
            rows = [[plan.subject.at(min(7 * row, most) + p) for p in range(size)] for row in range(size)]
            batch = replace(batch, positions=rows)
        yield Case(batch, {"tolerance": plan.tolerance(8 * size)})


def _places(plan: TrialPlan) -> Iterator[Case]:
    """Rows with gaps, each at other tokens; and where there is room, one far away, past a threshold if it has one."""
    plan.require_that_it_can("positions")
    tokens = plan.sizes_above(1)[0] if plan.sizes_above(1) else plan.sizes[0]
    for start in (0, max(FAR_POSITION, 2 * (plan.subject.threshold or 0))):
        if plan.has(start + tokens + 2):
            near_by, far = plan.broken(2, tokens), plan.broken(1, tokens, start)
            batch = Batch(near_by.ids + far.ids, (near_by.positions or []) + (far.positions or []))
            yield Case(batch, {"tolerance": plan.tolerance(start + tokens + 2)})


def _lengths(plan: TrialPlan) -> Iterator[Case]:
    """Rows with padding on the left, on the right, and none; one past the threshold, if there is one."""
    plan.require_that_it_can("padding")
    applies(not plan.subject.takes("grid"), "call takes a grid, and these are rows of text")
    threshold = plan.subject.threshold
    lengths = [*plan.sizes_above(2)[:1], *([threshold + 3] if threshold and threshold + 3 <= plan.limit else [])]
    for tokens in lengths:
        for some in {max(tokens // 3, 1), tokens - 2}:
            line = range(tokens)
            mask = [[True] * tokens, [n >= some for n in line], [n < tokens - some for n in line]]
            yield Case(padded(plan, mask, plan.subject.can("positions")), {"tolerance": plan.tolerance(tokens)})


def _longest(plan: TrialPlan) -> Iterator[Case]:
    subject, most = plan.subject, plan.subject.max_positions or 0
    require(most, "claim `max_positions=N` if there is an end to positions")
    applies(not subject.takes("grid"), "call takes a grid, and these are rows of text")
    same = subject.causal and subject.threshold is None
    if subject.can("positions"):
        last = plan.row([most - 1])
        yield Case(last, {"tolerance": 0.0, "same": False})
    require(most <= plan.longest, f"run with `--longest {most}`: no row is longer than {plan.longest} tokens")
    yield Case(plan.text(1, most), {"tolerance": plan.tolerance(most), "same": same})
    if subject.can("positions"):
        yield Case(plan.line(1, most), {"tolerance": plan.tolerance(most), "same": same})


WINDOW_REMEDY = (
    "Let a query see its own key and the window - 1 before it, counted in the same way at once, in chunks and in "
    "decoding, and hide all else before the softmax."
)
WINDOW_CLAIMS: dict[str, Any] = {"claims": ("window", "sinks", "depth"), "remedy": WINDOW_REMEDY}
WINDOW_NAMES = re.compile(r"window|sliding|local|span|lookback", re.IGNORECASE)


def _window_options(subject: Subject) -> list[str]:
    """The names of options and parameters that sound like a window."""
    names = {*subject.options, *inspect.signature(subject.call).parameters}
    with suppress(ValueError):  # of what is not written in Python
        names |= set(inspect.signature(subject.build).parameters)
    return sorted(name for name in names if WINDOW_NAMES.search(name))


def _tokens(plan: TrialPlan) -> int:
    """A number of tokens so large that the last does not see the first, through all layers."""
    subject, window = plan.subject, plan.subject.window or 0
    hint = f"; its {' and '.join(names_the_end)} may be one" if (names_the_end := _window_options(subject)) else ""
    require(window, f"claim `window=N` if a token sees no more than that many tokens, with itself{hint}")
    applies(not isinstance(subject, Rotary), "a rotation hides nothing")
    applies(not subject.takes("grid"), "call takes a grid, and these are rows of text")
    tokens = subject.sinks + subject.depth * (window - 1) + 4
    sight = f"a window of {window} in {subject.depth} layers"
    require(tokens <= plan.limit, f"build it with a smaller window: {sight} ends past {plan.limit} tokens")
    return tokens


def _changed(plan: TrialPlan, tokens: int) -> dict[str, Any]:
    """The tokens to change: sinks, those after them, the last that others see in a window, and the last."""
    sinks = plan.subject.sinks
    return {"changed": sorted({*range(min(sinks, 2)), sinks, sinks + 2, tokens // 2, tokens - 4, tokens - 1})}


def _windows(plan: TrialPlan, cached: bool = False) -> Iterator[Case]:
    tokens = _tokens(plan)
    batch = plan.text(2, tokens)
    if not cached:
        yield Case(batch, _changed(plan, tokens))
        return
    plan.require_a_cache()
    for chunks in ((tokens - 3, 1, 1, 1), (3,) * (tokens // 3) + (tokens % 3,) * (tokens % 3 > 0)):
        yield Case(replace(batch, chunks=chunks), _changed(plan, tokens))


SUMS_REMEDY = "Add and mask scores before the softmax, and change no weight after it."
SIDES_REMEDY = "Take the sign of the distance, not its size alone, where before and after are to differ."


def _values(plan: TrialPlan) -> Iterator[Case]:
    subject = plan.subject
    require(subject.normalized, "claim `normalized=True` if the weights of a row sum to one")
    applies(not isinstance(subject, Rotary | Bias), "the softmax around it is the check's own")
    applies(isinstance(subject, Attention), "a layer cannot be given values, and its equal tokens are tried")
    for tokens in plan.sizes:
        for sharper in (1.0, 16.0):
            yield Case(plan.text(2, tokens), {"sharper": sharper})
    if subject.can("padding") and plan.sizes_above(2):
        tokens = plan.sizes_above(2)[0]
        mask = [[n > 0 for n in range(tokens)], [n < tokens - 1 for n in range(tokens)]]
        yield Case(padded(plan, mask, subject.can("positions")), {"sharper": 1.0})
    if subject.can("document") and subject.can("positions") and plan.sizes_above(2):
        yield Case(two_documents(plan, plan.sizes_above(2)[-1]), {"sharper": 1.0})


def _layers(plan: TrialPlan) -> Iterator[Case]:
    subject = plan.subject
    require(subject.normalized, "claim `normalized=True` if the weights of a row sum to one")
    applies(not isinstance(subject, Attention | Rotary | Bias), "attention is given values")
    for tokens in plan.sizes_above(2):
        yield Case(plan.text(1, tokens))


def _sides(plan: TrialPlan) -> Iterator[Case]:
    subject = plan.subject
    possible = subject.directed is not None
    require(possible, "claim `directed=True` if before and after differ, or `directed=False` if they must not")
    applies(not subject.causal, "it is causal, and tokens see none after them")
    applies(subject.axes == 1 or subject.takes("grid"), "positions have several axes")
    for tokens in plan.sizes_above(2):
        yield Case(plan.text(1, tokens))


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
        Trial("slopes", slopes_are_as_published, _slopes, claims=("slopes", "heads_option"), remedy=SLOPES_REMEDY),
        Trial("later tokens", later_tokens_do_not_count, _causal, remedy=LATER_TOKENS_REMEDY),
        Trial("as many rows as tokens", rows_do_not_mix, _squares, remedy=ROWS_REMEDY),
        Trial("rows of other places", rows_do_not_mix, _places, remedy=ROWS_REMEDY),
        Trial("rows of other lengths", rows_do_not_mix, _lengths, remedy=ROWS_REMEDY),
        Trial("the longest row", the_longest_row_runs, _longest, claims=("max_positions",)),
        Trial("window", what_the_window_shows_counts, _windows, **WINDOW_CLAIMS),
        Trial("window, cached", what_the_window_shows_counts, _windows, {"cached": True}, **WINDOW_CLAIMS),
        Trial("values all the same", values_all_the_same_stay, _values, claims=("normalized",), remedy=SUMS_REMEDY),
        Trial("tokens all the same", equal_tokens_come_out_equal, _layers, claims=("normalized",), remedy=SUMS_REMEDY),
        Trial("before and after", before_and_after_weigh, _sides, claims=("directed",), remedy=SIDES_REMEDY),
    ),
)
