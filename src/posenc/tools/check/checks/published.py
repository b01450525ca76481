"""Checks that a subject is the scheme that it claims to be (check 21)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from posenc.tools.check import oracles
from posenc.tools.check.captured import EXCHANGED, NO_SCORES, of_one_token, onlookers, scores_of, sums_in
from posenc.tools.check.heads import Attention, Bias, Rotary, asked
from posenc.tools.check.layers import Layer, Model
from posenc.tools.check.measure import fastest
from posenc.tools.check.outcome import Outcome, Outcomes, largest, near
from posenc.tools.check.subjects import Batch, require
from posenc.tools.check.trial import Case, Check, Plan, Trial

UNIT = 2.0**-23  # of float32, in which phases and logarithms are usual


def as_tensors(expected: Any, others: Mapping[str, Any]) -> dict[str, Tensor]:
    """What the scheme gives, under the name "", and what its other conventions give, by name."""
    return {name: torch.tensor(x, dtype=torch.float64) for name, x in {"": expected, **others}.items()}


def share_of_rounding(subject: Layer, batch: Batch) -> float:
    """The share by which numbers may be off: 64 units of float32, and 4 more per position, for phases in float32."""
    return (4 * (float(subject.places(batch).max()) if batch.grid is None else 0.0) + 64) * UNIT


def from_itself(scores: Tensor, own: list[int]) -> Tensor:
    """Scores (…, queries, keys) minus the score of each query for its own key, which is the key of that number.

    A softmax does not see what is added to a whole row.
    """
    return scores - scores[..., range(len(own)), own][..., None]


def scores_are_its(
    subject: Rotary | Bias, batch: Batch, expected: Any, others: dict[str, Any], changed: Mapping[str, Any] = {}
) -> Outcomes:
    """What is added to the scores, or the products of rotated queries and keys, against those of the scheme. A softmax
    does not see what is added to a whole row, so each row is compared relative to the score of a token for itself."""
    made, places = subject.make(**changed), subject.places(batch)
    rows, columns = asked(batch)
    if isinstance(subject, Rotary):
        drawn = subject.content(batch)[:2]
        query, key = (subject.rotate(made, x, places, which).double() for which, x in enumerate(drawn))
        came = (query @ key.mT / subject.head_dim**0.5)[:, :, rows][..., columns]
    else:
        came = subject.bias(made, places[:, rows], places[:, columns]).double()
    own = [columns.index(n) for n in rows]
    given = as_tensors(expected, others)
    seen = subject.visible(batch)[:, None, rows][..., columns] & ~given[""].isnan()  # NaN: the scheme leaves it open
    came, *told = (from_itself(x, own).masked_fill(~seen, 0.0) for x in (came, *given.values()))
    wanted = dict(zip(given, told, strict=True))
    scheme = wanted[""]
    require(float(scheme.abs().max()) > 0, "nothing to do: the scheme gives nothing to any of these tokens")
    if came.shape != scheme.shape and came.size(1) != 1:
        yield "shape", Outcome(False, str(tuple(scheme.shape)), str(tuple(came.shape)))
        return
    came = came.expand_as(scheme)
    share = (4 * (float(places.max()) * fastest(subject) if isinstance(subject, Rotary) else 0.0) + 32) * UNIT
    said = name_of(came, wanted, share)
    for head in range(came.size(1)):
        one = scheme[:, head]
        ok, says, shows = near(one, came[:, head], share * largest(one))
        yield f"head {head}", Outcome(ok, says, shows + said)


def compared(came: Tensor, wanted: dict[str, Tensor], tolerance: float) -> Outcome:
    """`near` the scheme; and, where it is not, the outcome says what it is instead (see `name_of`)."""
    outcome = near(wanted[""], came, tolerance)
    if outcome.ok or came.shape != wanted[""].shape:
        return outcome
    said = name_of(came, wanted, tolerance / max(float(wanted[""].abs().max()), 1e-300))
    return outcome._replace(came=outcome.came + said)


def name_of(came: Tensor, wanted: dict[str, Tensor], share: float) -> str:
    """Says which other convention of the scheme this is, or how many times the scheme; "" if it is neither.

    ``share``: the share of the largest number by which it may be off.
    """
    expected = wanted[""]
    for name, other in wanted.items():
        if name and near(other, came, share * largest(other)).ok:
            require(not name.startswith(EXCHANGED), EXCHANGED)
            return f". This is {name}"
    times = float((came * expected).nansum() / (expected * expected).nansum())
    if abs(times - 1) > share and near(times * expected, came, share * abs(times) * float(expected.abs().max())).ok:
        return f". This is {times:.6g} times the scheme"
    return ""


def outputs_are_its(
    subject: Attention,
    batch: Batch,
    expected: Any,
    others: dict[str, Any],
    tolerance: float,
    changed: Mapping[str, Any] = {},
) -> Outcome:
    """The outputs against those of attention with the scheme, for the same queries, keys and values."""
    came = subject.run(subject.make(**changed), batch).detach().double()
    return compared(came, as_tensors(expected, others), tolerance)


def vectors_are_its(
    subject: Layer, batch: Batch, expected: Any, others: dict[str, Any], changed: Mapping[str, Any] = {}
) -> Outcome:
    """What a layer adds to its input, or to a multiple of it, against the vectors of the scheme."""
    made, front = subject.make(**changed), subject.registers
    again = replace(batch, ids=[[(7 * n + 5) % 48 for n in row] for row in batch.ids])
    x, y = (subject.content(b).double() for b in (batch, again))
    came, then = (subject.run(made, b).detach().double() for b in (batch, again))
    require(
        came.shape == x.shape,
        "nothing to do: its outputs are not as wide as its inputs, so it does more than add to them",
    )
    times = float(((came - then) * (x - y)).sum() / ((x - y) ** 2).sum())
    added = came - times * x
    only = near(added, then - times * y, 64 * UNIT * float(came.abs().max())).ok
    require(only, "nothing to do: it does more to its inputs than add to them")
    wanted = as_tensors(expected, others)
    tolerance = share_of_rounding(subject, batch) * max(float(wanted[""].abs().max()), float(came.abs().max()))
    wanted, added = {name: x[:, front:] for name, x in wanted.items()}, added[:, front:]
    outcome = compared(added, wanted, tolerance)
    if not outcome.ok and batch.tokens > 4:
        apart = (wanted[""][0, :, :, None] - added[0, :, None, :]).abs().amax(0)
        if bool((apart.amin(-1) <= tolerance).all()):
            return outcome._replace(came=f"{outcome.came}. The channels are the scheme's, in another order")
    return outcome


def sums_heard_are_its(
    subject: Layer, batch: Batch, expected: Any, others: dict[str, Any], changed: Mapping[str, Any] = {}
) -> Outcome:
    """What is added to tokens where positions first enter, relative to the first position, against the vectors of the
    scheme. There are two rows, each of one repeated token, so that the contents of the tokens cancel."""
    require(
        len(batch.ids) == 2 and all(len(set(row)) == 1 for row in batch.ids),
        "nothing to do: the rows are not of one token each",
    )
    captured, front = sums_in(subject, subject.make(**changed), batch), subject.registers
    wanted = {name: x[0, front:] - x[0, front : front + 1] for name, x in as_tensors(expected, others).items()}
    captured = [x for x in captured if x.shape == wanted[""].shape]  # several where something else is added, too
    require(captured, "let positions be added to tokens before any other operation on both: no such sum was observed")
    tolerance = share_of_rounding(subject, batch) * max(float(x.abs().max()) for x in (wanted[""], *captured))
    if any(near(wanted[""], x, tolerance).ok for x in captured):
        return Outcome(True, "", "")
    return compared(captured[0], wanted, tolerance)


def scores_heard_are_its(
    subject: Layer, batch: Batch, expected: Any, forms: Any, changed: Mapping[str, Any] = {}
) -> Outcomes:
    """The scores of one repeated token at different positions, as a softmax gets them, against the scheme: what it
    adds, plus any linear combination of its forms, the same for all pairs of a head."""
    at, captured = onlookers(subject, batch), scores_of(subject, subject.make(**changed), of_one_token(batch))
    require(captured, NO_SCORES)
    came, front = captured[0][0][:, at], subject.registers
    told, open_to = (torch.tensor(x, dtype=torch.float64) for x in (expected, forms))
    if came.shape != told.shape:
        yield "shape", Outcome(False, str(tuple(told.shape)), str(tuple(came.shape)))
        return
    seen = came.isfinite() & told.isfinite()
    seen[..., :front] = False
    came, told, open_to = (from_itself(x, at) for x in (came, told, open_to))
    for head in range(came.size(0)):
        here = seen[head]
        wanted = (came[head] - told[head])[here]
        basis = open_to[head][:, here]
        require(
            wanted.numel() >= 1.5 * len(basis) + 4,
            "let it have more positions: there are too few pairs to tell the scheme from others",
        )
        left = wanted
        if len(basis) and float(basis.abs().max()) > 0:
            left = wanted - basis.T @ torch.linalg.lstsq(basis.T, wanted[:, None], driver="gelsd").solution[:, 0]
        size = max(float(x[here].abs().max()) for x in (captured[0][0][:, at][head], came[head]))
        tolerance = (share_of_rounding(subject, batch) if len(basis) else 64 * UNIT) * size
        shown = torch.zeros_like(came[head])
        shown[here] = left
        fitted = torch.where(here, came[head] - shown, 0.0)
        ok, says, shows = near(fitted, torch.where(here, came[head], 0.0), tolerance)
        scaled = "" if ok else name_of(came[head][here], {"": told[head][here]}, tolerance / max(size, 1e-300))
        yield f"head {head} [query, key]", Outcome(ok, says, shows + scaled)


def scores_of_contents_are_its(
    subject: Layer, batch: Batch, expected: Any, changed: Mapping[str, Any] = {}
) -> Outcomes:
    """The scores that a softmax is given, against those of the scheme for the same queries and keys."""
    at, captured = onlookers(subject, batch), scores_of(subject, subject.make(**changed), batch)
    require(captured, NO_SCORES)
    came, told = captured[0][:, :, at], torch.tensor(expected, dtype=torch.float64)
    seen = came.isfinite() & told.isfinite()
    seen[..., : subject.registers] = False
    tolerance = share_of_rounding(subject, batch) * float(told[seen].abs().max())
    told, came = (from_itself(x, at).masked_fill(~seen, 0.0) for x in (told, came))
    for head in range(came.size(1)):
        yield f"head {head} [row, query, key]", near(told[:, head], came[:, head], tolerance)


def its_parameters_count(subject: Layer, batch: Batch, names: list[str], changed: Mapping[str, Any] = {}) -> Outcomes:
    """With other numbers in a parameter that the scheme's outputs go by, other outputs must come."""
    before = subject.run(subject.make(**changed), batch)
    for name in names:
        made = subject.make(**changed)
        made.train()  # what it keeps for evaluation must be made anew
        parameter = made.get_parameter(name)
        with torch.no_grad():
            parameter.add_(torch.linspace(1, 2, parameter.numel()).view_as(parameter).to(parameter))
        made.eval()
        same = torch.equal(before, subject.run(made, batch))
        yield name, Outcome(not same, "outputs that go by it", "the same, whatever is in it" if same else "others")


