"""Checks that a subject is the scheme that it claims to be (check 21)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from posenc import T5, Positions, Scheme, attention, logits
from posenc_check.captured import (
    EXCHANGED,
    NO_SCORES,
    of_one_token,
    onlookers,
    scores_of,
    sums_in,
)
from posenc_check.checks.rotations import fastest
from posenc_check.like import UNKNOWN_SIZES, Convention, LayerSizes, captured_sizes, conventions_of, sizes_of
from posenc_check.outcome import Outcome, Outcomes, largest, near
from posenc_check.subjects import (
    Attention,
    Batch,
    Bias,
    Layer,
    NotApplicableError,
    Rotary,
    Subject,
    applies,
    query_and_key_tokens,
    require,
)
from posenc_check.trial import Case, Check, Trial, TrialPlan

FLOAT32_EPS = 2.0**-23  # of float32, in which phases and logarithms are usual


def as_tensors(expected: Any, others: Mapping[str, Any]) -> dict[str, Tensor]:
    """What the scheme gives, under the name "", and what its other conventions give, by name."""
    return {name: torch.tensor(x, dtype=torch.float64) for name, x in {"": expected, **others}.items()}


def share_of_rounding(subject: Layer, batch: Batch) -> float:
    """The share by which numbers may be off: 64 units of float32, and 4 more per position, for phases in float32."""
    return (4 * (float(subject.places(batch).max()) if batch.grid is None else 0.0) + 64) * FLOAT32_EPS


def minus_own_score(scores: Tensor, own: list[int]) -> Tensor:
    """Scores minus that of each query for its ``own`` key: a softmax does not see what is added to a whole row."""
    return scores - scores[..., range(len(own)), own][..., None]


def scores_match(
    subject: Rotary | Bias, batch: Batch, expected: Any, others: dict[str, Any], changed: Mapping[str, Any] = {}
) -> Outcomes:
    """What is added to scores, or products of rotated queries and keys, minus a token's own, against the scheme's."""
    made, places = subject.make(**changed), subject.places(batch)
    rows, columns = query_and_key_tokens(batch)
    if isinstance(subject, Rotary):
        content = subject.content(batch)[:2]
        query, key = (subject.rotate(made, x, places, which).double() for which, x in enumerate(content))
        actual = (query @ key.mT / subject.head_dim**0.5)[:, :, rows][..., columns]
    else:
        actual = subject.bias(made, places[:, rows], places[:, columns]).double()
    own = [columns.index(n) for n in rows]
    given = as_tensors(expected, others)
    seen = subject.visible(batch)[:, None, rows][..., columns] & ~given[""].isnan()  # NaN: the scheme leaves it open
    actual, *tables = (minus_own_score(x, own).masked_fill(~seen, 0.0) for x in (actual, *given.values()))
    conventions = dict(zip(given, tables, strict=True))
    scheme = conventions[""]
    applies(float(scheme.abs().max()) > 0, "the scheme gives nothing to any of these tokens")
    if actual.shape != scheme.shape and actual.size(1) != 1:
        yield "shape", Outcome(False, str(tuple(scheme.shape)), str(tuple(actual.shape)))
        return
    actual = actual.expand_as(scheme)
    share = (4 * (float(places.max()) * fastest(subject) if isinstance(subject, Rotary) else 0.0) + 32) * FLOAT32_EPS
    description = describe_convention(actual, conventions, share)
    for head in range(actual.size(1)):
        one = scheme[:, head]
        ok, says, shows = near(one, actual[:, head], share * largest(one))
        yield f"head {head}", Outcome(ok, says, shows + description)


def compare_conventions(actual: Tensor, conventions: dict[str, Tensor], tolerance: float) -> Outcome:
    """`near` the scheme; and, where it is not, the outcome says what it is instead (see `describe_convention`)."""
    outcome = near(conventions[""], actual, tolerance)
    if outcome.ok or actual.shape != conventions[""].shape:
        return outcome
    description = describe_convention(actual, conventions, tolerance / max(float(conventions[""].abs().max()), 1e-300))
    return outcome._replace(actual=outcome.actual + description)


def describe_convention(actual: Tensor, conventions: dict[str, Tensor], share: float) -> str:
    """Says which other convention of the scheme this is, or how many times the scheme; "" if it is neither."""
    expected = conventions[""]
    for name, other in conventions.items():
        if name and near(other, actual, share * largest(other)).ok:
            require(not name.startswith(EXCHANGED), EXCHANGED)
            return f". This is {name}"
    times = float((actual * expected).nansum() / (expected * expected).nansum())
    if abs(times - 1) > share and near(times * expected, actual, share * abs(times) * float(expected.abs().max())).ok:
        return f". This is {times:.6g} times the scheme"
    return ""


def outputs_match(subject: Attention, batch: Batch, expected: Any, others: Any, tolerance: float) -> Outcome:
    """The outputs against those of attention with the scheme, for the same queries, keys and values."""
    actual = subject.run(subject.make(), batch).detach().double()
    return compare_conventions(actual, as_tensors(expected, others), tolerance)


def captured_sums_match(subject: Layer, batch: Batch, expected: Any, others: Any) -> Outcome:
    """What is added to tokens where positions first enter, minus the first, against the vectors of the scheme."""
    applies(len(batch.ids) == 2 and all(len(set(row)) == 1 for row in batch.ids), "the rows are not of one token each")
    captured, front = sums_in(subject, subject.make(), batch), subject.registers
    conventions = {name: x[0, front:] - x[0, front : front + 1] for name, x in as_tensors(expected, others).items()}
    captured = [x for x in captured if x.shape == conventions[""].shape]  # several where something else is added, too
    require(captured, "let positions be added to tokens before any other operation on both: no such sum was observed")
    tolerance = share_of_rounding(subject, batch) * max(float(x.abs().max()) for x in (conventions[""], *captured))
    if any(near(conventions[""], x, tolerance).ok for x in captured):
        return Outcome(True, "", "")
    return compare_conventions(captured[0], conventions, tolerance)


def captured_scores_match(subject: Layer, batch: Batch, expected: Any, forms: Any) -> Outcomes:
    """The scores of one repeated token against the scheme's: what it adds, plus any combination of its forms."""
    at, captured = onlookers(subject, batch), scores_of(subject, subject.make(), of_one_token(batch))
    require(captured, NO_SCORES)
    actual, front = captured[0][0][:, at], subject.registers
    published, open_to = (torch.tensor(x, dtype=torch.float64) for x in (expected, forms))
    if actual.shape != published.shape:
        yield "shape", Outcome(False, str(tuple(published.shape)), str(tuple(actual.shape)))
        return
    seen = actual.isfinite() & published.isfinite()
    seen[..., :front] = False
    actual, published, open_to = (minus_own_score(x, at) for x in (actual, published, open_to))
    for head in range(actual.size(0)):
        here = seen[head]
        difference = (actual[head] - published[head])[here]
        basis = open_to[head][:, here]
        possible = difference.numel() >= 1.5 * len(basis) + 4
        require(possible, "let it have more positions: there are too few pairs to tell the scheme from others")
        left = difference
        if len(basis) and float(basis.abs().max()) > 0:
            left = (
                difference - basis.T @ torch.linalg.lstsq(basis.T, difference[:, None], driver="gelsd").solution[:, 0]
            )
        size = max(float(x[here].abs().max()) for x in (captured[0][0][:, at][head], actual[head]))
        tolerance = (share_of_rounding(subject, batch) if len(basis) else 64 * FLOAT32_EPS) * size
        shown = torch.zeros_like(actual[head])
        shown[here] = left
        fitted = torch.where(here, actual[head] - shown, 0.0)
        ok, says, shows = near(fitted, torch.where(here, actual[head], 0.0), tolerance)
        scaled = (
            ""
            if ok
            else describe_convention(actual[head][here], {"": published[head][here]}, tolerance / max(size, 1e-300))
        )
        yield f"head {head} [query, key]", Outcome(ok, says, shows + scaled)


