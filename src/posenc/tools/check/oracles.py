"""Computes what posenc's scheme gives for a batch, where a subject claims to be that scheme.

A script holds the resulting numbers, not this file.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, permutations, product
from typing import Any

import torch
from torch import Tensor, nn

from posenc.backends.attention import attention, logits
from posenc.positions.positions import Positions
from posenc.scheme import Scheme, bare_parts
from posenc.schemes.t5 import T5
from posenc.tools.check.captured import NO_SCORES, captured_in, of_all_tokens, of_one_token, onlookers
from posenc.tools.check.heads import Attention, Bias, Rotary, asked
from posenc.tools.check.layers import Layer
from posenc.tools.check.like import UNKNOWN, Convention, Sizes, adopt, adopted, captured_sizes, sizes_of
from posenc.tools.check.subjects import Batch, NotApplicableError, Subject, require

Said = dict[str, Any]  # plain numbers, which a script can hold
ROUND = 1e-10  # singular values below this share of the largest are rounding
SAME = 1e-4  # the relative difference that rounding to float32 may cause


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


def of_each(
    say: Callable[[Convention], Tensor], subject: Subject, made: Any, sizes: Sizes, changed: Mapping[str, Any]
) -> Said:
    """What the scheme gives, and what its other conventions give, by name, where that differs.

    NotApplicableError where the scheme has no such positions.
    """
    usual, *more = adopted(subject, made, sizes, changed)
    with _may_refuse(usual.scheme):
        expected = say(usual)
    others = {}
    for convention in more:
        with suppress(ValueError, NotImplementedError):
            other = say(convention)
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
    """Where a distance is the first of a bucket of T5 because its logarithm is a whole number: in float32, which the
    authors use, it may be rounded into this bucket or the one before."""
    found = torch.zeros_like(away, dtype=torch.bool)
    for part in bare_parts(scheme):
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
    scale: float | None = None,
) -> Tensor:
    """The scheme's scores of queries and keys at these tokens; NaN where either of two buckets is right."""
    of_queries, of_keys = (positions_of(subject, batch, tokens, convention) for tokens in (rows, columns))
    said = logits(
        query.double(),
        key.double(),
        convention.scheme,
        query_positions=of_queries,
        key_positions=of_keys,
        is_causal=subject.causal,
        scale=scale,
    ).detach()
    if of_keys.coords.dim() > 2:
        return said
    away = (of_keys.coords[:, None, :] - of_queries.coords[:, :, None]).abs()
    return said.masked_fill(between_buckets(convention.scheme, away)[:, None], torch.nan)


def its_scores(subject: Subject, batch: Batch, changed: Mapping[str, Any] = {}, **_: Any) -> Said:
    """The scheme's scores, (rows, heads, queries, keys): for a rotation, of the subject's queries and keys; for a bias,
    of zeros."""
    assert isinstance(subject, Rotary | Bias)
    made, (rows, columns) = subject.make(**changed), asked(batch)
    query: Tensor
    key: Tensor
    if isinstance(subject, Rotary):
        query, key = subject.content(batch)[:2]
    else:
        heads = subject.bias(made, *(subject.places(batch)[:, tokens] for tokens in (rows, columns))).size(1)
        query = key = torch.zeros(len(batch.ids), heads, batch.tokens, subject.head_dim, dtype=torch.float64)

    def say(convention: Convention) -> Tensor:
        return scores(subject, batch, convention, query[:, :, rows], key[:, :, columns], rows, columns)

    return of_each(say, subject, made, Sizes(query.size(1), subject.head_dim), changed)


def its_outputs(subject: Subject, batch: Batch, changed: Mapping[str, Any] = {}, **_: Any) -> Said:
    """The outputs of attention with the scheme, (rows, queries, heads, head_dim)."""
    assert isinstance(subject, Attention)
    query, key, value = (x.double() for x in subject.content(batch))
    rows, columns = asked(batch)

    def say(convention: Convention) -> Tensor:
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

    return of_each(say, subject, subject.make(**changed), Sizes(subject.heads, subject.head_dim), changed)


def its_vectors(subject: Subject, batch: Batch, changed: Mapping[str, Any] = {}, **_: Any) -> Said:
    """The vectors that the scheme adds, (rows, tokens, dim)."""

    def say(convention: Convention) -> Tensor:
        table = convention.scheme.table(positions_of(subject, batch, range(batch.tokens), convention), torch.float64)
        if table is None:
            raise ValueError("it adds no vectors")
        return table.detach().expand(len(batch.ids), -1, -1)

    made = subject.make(**changed)
    return of_each(say, subject, made, sizes_of(subject, made), changed)


