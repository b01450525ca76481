"""What would be wrong without a word: heads that a scheme was not made for, masks of another kind, terms that read what
a rotation has made for others, and scalings that are none."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import FIRE, ALiBi, Context, DistanceAware, PoPE, Positions, QueryScale, RoPE, Scheme, Softcap, SwinV2, XPos
from posenc.schemes.catalog import CATALOG
from posenc.schemes.entry import Shape
from tests.rounding import of_sums

TOKENS, HEADS, HEAD_DIM = 9, 4, 8
SCORE = 64.0  # above |q| |k| / sqrt(8) and what a scheme adds
LINE, GRID = Positions.arange(TOKENS, start=3), Positions.grid(3, 3)


def drawn(heads: int = HEADS, seed: int = 0) -> Tensor:
    return torch.randn(2, heads, TOKENS, HEAD_DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def wide(scheme: Scheme) -> Scheme:
    for parameter in scheme.double().parameters():
        torch.nn.init.normal_(parameter)
    return scheme


OF_HEADS: dict[str, tuple[Callable[[int], Scheme], Positions]] = {
    "FIRE": (FIRE, LINE),
    "PoPE": (lambda heads: PoPE(HEAD_DIM, heads), LINE),
    "QueryScale": (lambda heads: QueryScale("ssmax", num_heads=heads), LINE),
    "SwinV2": (lambda heads: SwinV2((3, 3), heads), GRID),
    "TUPE": (lambda heads: posenc.TUPE(heads, HEAD_DIM, 99), LINE),
}


@pytest.mark.parametrize("name", OF_HEADS)
def test_a_scheme_of_one_head_is_not_one_of_all(name: str) -> None:
    make, positions = OF_HEADS[name]
    q, k, v = (drawn(seed=seed) for seed in range(3))
    told = r"heads, tokens\) \(1, 1, 9\), got \(2, 4, 9, 8\)|(1 heads|selects 1), got queries of 4"
    with pytest.raises(ValueError, match=told):
        posenc.attention(q, k, v, make(1).double()(positions, dtype=torch.float64), is_causal=True)
    one = Context(heads=range(2, 3))  # a shard of one, and four are here
    with pytest.raises(ValueError, match=told):
        posenc.attention(q, k, v, make(12).double()(positions, dtype=torch.float64, context=one), is_causal=True)


BESIDE = [
    entry
    for entry in CATALOG
    if entry.axes in ("one", "any") and "score" in entry.doors and "rotate" not in entry.doors
]
READ_VECTORS = {"absolute_in_attention", "cope", "grape_a", "relative_1d", "shaw", "tapa", "transformer_xl", "wall"}


@pytest.mark.parametrize("entry", BESIDE, ids=lambda entry: entry.name)
def test_xpos_stands_beside_what_reads_scores_alone(entry: Any) -> None:
    """A query has the same output whichever queries are called with it; where that cannot be, it is refused."""
    shape = Shape(HEADS * HEAD_DIM, HEADS, HEAD_DIM, 64)
    scheme = XPos(HEAD_DIM, scale_base=4.0) + wide(entry.build(shape))
    q, k, v = (drawn(seed=seed) for seed in range(3))
    x = torch.randn(2, TOKENS, HEADS * HEAD_DIM, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    given = posenc.encoding.context.projected_at_random(scheme.features, x)

    def out(last: int) -> Tensor:
        asking = slice(TOKENS - last, TOKENS)
        encoding = scheme(LINE[TOKENS - last :], LINE, dtype=torch.float64)
        if given:
            encoding = encoding.with_projected({name: x[:, :, asking] for name, x in given.items()}, given)
        found: Any = posenc.attention(q[:, :, asking], k, v, encoding, is_causal=True)
        return found

    if entry.name in READ_VECTORS:
        with pytest.raises(ValueError, match=r"reads queries or keys separately cannot be composed"):
            out(TOKENS)
    else:
        bound = of_sums(torch.float64, TOKENS + HEAD_DIM, v, score=SCORE)
        torch.testing.assert_close(out(TOKENS)[:, :, -2:], out(2), rtol=0, atol=bound)


@pytest.mark.parametrize("function", [Softcap(3.0), DistanceAware(HEADS)], ids=["softcap", "distance_aware"])
def test_what_a_bias_hides_no_function_brings_back(function: Scheme) -> None:
    """A cap makes -cap of -inf, and a ReLU 0: a score like others."""
    hiding = ALiBi(HEADS, "directed")
    q, k, v = (drawn(seed=seed) for seed in range(3))
    with pytest.raises(ValueError, match=r"comes after a bias that masks keys with -inf.*: compose the scheme"):
        posenc.attention(q, k, v, hiding + function.double())
    after = posenc.logits(q, k, function.double() + hiding)
    looks_back = after[:, : HEADS // 2].isinf().any((0, 1))
    assert torch.equal(looks_back, torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1))


SHUFFLED = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(1))
BACKWARDS = [
    (entry, at)
    for entry in CATALOG
    if entry.build(Shape(HEADS * HEAD_DIM, HEADS, HEAD_DIM, 64)).looks_back
    for at in (LINE, LINE.scale(0.5), LINE[SHUFFLED], GRID)
    if (entry.axes == "any" or at is not GRID) and ("fractional" in entry.laws or not at.coords.is_floating_point())
]


@pytest.mark.parametrize(("entry", "at"), BACKWARDS, ids=lambda x: getattr(x, "name", ""))
def test_what_looks_back_is_refused_where_later_keys_are_seen(entry: Any, at: Positions) -> None:
    """Wherever tokens stand; and not where no later key is seen."""
    scheme = wide(entry.build(Shape(HEADS * HEAD_DIM, HEADS, HEAD_DIM, 64)))
    q, k, v = (drawn(seed=seed) for seed in range(3))
    told = rf"^{entry.title} encodes only keys up to the query, but .*: pass is_causal=True .*, or use \w+"

    def attend(last: int = TOKENS, **how: Any) -> None:
        asking = slice(TOKENS - last, TOKENS)
        encoding = scheme(at if last == TOKENS else at[asking], at, dtype=torch.float64)
        if scheme.features:
            flat = {name: torch.randn(2, TOKENS, f.size, dtype=torch.float64) for name, f in scheme.features.items()}
            given = {name: scheme.features[name].of_heads(x) for name, x in flat.items()}
            encoding = encoding.with_projected({name: x[:, :, asking] for name, x in given.items()}, given)
        posenc.attention(q[:, :, asking], k, v, encoding, **how)

    for wrong in ({}, {"window": (2, 1)}, {"attn_mask": torch.ones(1, TOKENS, dtype=torch.bool)}):
        with pytest.raises(ValueError, match=told):
            attend(**wrong)
    causal = at.order[0][:, None] >= at.order[0]
    for right in ({"is_causal": True}, {"window": 3}, {"attn_mask": causal}):
        attend(**right)
    if at is LINE:
        attend(last=1)
        if not scheme.features:
            none = scheme(at[:1], at[:0], dtype=torch.float64)
            posenc.attention(q[:, :, :1], k[:, :, :0], v[:, :, :0], none)


NO_SCALINGS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "frequencies alone": (lambda theta: theta, r"torch\.float64 \(2,\)"),
    "single precision": (lambda theta: (theta.float(), 1.0), r"\(torch\.float32 \(2,\), 1\.0\)"),
    "one frequency for all": (lambda theta: (theta[:1], 1.0), r"\(torch\.float64 \(1,\), 1\.0\)"),
    "a list": (lambda theta: (theta.tolist(), 1.0), r"\(\[1\.0, 0\.01\], 1\.0\)"),
    "no number for a factor": (lambda theta: (theta, "1"), r"\(torch\.float64 \(2,\), '1'\)"),
    "an infinite factor": (lambda theta: (theta, math.inf), r"\(torch\.float64 \(2,\), inf\)"),
    "nothing": (lambda theta: None, "None"),
}


@pytest.mark.parametrize("name", NO_SCALINGS)
def test_a_scaling_gives_frequencies_and_a_factor(name: str) -> None:
    scaling, got = NO_SCALINGS[name]
    with pytest.raises(ValueError, match=rf"scaling must return theta' of 2 pairs in float64 and a factor, got {got}$"):
        RoPE(4, scaling=scaling)(LINE)


def test_schemes_for_decoders_alone_are_known() -> None:
    found = {entry.name for entry in CATALOG if entry.for_decoders}
    assert found == {"fire", "fox", "grape_a", "wall", "xpos", "dual_chunk", "stick_breaking"}