# -- cases -------------------------------------------------------------------------------------------------------------


NEAR_DISTANCES = 300  # distances that are all tried: past it no scheme of text has more than a few steps
FAR_POSITIONS = (0, 1, 3, 8, 20, 46, 90, 127, 128, 300, 511, 512, 513, 1000, 1025, 2047, 4096, 10_000, 40_000, 100_000)
GRIDS = ((3, 5), (5, 3), (1, 7), (7, 9))


def _require(plan: TrialPlan, *kinds: type) -> None:
    require(plan.subject.like is not None, "claim `like`, the scheme of posenc that it is said to be")
    applies(isinstance(plan.subject, kinds), "other things are compared of its kind")


def _position_rows(plan: TrialPlan, long: int) -> Iterator[Batch]:
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
        has_positions = subject.can("positions")
        queries = {tokens - 1} if subject.causal else {tokens - 1, tokens // 3, 0}
        row = plan.line(1, tokens) if has_positions else plan.text(1, tokens)
        yield replace(row, queries=tuple(sorted(queries))) if tokens == long and has_positions else row
    if subject.can("positions"):
        far = [p for p in FAR_POSITIONS if plan.has(p)]
        if len(far) > 1:
            yield plan.row(far)
    elif subject.takes("offset") and plan.has(1006):
        yield plan.line(1, 7, start=1000)


def _scores(plan: TrialPlan) -> Iterator[Case]:
    _require(plan, Rotary, Bias)
    for batch in _position_rows(plan, NEAR_DISTANCES):
        yield Case(batch)


def _other_options(plan: TrialPlan) -> Iterator[Case]:
    """Short rows of what each of the options that are claimed to count builds."""
    _require(plan, Rotary, Bias)
    function = callable(plan.subject.like) and not hasattr(plan.subject.like, "parameters")
    require(function, "give `like` as a function of the options, to compare others too")
    require(plan.subject.varied, "name in `varied` another value of each option, to run this")
    for name, value in plan.subject.varied.items():
        for batch in list(_position_rows(plan, 60))[-2:]:
            yield Case(batch, {"changed": {name: value}})


def _outputs(plan: TrialPlan) -> Iterator[Case]:
    _require(plan, Attention)
    for batch in _position_rows(plan, NEAR_DISTANCES):
        highest = int(plan.subject.places(batch).max())
        yield Case(batch, {"tolerance": plan.tolerance(highest)})


def _added_vectors(plan: TrialPlan) -> Iterator[Case]:
    _require(plan, Layer)
    for batch in _rows(plan, 40):
        ids = [[5] * batch.tokens, [11] * batch.tokens]
        yield Case(replace(batch, ids=ids, positions=batch.positions and batch.positions * 2))


def _rows(plan: TrialPlan, tokens: int) -> Iterator[Batch]:
    """A row of that many tokens at least, or a grid."""
    subject = plan.subject
    if subject.takes("grid"):
        for height, width in (subject.max_grid or (7, 9), (3, 5)):
            yield replace(plan.text(1, subject.registers + height * width), grid=(height, width))
        return
    if subject.axes > 1:
        yield from _position_rows(plan, 0)
        return
    tokens = min(tokens, plan.limit)
    yield plan.text(1, tokens)
    if subject.can("positions") and subject.axes == 1:
        places = [p if p < tokens // 2 else p + 1000 for p in range(tokens)]
        if plan.has(places[-1]):
            yield plan.row(places)


def _captured_scores(plan: TrialPlan) -> Iterator[Case]:
    _require(plan, Layer)
    threshold = plan.subject.threshold  # on both sides of it
    around = [plan.text(1, n) for n in ((threshold, threshold + 1) if threshold else ()) if n <= plan.limit]
    for batch in (*around, *_rows(plan, 257)):
        yield Case(batch)


OracleValues = dict[str, Any]  # plain numbers, which a script can hold
RANK_TOLERANCE = 1e-10  # singular values below this share of the largest are rounding


def positions_of(subject: Subject, batch: Batch, tokens: Sequence[int], convention: Convention) -> Positions:
    """The positions of these tokens of a batch, as the scheme takes them."""
    places = subject.places(batch).cpu()
    if batch.grid is not None and places.dim() == 2:
        raster = torch.cartesian_prod(*map(torch.arange, batch.grid))
        places = torch.cat((raster.new_zeros(subject.registers, 2), raster)).expand(len(batch.ids), -1, -1)
    order = torch.tensor(batch.order or [list(range(batch.tokens))])
    document = torch.tensor(batch.document or [[0] * batch.tokens])
    coords = convention.places(places[:, tokens])
    return Positions(coords, order=order[:, tokens], document=document[:, tokens])


def over_conventions(
    evaluate: Callable[[Convention], Tensor], subject: Subject, made: Any, sizes: LayerSizes, changed: Mapping[str, Any]
) -> OracleValues:
    """What the scheme gives, and what its other conventions give, by name, where that differs."""
    usual, *more = conventions_of(subject, made, sizes, changed)
    with _may_refuse(usual.scheme):
        expected = evaluate(usual)
    others = {}
    for convention in more:
        with suppress(ValueError, NotImplementedError):
            other = evaluate(convention)
            if other.shape == expected.shape and not torch.allclose(other, expected, equal_nan=True):
                others[convention.name] = other.tolist()
    return {"expected": expected.tolist(), "others": others}


@contextmanager
def _may_refuse(scheme: Scheme) -> Iterator[None]:
    """Turns an error of the scheme, as of positions that it does not have, into NotApplicableError."""
    try:
        yield
    except (ValueError, NotImplementedError) as error:
        raise NotApplicableError(f"nothing to do: {type(scheme).__name__} of posenc says {error}") from error


def between_buckets(scheme: Scheme, away: Tensor) -> Tensor:
    """Where float32 may round a distance into the bucket of T5 before: its logarithm is a whole number."""
    found = torch.zeros_like(away, dtype=torch.bool)
    for part in scheme.modules():
        if isinstance(part, T5):
            side = part.num_buckets // 2 if part.bidirectional else part.num_buckets
            exact, shared = side // 2, side - side // 2
            whole = {part.max_distance**m * exact ** (shared - m) for m in range(1, shared)}
            for edge in part.edges:
                found |= (away == edge) & (edge**shared in whole)
    return found


def scores(
    subject: Subject,
    batch: Batch,
    convention: Convention,
    query: Tensor,
    key: Tensor,
    rows: Sequence[int],
    columns: Sequence[int],
) -> Tensor:
    """The scheme's scores of queries and keys at these tokens; NaN where either of two buckets is right."""
    of_queries, of_keys = (positions_of(subject, batch, tokens, convention) for tokens in (rows, columns))
    description = logits(
        query.double(),
        key.double(),
        convention.scheme,
        query_positions=of_queries,
        key_positions=of_keys,
        is_causal=subject.causal,
    ).detach()
    if of_keys.coords.dim() > 2:
        return description
    away = (of_keys.coords[:, None, :] - of_queries.coords[:, :, None]).abs()
    return description.masked_fill(between_buckets(convention.scheme, away)[:, None], torch.nan)


def scheme_scores(subject: Subject, batch: Batch, changed: Mapping[str, Any] = {}, **_: Any) -> OracleValues:
    """The scheme's scores: for a rotation, of the subject's queries and keys; for a bias, of zeros."""
    assert isinstance(subject, Rotary | Bias)
    made, (rows, columns) = subject.make(**changed), query_and_key_tokens(batch)
    query: Tensor
    key: Tensor
    if isinstance(subject, Rotary):
        query, key = subject.content(batch)[:2]
    else:
        heads = subject.bias(made, *(subject.places(batch)[:, tokens] for tokens in (rows, columns))).size(1)
        query = key = torch.zeros(len(batch.ids), heads, batch.tokens, subject.head_dim, dtype=torch.float64)

    def evaluate(convention: Convention) -> Tensor:
        return scores(subject, batch, convention, query[:, :, rows], key[:, :, columns], rows, columns)

    return over_conventions(evaluate, subject, made, LayerSizes(query.size(1), subject.head_dim), changed)


def scheme_outputs(subject: Subject, batch: Batch, **_: Any) -> OracleValues:
    """The outputs of attention with the scheme, (rows, queries, heads, head_dim)."""
    assert isinstance(subject, Attention)
    query, key, value = (x.double() for x in subject.content(batch))
    rows, columns = query_and_key_tokens(batch)

    def evaluate(convention: Convention) -> Tensor:
        out = attention(
            query[:, :, rows],
            key[:, :, columns],
            value[:, :, columns],
            convention.scheme,
            query_positions=positions_of(subject, batch, rows, convention),
            key_positions=positions_of(subject, batch, columns, convention),
            is_causal=subject.causal,
            backend="reference",
        )
        assert isinstance(out, Tensor)
        return out.detach().transpose(1, 2)

    return over_conventions(evaluate, subject, subject.make(), LayerSizes(subject.heads, subject.head_dim), {})


def scheme_vectors(subject: Subject, batch: Batch, **_: Any) -> OracleValues:
    """The vectors that the scheme adds, (rows, tokens, dim)."""

    def evaluate(convention: Convention) -> Tensor:
        table = convention.scheme.table(positions_of(subject, batch, range(batch.tokens), convention), torch.float64)
        if table is None:
            raise ValueError("it adds no vectors")
        return table.detach().expand(len(batch.ids), -1, -1)

    made = subject.make()
    return over_conventions(evaluate, subject, made, sizes_of(subject, made), {})


def scheme_forms(subject: Subject, batch: Batch, **_: Any) -> OracleValues:
    """What the scheme says of the scores of one repeated token, whose query q and key k are unknown.

    A score is b(r) + q.a(r) + k.c(r) + q.M(r)k. ``expected`` is b, (heads, queries, keys), for the `onlookers`;
    ``forms`` (heads, forms, queries, keys) are a basis of what a, c and M can give for any q and k.
    """
    made, at = subject.make(), onlookers(subject, batch)
    sizes = captured_sizes(subject, made, of_one_token(batch))
    require(sizes != UNKNOWN_SIZES, NO_SCORES)
    convention, everyone = conventions_of(subject, made, sizes, {})[0], range(batch.tokens)
    head_dim = getattr(convention.scheme, "head_dim", 4)
    count = 4 * head_dim + 9
    content = torch.randn(
        2, count + 2, sizes.heads or 1, 1, head_dim, generator=torch.Generator().manual_seed(3)
    ).double()
    content[:, 0] = 0.0
    query, key = content[0].expand(-1, -1, len(at), -1), content[1].expand(-1, -1, batch.tokens, -1)
    with _may_refuse(convention.scheme):
        description = scores(subject, batch, convention, query, key, at, everyone)
    expected, free = (
        description[0],
        (description[1:] - description[0]).nan_to_num(0.0).transpose(0, 1),
    )  # (heads, forms, queries, keys)
    _, s, v = torch.linalg.svd(free[:, :-1].flatten(2), full_matrices=False)
    rank = int((s > RANK_TOLERANCE * s.amax().clamp(min=1e-300)).sum(-1).max())
    forms = v[:, :rank]
    last = free[:, -1].flatten(1)
    left = last - torch.einsum("hfn,hfm,hm->hn", forms, forms, last)
    applies(float(left.abs().max()) <= 1e-6 * float(last.abs().max()) + 1e-12, "the scheme is no sum of products")
    return {"expected": expected.tolist(), "forms": forms.unflatten(-1, free.shape[2:]).tolist()}


CHECK = Check(
    number=21,
    name="published",
    rule="It is the scheme that it claims to be: with the same parameters it equals posenc's.",
    why="With a bucket that begins one token late, the slope of another head, or a reversed ramp, every law holds, but "
    "published weights give wrong results.",
    pains=(7, 8, 16),
    remedy="Compute it as the paper and its authors' code do: the docstring of the scheme in posenc has the formula.",
    trials=(
        Trial("scores", scores_match, _scores, oracle=scheme_scores, claims=("like",)),
        Trial("other options", scores_match, _other_options, oracle=scheme_scores, claims=("like",)),
        Trial("outputs", outputs_match, _outputs, oracle=scheme_outputs, claims=("like",)),
        Trial("added vectors in a layer", captured_sums_match, _added_vectors, oracle=scheme_vectors, claims=("like",)),
        Trial("scores in a layer", captured_scores_match, _captured_scores, oracle=scheme_forms, claims=("like",)),
    ),
)