def its_forms(subject: Subject, batch: Batch, changed: Mapping[str, Any] = {}, **_: Any) -> Said:
    """What the scheme says of the scores of one repeated token, whose query q and key k are unknown.

    A score is b(r) + q.a(r) + k.c(r) + q.M(r)k. ``expected`` is b, (heads, queries, keys), for the `onlookers`;
    ``forms`` (heads, forms, queries, keys) are a basis of what a, c and M can give for any q and k.
    """
    made, at = subject.make(**changed), onlookers(subject, batch)
    sizes = captured_sizes(captured_in(subject, made, same := of_one_token(batch)), same)
    require(sizes != UNKNOWN, NO_SCORES)
    convention, everyone = adopted(subject, made, sizes, changed)[0], range(batch.tokens)
    head_dim = getattr(convention.scheme, "head_dim", 4)
    count = 4 * head_dim + 9
    drawn = torch.randn(
        2, count + 2, sizes.heads or 1, 1, head_dim, generator=torch.Generator().manual_seed(3)
    ).double()
    drawn[:, 0] = 0.0
    query, key = drawn[0].expand(-1, -1, len(at), -1), drawn[1].expand(-1, -1, batch.tokens, -1)
    with _may_refuse(convention.scheme):
        said = scores(subject, batch, convention, query, key, at, everyone)
    expected, free = said[0], (said[1:] - said[0]).nan_to_num(0.0).transpose(0, 1)  # (heads, forms, queries, keys)
    _, s, v = torch.linalg.svd(free[:, :-1].flatten(2), full_matrices=False)
    kept = int((s > ROUND * s.amax().clamp(min=1e-300)).sum(-1).max())
    forms = v[:, :kept]
    last = free[:, -1].flatten(1)
    left = last - torch.einsum("hfn,hfm,hm->hn", forms, forms, last)
    require(
        float(left.abs().max()) <= 1e-6 * float(last.abs().max()) + 1e-12,
        "nothing to do: the scheme is no sum of products",
    )
    return {"expected": expected.tolist(), "forms": forms.unflatten(-1, free.shape[2:]).tolist()}


@torch.no_grad()
def its_parameters(subject: Subject, batch: Batch, changed: Mapping[str, Any] = {}, **_: Any) -> Said:
    """The names of the subject's parameters that belong to the scheme and affect attention in this batch."""
    made = subject.make(**changed)
    require(isinstance(made, nn.Module), "build makes no module, so its parameters are not known by name")
    sizes, names = captured_sizes(captured_in(subject, made, batch), batch), []
    require(sizes != UNKNOWN, NO_SCORES)
    usual = adopted(subject, made, sizes, changed)[0].scheme
    require({"score", "value", "rotate"} & set(usual.doors), "nothing to do: what is added to x is compared itself")
    shape = (1, sizes.heads or 1, batch.tokens, getattr(usual, "head_dim", 4))
    generator = torch.Generator().manual_seed(3)
    query, key, value = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))

    def outputs(scheme: Scheme) -> Tensor:
        at = positions_of(subject, batch, range(batch.tokens), Convention("", scheme))
        out = attention(query, key, value, scheme, query_positions=at, key_positions=at, is_causal=subject.causal)
        assert isinstance(out, Tensor)
        return out

    with _may_refuse(usual):
        before = outputs(usual)
        for name, parameter in made.named_parameters():
            kept = parameter.clone()
            parameter.add_(torch.linspace(1, 2, parameter.numel()).view_as(parameter).to(parameter))
            moved = adopt(copy.deepcopy(usual), subject, made)
            parameter.copy_(kept)
            if not torch.equal(before, outputs(moved)):
                names.append(name)
    require(names, "nothing to do: the scheme has no parameters that attention goes by")
    return {"names": names}


# -- of queries and keys that are captured -----------------------------------------------------------------------------


