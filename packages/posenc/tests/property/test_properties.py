"""What must hold of attention with any scheme at any positions, in every backend that takes the call."""

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import posenc
from posenc import Encoding, PositionError, Positions
from posenc.backends import call, choose
from posenc.schemes.catalog import CATALOG
from tests.backends.parity_cases import FAST, ROWS, projection, small_blocks
from tests.backends.test_parity import check_close
from tests.property.strategies import (
    ATTENDING,
    NAMES,
    PADDING,
    Setting,
    documents,
    law,
    over,
    placed,
    settings_of,
    texts,
)
from tests.rows import with_more

U = 2.0**-53  # what rounding to double precision is off by, relatively


@contextmanager
def blocks(small: bool) -> Iterator[None]:
    """Backends as they are, or with blocks so small that a few tokens are many, and "auto" choosing as if for many."""
    with pytest.MonkeyPatch.context() as patch:
        if small:
            small_blocks(patch)
            for module, name, size in (
                (choose, "FEW_SCORES", 1),
                (choose, "FEW_PAIRS", 1),
                (choose, "FEW_ON_PLANE", 1),
            ):
                patch.setattr(module, name, size)
            patch.setattr(call, "FEW_QUERIES", 2)
        yield


def ends(it: Setting, backend: str) -> tuple[Tensor, Tensor | None] | ValueError:
    """What a backend gives, or why it does not."""
    try:
        return it.run(backend)
    except ValueError as error:
        return error


def is_refusal(end: object, backend: str) -> bool:
    return isinstance(end, ValueError) and str(end).startswith(f"backend '{backend}' cannot run this: ")


# --- how close is close -----------------------------------------------------------------------------------------------


def seen_by(it: Setting) -> Tensor:
    """Which query sees which key, (batch, heads, queries, keys), from positions and mask as they are defined."""
    (document, order), (of_key, key_order) = ((p.document, p.order) for p in (it.query_positions, it.key_positions))
    seen = (document[:, :, None] == of_key[:, None]) & (of_key != PADDING)[:, None]
    if it.how["is_causal"]:
        seen = seen & (key_order[:, None] <= order[:, :, None])
    seen = seen[:, None].expand(*it.query.shape[:3], it.key.size(2))
    mask = it.how["attn_mask"]
    if mask is not None:
        seen = seen & (mask if mask.dtype == torch.bool else mask > -torch.inf)
    return seen


def norms(x: Tensor) -> Tensor:
    return x.norm(dim=-1)


def opened(encoding: Encoding, query: Tensor) -> Tensor:
    """The query with what the scheme adds to the input."""
    if "add" not in encoding.doors:
        return query
    return encoding.add(query.transpose(1, 2).flatten(2)).unflatten(2, (query.size(1), -1)).transpose(1, 2)