# -- cases -------------------------------------------------------------------------------------------------------------

RULER = 300  # distances that are all tried: past it no scheme of text has more than a few steps
FAR = (0, 1, 3, 8, 20, 46, 90, 127, 128, 300, 511, 512, 513, 1000, 1025, 2047, 4096, 10_000, 40_000, 100_000)
GRIDS = ((3, 5), (5, 3), (1, 7), (7, 9))
HEADS = (1, 2, 3, 5, 6, 7, 8, 12, 14, 16, 20, 24, 40)


def _require(plan: Plan, *kinds: type) -> None:
    require(plan.subject.like is not None, "claim `like`, the scheme of posenc that it is said to be")
    require(isinstance(plan.subject, kinds), "nothing to do: other things are compared of its kind")


def _told(plan: Plan, long: int) -> Iterator[Batch]:
    """Rows at awkward places, as far as there are so many positions; by the index where none can be told."""
    subject = plan.subject
    if subject.axes > 1:
        for shape in GRIDS:
            front = [range(2)] * (subject.axes - 2)
            places = [list(p) for p in product(*front, *map(range, shape))]
            if plan.has(max(map(max, places))) and subject.can("positions"):
                yield replace(plan.text(1, len(places)), positions=[places])
                mixed = [[p[n - 1] + 3 * n for n in range(subject.axes)] for p in places]
                if plan.has(max(map(max, mixed))):
                    yield replace(plan.text(1, len(places)), positions=[mixed])
        return
    for tokens in sorted({min(n, plan.limit) for n in (5, 23, long)}):
        told = subject.can("positions")
        asked = {tokens - 1} if subject.causal else {tokens - 1, tokens // 3, 0}
        row = plan.line(1, tokens) if told else plan.text(1, tokens)
        yield replace(row, queries=tuple(sorted(asked))) if tokens == long and told else row
    if subject.can("positions"):
        far = [p for p in FAR if plan.has(p)]
        if len(far) > 1:
            yield plan.row(far)
    elif subject.takes("offset") and plan.has(1006):
        yield plan.line(1, 7, start=1000)


def _scores(plan: Plan) -> Iterator[Case]:
    _require(plan, Rotary, Bias)
    for batch in _told(plan, RULER):
        yield Case(batch)


def _other_options(plan: Plan, heads: bool = False) -> Iterator[Case]:
    """Short rows of what other options build: other numbers of heads, or the options that are claimed to count."""
    _require(plan, Rotary, Bias)
    subject = plan.subject
    if heads:
        name = getattr(subject, "heads_option", "")
        require(name, "name in `heads_option` the option that says how many heads there are")
        require(not hasattr(subject.like, "parameters"), "give `like` as a name or a function, for any number of heads")
        changes = [{name: n} for n in HEADS]
    else:
        require(
            callable(subject.like) and not hasattr(subject.like, "parameters"),
            "give `like` as a function of the options, to compare others too",
        )
        changes = [{name: value} for name, value in subject.varied.items()]
        require(changes, "name in `varied` another value of each option, to run this")
    for changed in changes:
        for batch in list(_told(plan, 60))[-2:]:
            yield Case(batch, {"changed": changed})


def _outputs(plan: Plan) -> Iterator[Case]:
    _require(plan, Attention)
    for batch in _told(plan, RULER):
        highest = int(plan.subject.places(batch).max())
        yield Case(batch, {"tolerance": plan.tolerance(highest)})


def _vectors(plan: Plan) -> Iterator[Case]:
    _require(plan, Layer)
    require(not isinstance(plan.subject, Model), "nothing to do: tokens are ids, to which nothing is added")
    for batch in _rows(plan, 40):
        yield Case(batch)


def _sums(plan: Plan) -> Iterator[Case]:
    _require(plan, Layer)
    for batch in _rows(plan, 40):
        ids = [[5] * batch.tokens, [11] * batch.tokens]
        yield Case(replace(batch, ids=ids, positions=batch.positions and batch.positions * 2))


def _rows(plan: Plan, tokens: int) -> Iterator[Batch]:
    """A row of that many tokens at least, or a grid."""
    subject = plan.subject
    if subject.takes("grid"):
        window = None if isinstance(subject.window, int) else subject.window  # one window alone
        for height, width in [window] if window else (subject.trained_grid or subject.max_grid or (7, 9), (3, 5)):
            yield replace(plan.text(1, subject.registers + height * width), grid=(height, width))
        return
    if subject.axes > 1:
        yield from _told(plan, 0)
        return
    tokens = min(tokens, plan.limit)
    yield plan.text(1, tokens)
    if subject.can("positions") and subject.axes == 1:
        places = [p if p < tokens // 2 else p + 1000 for p in range(tokens)]
        if plan.has(places[-1]):
            yield plan.row(places)


def _contents(plan: Plan) -> Iterator[Case]:
    _require(plan, Layer)
    for row in _rows(plan, 40):
        tokens, (ids,) = row.tokens, row.ids
        require(tokens >= 4, "let it have more positions: there are too few tokens")
        other = [(n + 11) % 48 for n in ids]
        half = tokens // 2  # queries of the later half, keys of the earlier
        rows = [ids, ids[:half] + other[half:], other[:half] + ids[half:], other]
        yield Case(replace(row, ids=rows, positions=row.positions and row.positions * 4))


def _heard(plan: Plan) -> Iterator[Case]:
    _require(plan, Layer)
    threshold = plan.subject.threshold  # on both sides of it
    around = [plan.text(1, n) for n in ((threshold, threshold + 1) if threshold else ()) if n <= plan.limit]
    for batch in (*around, *_rows(plan, 257)):
        yield Case(batch)


def _parameters(plan: Plan) -> Iterator[Case]:
    _require(plan, Layer)
    require(plan.effect > plan.rounding(), "give it a `jitter`, for its outputs do not go by positions")
    for batch in _rows(plan, 12):
        yield Case(batch)


CHECK = Check(
    number=21,
    name="published",
    rule="It is the scheme that it claims to be: with the same parameters it equals posenc's.",
    why="With a bucket that begins one token late, the slope of another head, or a reversed ramp, every law holds, but "
    "published weights give wrong results.",
    pains=(7, 8, 16),
    remedy="Compute it as the paper and its authors' code do: the docstring of the scheme in posenc has the formula.",
    trials=(
        Trial("scores", scores_are_its, _scores, oracle=oracles.its_scores, claims=("like",)),
        Trial(
            "other numbers of heads",
            scores_are_its,
            _other_options,
            {"heads": True},
            oracle=oracles.its_scores,
            claims=("like", "heads_option"),
        ),
        Trial("other options", scores_are_its, _other_options, oracle=oracles.its_scores, claims=("like",)),
        Trial("outputs", outputs_are_its, _outputs, oracle=oracles.its_outputs, claims=("like",)),
        Trial("added vectors", vectors_are_its, _vectors, oracle=oracles.its_vectors, claims=("like",)),
        Trial("added vectors in a layer", sums_heard_are_its, _sums, oracle=oracles.its_vectors, claims=("like",)),
        Trial("scores in a layer", scores_heard_are_its, _heard, oracle=oracles.its_forms, claims=("like",)),
        Trial(
            "contents in a layer",
            scores_of_contents_are_its,
            _contents,
            oracle=oracles.its_scores_of_what_is_heard,
            claims=("like", "softmax_scale"),
        ),
        Trial(
            "parameters in a layer", its_parameters_count, _parameters, oracle=oracles.its_parameters, claims=("like",)
        ),
    ),
)