def its_scores_of_what_is_heard(subject: Subject, batch: Batch, changed: Mapping[str, Any] = {}, **_: Any) -> Said:
    """The scheme's scores of a layer's own queries and keys, (rows, heads, queries, keys), for the `onlookers`.

    The queries and keys are found among the layer's products by four rows: the second has other tokens in one part, the
    third in another part, and the fourth in both. In the scores of row 1 - row 2 - row 3 + row 4, only the product of
    the change of queries with the change of keys is left.
    """
    assert isinstance(subject, Layer)
    made, at = subject.make(**changed), onlookers(subject, batch)
    captured = captured_in(subject, made, batch)
    attentions = of_all_tokens(captured, batch)
    require(attentions, NO_SCORES)
    came = attentions[0][0]
    convention = adopted(subject, made, Sizes(came.size(1), captured.head_dim), changed)[0]
    scheme, unturned = convention.scheme, batch
    if "rotate" in scheme.doors:  # with all tokens at one position, nothing is rotated
        require(subject.can("positions"), "let call take `positions`, to find queries and keys before they are turned")
        unturned = replace(batch, positions=[[subject.at(0)] * batch.tokens] * len(batch.ids))
    with _may_refuse(scheme):
        number, scale = queries_and_keys(subject, made, unturned, convention)
        query, key = pairs_of(captured.products, came, getattr(scheme, "head_dim", None))[number]
        given = None if scheme.scale is not None else subject.softmax_scale or scale
        said = scores(subject, batch, convention, query[:, :, at], key, at, range(batch.tokens), given)
    return {"expected": said.tolist()}


def queries_and_keys(subject: Subject, made: Any, batch: Batch, convention: Convention) -> tuple[int, float]:
    """The index in `pairs_of` of the queries and keys, and the factor by which their products are multiplied."""
    captured, everyone = captured_in(subject, made, batch), range(batch.tokens)
    ((came, _), *_), (asking, asked_of) = of_all_tokens(captured, batch), other_tokens(batch)

    def moved(scores: Tensor) -> Tensor:
        """The joint effect of queries and keys, without constants of a row, such as its maximum."""
        together = (scores[0] - scores[1] - scores[2] + scores[3])[:, asking][..., asked_of]
        return together - together.mean(-1, keepdim=True)

    wanted = moved(came)
    require(wanted.isfinite().all(), "nothing to do: scores that would show its queries and keys are hidden")
    for number, (query, key) in enumerate(
        pairs_of(captured.products, came, getattr(convention.scheme, "head_dim", None))
    ):
        if share(moved(query @ key.mT), wanted) is not None:
            # The scheme may scale them even where it rotates nothing.
            said = scores(subject, batch, convention, query, key, everyone, everyone, 1.0)
            return number, share(moved(said), wanted) or 1.0
    raise NotApplicableError(
        "nothing to do: no products of two of what it makes are its scores, so its queries and keys are not known"
    )


def share(ours: Tensor, theirs: Tensor) -> float | None:
    """The factor by which ours must be multiplied to give theirs; None if there is none."""
    found = float((ours * theirs).sum() / (ours * ours).sum().clamp(min=1e-300))
    size = float(theirs.abs().max())
    return found if size > 0 and float((found * ours - theirs).abs().max()) < SAME * size else None


def other_tokens(batch: Batch) -> tuple[list[int], list[int]]:
    """The tokens in which the second row differs from the first, and those in which the third does."""
    require(len(batch.ids) == 4, "nothing to do: the rows are not four")
    first, second, third, fourth = batch.ids
    asking, asked_of = ([n for n in range(batch.tokens) if row[n] != first[n]] for row in (second, third))
    both = [second[n] if n in asking else third[n] for n in range(batch.tokens)]
    right = both == fourth and asking and len(asked_of) > 1 and not set(asking) & set(asked_of)
    require(right, "nothing to do: the rows do not differ as they must")
    return asking, asked_of


def pairs_of(products: list[Tensor], scores: Tensor, head_dim: int | None) -> list[tuple[Tensor, Tensor]]:
    """The candidates for queries and keys, (rows, heads, tokens, head_dim), among these matrix products. A product may
    hold up to three of them side by side, for all heads together or in each head, and keys may have fewer heads."""
    rows, heads, tokens = scores.size(0), scores.size(1), scores.size(-1)
    found: list[tuple[int, Tensor]] = []
    for x in products:
        if x.dim() == 2 and x.size(0) == rows * tokens:
            x = x.unflatten(0, (rows, tokens))
        if x.dim() != 3 or x.shape[:2] != (rows, tokens):
            continue
        for parts, groups in product((1, 2, 3), [n for n in range(1, heads + 1) if heads % n == 0]):
            width, rest = divmod(x.size(-1), parts * groups)
            if rest or width != (head_dim or width):
                continue
            apart = [x.unflatten(-1, (parts, groups, width)).unbind(2)]
            apart += [x.unflatten(-1, (groups, parts, width)).unbind(3)] if parts > 1 else []
            for part in chain.from_iterable(apart):
                found.append((groups, part.transpose(1, 2).repeat_interleave(heads // groups, 1).double()))
    both = ((query, key) for (groups, query), (_, key) in permutations(found, 2) if groups == heads)
    return [(query, key) for query, key in both if query.size(-1) == key.size(-1)]