def grouped(x: Tensor, it: Setting) -> Tensor:
    """What every key head has, for every query head."""
    return x.repeat_interleave(it.query.size(1) // it.key.size(1), 1)


@torch.no_grad()
def off(it: Setting, u: float = U, rounded: float = 0.0, shift: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """How far two ways to compute a call may differ, in the output and the log-sum-exp of every query, and which
    queries see a key. ``u`` is what the precision of scores is off by; ``rounded``, that of the tensors, if another.

    A score is a sum of products, off by u times the sum of their sizes and once more for each addition; those sizes are
    at most |q| (|k| + |R|), R the vectors of the scheme that a query meets, and what the scheme adds. Where the tensors
    are of half precision, turned or changed queries and keys are rounded, which is off by |q| |k| times that. An angle
    p theta is off by itself times 2^-53, in both alike, unless one has positions that differ by ``shift``.

    If scores s_j of weights a_j are off by d_j, the weights are off by 2 e / (1 - e) in all, e = sum of
    a_j (exp |d_j| - 1), and so is the output, times the largest value; but never by more than 2, as weights add up to
    1. The log-sum-exp is off by the largest d_j.
    """
    encoding = it.scheme(it.query_positions, it.key_positions, dtype=torch.float64)
    seen, query, how = seen_by(it), opened(encoding, it.query), it.how
    scores = posenc.logits(query, it.key, encoding, is_causal=how["is_causal"], scale=how["scale"])
    if how["attn_mask"] is not None and how["attn_mask"].dtype != torch.bool:
        scores = scores + how["attn_mask"].double()
    seen = seen & (scores > -torch.inf)
    sighted, scores = seen.any(-1), scores.masked_fill(~seen, -torch.inf)

    parameters = dict(it.scheme.named_parameters())
    width = query.size(-1)
    factor = width**-0.5 if how["scale"] is None else abs(how["scale"])
    asking = norms(query)[..., None] + sum(
        norms(p).max() for p in parameters.values() if p.dim() and p.size(-1) == width
    )
    met = sum(norms(p).max() * p.size(-1) ** 0.5 for p in parameters.values() if p.dim() > 1)
    products = factor * asking * (grouped(norms(it.key), it)[..., None, :] + met)
    largest = sum((p.abs().max() for p in parameters.values()), torch.zeros(()))
    if "distance_aware" in it.name:  # whose factor is at most 1 + e^v
        products = products * (1 + largest.exp())
    sizes = products + largest + scores.masked_fill(~seen, 0.0).abs()
    if "transformer_xl" in it.name or shift:
        furthest = max(float(p.coords.abs().max()) for p in (it.query_positions, it.key_positions) if len(p))
        sizes = sizes * (1 + (furthest + abs(shift)) * U / u)
    terms = 2 * query.size(1) * width + 32
    wrong = (2 * terms * u * sizes + 8 * rounded * products).masked_fill(~seen, 0.0)

    weights = scores.masked_fill(~sighted[..., None], 0.0).softmax(-1)
    e = (weights * wrong.clamp(max=50).expm1()).sum(-1)
    share = torch.where(e < 0.5, 2 * e / (1 - e), 2.0)
    values = grouped(it.value.abs().amax((-2, -1)), it)
    values = values + sum(2 * p.abs().max() for name, p in parameters.items() if "value" in name)
    out = values[..., None] * (share + 4 * u * (terms + it.key.size(2)) + 8 * rounded)
    lse = wrong.amax(-1) + 32 * u * (1 + scores.logsumexp(-1).abs()) + 2 * rounded
    return out, lse, sighted


def check_same(
    found: tuple[Tensor, Tensor | None],
    truth: tuple[Tensor, Tensor | None],
    it: Setting,
    allowed: tuple[Tensor, Tensor, Tensor] | None = None,
) -> None:
    """Two ends of a call are as far apart as they may be, and no further; who sees nothing gets zeros and -inf."""
    (out, lse), (true_out, true_lse) = found, truth
    assert out.shape == true_out.shape
    assert out.dtype == it.query.dtype
    if out.numel() == 0 or it.key.size(2) == 0:
        assert not out.any()
        return
    may, may_lse, sighted = off(it) if allowed is None else allowed
    assert not out[~sighted].any()
    assert true_out.isfinite().all()
    distance = (out - true_out).abs().amax(-1)
    assert (distance <= may).all(), f"output: {distance.max()} where {may[distance > may]} is allowed"
    assert (lse is None) == (true_lse is None)
    if lse is not None and true_lse is not None:
        assert (lse[~sighted] == -torch.inf).all()
        distance = (lse - true_lse).abs()[sighted]
        assert (distance <= may_lse[sighted]).all(), f"log-sum-exp: {distance.max()}"


# --- (1) every backend is the reference -------------------------------------------------------------------------------


def by_turns(names: Iterable[str], turn: int) -> list[Any]:
    """The names as parameters: `make test` tries a third of them in one test, and another third in another."""
    third = sorted({*NAMES, *ATTENDING})[turn::3]
    return with_more([name for name in names if name in third], [name for name in names if name not in third])


@pytest.mark.parametrize("name", by_turns(sorted({*NAMES}), 0))
@law(4)
@given(st.data(), st.booleans(), st.booleans())
def test_every_backend_ends_as_the_reference_does(
    name: str, data: st.DataObject, small: bool, with_gradients: bool
) -> None:
    """The same numbers, or an error of the same kind; or it says that it cannot run the call. "auto" always runs. And
    what it was given is as it was."""
    it = data.draw(texts((name,)) | settings_of((name,)))
    before = [x.clone() for x in it.tensors]
    with blocks(small), torch.set_grad_enabled(with_gradients):
        truth = ends(it, "reference")
        for backend in (*FAST, "auto"):
            found = ends(it, backend)
            if backend != "auto" and is_refusal(found, backend):
                continue
            if isinstance(truth, PositionError) and not isinstance(found, ValueError):
                assert backend in ("chunked", "auto")  # it never meets tokens that nothing sees
                continue
            if isinstance(truth, ValueError) or isinstance(found, ValueError):
                assert type(found) is type(truth), f"{backend}: {found!r}, where the reference gives {truth!r}"
                assert str(found).split()[:2] == str(truth).split()[:2]  # a block names what it finds first
                continue
            check_same(found, truth, it)
    for x, was in zip(it.tensors, before, strict=True):
        assert torch.equal(x, was)


# --- (1) and so are its gradients -------------------------------------------------------------------------------------


def gradients(it: Setting, backend: str) -> dict[str, Tensor]:
    """Output, log-sum-exp, and the gradient of a fixed projection of both, of everything that has one."""
    leaves = {"query": it.query, "key": it.key, "value": it.value}
    leaves = {name: x.detach().requires_grad_() for name, x in leaves.items()}
    mask = it.how["attn_mask"]
    if mask is not None and mask.is_floating_point():
        leaves["attn_mask"] = mask.detach().double().requires_grad_()
    how = {name: leaves.get(name, value) for name, value in it.how.items()}
    out, lse = replace(it, **{name: leaves[name] for name in ("query", "key", "value")}, how=how).run(backend)
    found = {"output": out} if lse is None else {"output": out, "log-sum-exp": lse}
    # A log-sum-exp of -inf has no gradient to speak of; where the query sees something, it has.
    loss = sum((x.masked_fill(x == -torch.inf, 0.0) * projection(x)).sum() for x in found.values())
    assert isinstance(loss, Tensor)
    leaves |= dict(it.scheme.named_parameters())
    three = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return {name: x.detach() for name, x in found.items()} | {
        f"gradient of {name}": g for name, g in zip(leaves, three, strict=True)
    }


@pytest.mark.parametrize(
    "name", by_turns([name for name in ATTENDING if name != "cope"], 1)
)  # it has corners: user_schemes.py
@law(3)
@given(st.data(), st.booleans())
def test_every_backend_has_the_gradients_of_the_reference(name: str, data: st.DataObject, small: bool) -> None:
    """And a query that sees nothing, as a key that nothing sees, has none at all."""
    calm: dict[str, Any] = {"wild": False, "loud": (1.0, 1.0, 0.0)}
    lengths = (1, 9, 17, 33, 70)
    it = data.draw(texts((name,), lengths, **calm) | settings_of((name,), lengths, **calm))
    with blocks(small):
        if 0 in (it.query.numel(), it.key.numel()) or isinstance(ends(it, "reference"), ValueError):
            return
        truth = gradients(it, "reference")
        unseen = ~seen_by(it).any(2)
        for backend in (*FAST, "auto"):
            if is_refusal(ends(it, backend), backend):
                continue
            found = gradients(it, backend)
            check_close(found, truth, it)  # type: ignore[arg-type]
            assert not found["gradient of query"][~seen_by(it).any(-1)].any()
            lonely = unseen.unflatten(1, (it.key.size(1), -1)).all(2)
            assert not found["gradient of value"][lonely].any()


# --- (1) in other precisions ------------------------------------------------------------------------------------------

ROUNDED = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


@law(60)
@given(texts() | settings_of(), st.sampled_from([*ROUNDED]), st.booleans())
def test_in_other_precisions_a_backend_is_off_by_what_rounding_costs(
    it: Setting, dtype: torch.dtype, small: bool
) -> None:
    """Of the same call in double precision, with parameters and tensors rounded as the other has them."""
    rounded = it.to(dtype)
    exact = rounded.to(torch.float64)
    with blocks(small):
        truth = ends(exact, "reference")
        if isinstance(truth, ValueError):
            return
        some = exact.query.numel() and exact.key.size(2)
        may = off(exact, 2.0**-24, ROUNDED[dtype]) if some else None
        for backend in ("reference", *FAST, "auto"):
            with torch.no_grad():
                found = ends(rounded, backend)
            if backend != "auto" and is_refusal(found, backend):
                continue
            assert not isinstance(found, ValueError)
            check_same(found, truth, rounded, may)


# --- (2) where relative schemes are, and (3) in which order tokens lie, does not matter -------------------------------

ABSOLUTE = {"interpolated"} | {entry.name for entry in CATALOG if "relative" not in entry.laws}  # of distances
ROTATED_AND_MET = {"re_rope leaky+shaw"}  # a query meets a vector of the distance as it is turned
RELATIVE = [name for name in ATTENDING if not ABSOLUTE & {*name.split("+")} and name not in ROTATED_AND_MET]
BY = st.integers(-40, 40) | st.sampled_from([2**20, 2**31, -(2**31), 2**52])


@law(60)
@given(texts(RELATIVE) | settings_of(RELATIVE), BY, st.sampled_from((*FAST, "auto")), st.booleans())
def test_relative_schemes_do_not_see_a_shift(it: Setting, by: int, backend: str, small: bool) -> None:
    moved = replace(it, query_positions=it.query_positions.shift(by), key_positions=it.key_positions.shift(by))
    for before, after in ((it.query_positions, moved.query_positions), (it.key_positions, moved.key_positions)):
        if before.coords.is_floating_point() and (after.coords.double() - before.coords.double() != by).any():
            return  # fractions so far away are rounded
        if after.coords.dtype == torch.float32 and (after.coords.abs() > 2**24).any():
            return  # refused, even where the number is exact
    with blocks(small), torch.no_grad():
        truth, found = ends(it, "reference"), ends(moved, backend)
        if not isinstance(truth, ValueError) and not is_refusal(found, backend):
            assert not isinstance(found, ValueError), found
            check_same(found, truth, it, off(moved, shift=by) if it.query.numel() and it.key.numel() else None)


@law(50)
@given(settings_of(), st.randoms(use_true_random=False), st.sampled_from((*FAST, "auto")), st.booleans())
def test_tokens_may_lie_in_any_order(it: Setting, chance: random.Random, backend: str, small: bool) -> None:
    """Queries permuted with their positions and rows of the mask permute the output; keys, with theirs and columns of
    the mask, change nothing."""
    queries, keys = len(it.query_positions), len(it.key_positions)
    i, j = (torch.tensor(chance.sample(range(n), n), dtype=torch.int64) for n in (queries, keys))
    mask = it.how["attn_mask"]
    if mask is not None and mask.size(-2) > 1:
        mask = mask[..., i, :]
    if mask is not None and mask.size(-1) > 1:
        mask = mask[..., j]
    permuted = Setting(
        it.name,
        it.scheme,
        it.query[:, :, i],
        it.key[:, :, j],
        it.value[:, :, j],
        it.query_positions[i],
        it.key_positions[j],
        it.how | {"attn_mask": mask},
    )
    with blocks(small), torch.no_grad():
        truth, found = ends(it, "reference"), ends(permuted, backend)
        if not isinstance(truth, ValueError) and not is_refusal(found, backend):
            assert not isinstance(found, ValueError), found
            out, lse = truth
            check_same(found, (out[:, :, i], None if lse is None else lse[:, :, i]), permuted)


# --- (4) packed = separate, (5) padded = unpadded ---------------------------------------------------------------------


def changed(it: Setting, tensors: Sequence[Tensor], **how: Any) -> Setting:
    query, key, value = tensors
    return replace(it, query=query, key=key, value=value, how=it.how | how)


@law(60)
@given(st.data(), st.sampled_from((*FAST, "auto")), st.booleans())
def test_documents_are_what_they_are_alone(data: st.DataObject, backend: str, small: bool) -> None:
    """Packed with others or padded anywhere; and of what the others hold not one bit leaks in, and no gradient out."""
    it = data.draw(over(data.draw(documents())))
    it = changed(it, [x.contiguous() for x in it.tensors])  # another order of memory is another order of sums
    where = [
        (row, torch.tensor([n for n, d in enumerate(of) if d == number]))
        for row, of in enumerate(it.key_positions.document.tolist())
        for number in sorted({*of} - {PADDING})
    ]
    with blocks(small):
        with torch.no_grad():
            whole = ends(it, backend)
        if is_refusal(whole, backend) or not where:
            return
        assert not isinstance(whole, ValueError), whole
        for row, here in where:
            at = placed(it.name, Positions.arange(len(here)))
            alone = replace(
                changed(it, [x[row : row + 1, :, here] for x in it.tensors]), query_positions=at, key_positions=at
            )
            out, lse = whole
            part = out[row : row + 1, :, here], None if lse is None else lse[row : row + 1, :, here]
            with torch.no_grad():
                check_same(part, alone.run("reference"), alone)

        row, here = data.draw(st.sampled_from(where))
        others = torch.ones(it.query.size(0), it.query.size(2), dtype=torch.bool)
        others[row, here] = False
        noise = [torch.where(others[:, None, :, None], 100 * torch.randn_like(x), x) for x in it.tensors]
        with torch.no_grad():
            again = changed(it, noise).run(backend)
        for before, after in zip(whole, again, strict=True):
            if before is not None and after is not None:
                assert torch.equal(before[row, :, here], after[row, :, here])
        leaves = [x.clone().requires_grad_() for x in it.tensors]
        out, _ = changed(it, leaves, return_lse=False).run(backend)
        for gradient in torch.autograd.grad(out[row, :, here].square().sum(), leaves):
            assert not gradient.transpose(1, 2)[others].any()


# --- (6) prefill + decode = full --------------------------------------------------------------------------------------


@law(60)
@given(st.data(), st.lists(st.integers(0, 5), max_size=4), st.lists(st.integers(0, 40), max_size=3), st.booleans())
def test_a_cache_is_the_full_run(data: st.DataObject, steps: list[int], cuts: list[int], small: bool) -> None:
    """Any prompt, in any chunks, and what follows it: every key is turned once and kept, where it may be."""
    at = data.draw(documents() | st.integers(0, 9).map(Positions.arange))
    prompt = len(at)
    stops = sorted({*(cut for cut in cuts if cut < prompt), prompt})
    for n in steps:
        at = Positions.cat([at, at.following(n)])
        stops.append(len(at))
    it = data.draw(over(at))
    it = replace(it, how=it.how | {"is_causal": True, "return_lse": False})
    outs, kept, known = [], [], it.key_positions[:0]
    with blocks(small), torch.no_grad():
        for start, stop in itertools.pairwise([0, *stops]):
            new = it.key_positions[start:stop]
            token_doors = it.scheme.tokens(new, dtype=torch.float64)
            query, key, value = (x[:, :, start:stop] for x in (it.query, it.key, it.value))
            query, known = opened(token_doors, query), Positions.cat([known, new])
            scale = it.how["scale"]
            if it.scheme.needs_raw_keys:  # keys are kept as they are
                doors = ("rotate", "score", "value")
                encoding = it.scheme(new, known, dtype=torch.float64, doors=doors)
            else:
                query, key = token_doors.rotate_query(query), token_doors.rotate_key(key)
                value = token_doors.rotate_value(value)
                scale = token_doors.scale if scale is None else scale
                encoding = it.scheme.pairs(new, known) if small else it.scheme(new, known, dtype=torch.float64).pairs
            kept.append((key, value))
            keys, values = (torch.cat(parts, 2) for parts in zip(*kept, strict=True))
            out = posenc.attention(query, keys, values, encoding, is_causal=True, scale=scale)
            outs.append(out if it.scheme.needs_raw_keys else token_doors.rotate_output(out))
        check_same((torch.cat(outs, 2), None), it.run("reference"), it)


# --- (7) shards of keys, merged = whole -------------------------------------------------------------------------------

PER_KEY = [name for name in ATTENDING if name not in ROWS]  # which need whole rows


@law(50)
@given(texts(PER_KEY) | settings_of(PER_KEY), st.data(), st.integers(1, 3), st.booleans())
def test_shards_of_keys_merged_by_their_log_sum_exp_are_the_whole(
    it: Setting, data: st.DataObject, shards: int, small: bool
) -> None:
    it = replace(it, how=it.how | {"return_lse": True})
    keys = it.key.size(2)
    dealt = torch.randint(shards, (keys,), generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))
    if data.draw(st.booleans()):
        dealt = dealt.sort().values  # each an unbroken run
    parts = []
    with blocks(small), torch.no_grad():
        truth = ends(it, "reference")
        if isinstance(truth, ValueError):
            return
        for shard in range(shards):
            here = (dealt == shard).nonzero()[:, 0]
            first, n = int(here[0]) if len(here) else 0, len(here)
            unbroken = torch.equal(here, torch.arange(first, first + n))
            mask = it.how["attn_mask"]
            part = replace(
                changed(it, (it.query, it.key[:, :, here], it.value[:, :, here])),
                key_positions=it.key_positions[first : first + n] if unbroken else it.key_positions[here],
                how=it.how | {"attn_mask": mask if mask is None or mask.size(-1) == 1 else mask[..., here]},
            )
            backend = data.draw(st.sampled_from((*FAST, "auto", "reference")))
            found = ends(part, backend)
            found = ends(part, "auto") if is_refusal(found, backend) else found
            assert not isinstance(found, ValueError), found
            parts.append(found)
        lse = torch.stack([each for _, each in parts]).logsumexp(0)
        shares = [(each - lse).exp().masked_fill(lse == -torch.inf, 0.0) for _, each in parts]
        out = sum((share[..., None] * each for share, (each, _) in zip(shares, parts, strict=True)), torch.tensor(0.0))
        check_same((out, lse), truth, it)


# --- (9) finite -------------------------------------------------------------------------------------------------------

HUGE: dict[str, Any] = {"loud": (1e4, 1e15)}


@law(60)
@given(texts(**HUGE) | settings_of(**HUGE), st.sampled_from([torch.float64, *ROUNDED]), st.booleans())
def test_finite_in_finite_out(it: Setting, dtype: torch.dtype, small: bool) -> None:
    """However large the scores, the output is a mean of values."""
    it = it.to(dtype)
    if not all(x.isfinite().all() for x in it.tensors):
        return
    with blocks(small):
        if 0 in (it.query.numel(), it.key.numel()) or isinstance(ends(it, "reference"), ValueError):
            return
        largest = grouped(it.value.abs().amax((-2, -1)), it).double()
        largest = largest + sum(p.detach().abs().max() for name, p in it.scheme.named_parameters() if "value" in name)
        for backend in ("reference", *FAST, "auto"):
            found = ends(it, backend)
            if not is_refusal(found, backend):
                assert not isinstance(found, ValueError), found
                out, lse = found
                within = largest * (1 + 8 * ROUNDED.get(dtype, U))
                assert (out.detach().double().abs().amax((-2, -1)) <= within).all()
                assert lse is None or not lse.isnan().any()


# --- what was found by these, once and for all ------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["reference", "sdpa", "chunked", "auto"])
def test_by_a_scale_of_zero_all_keys_weigh_the_same(backend: str) -> None:
    query, positions = torch.randn(3, 1, 4, 25, 16), Positions.grid(5, 5)
    scheme = posenc.Relative2D((5, 5), 16)
    out = posenc.attention(*query, scheme(positions), scale=0.0, backend=backend)
    torch.testing.assert_close(out, query[2].mean(2, keepdim=True).expand_as(out))
