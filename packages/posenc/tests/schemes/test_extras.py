"""What single schemes offer beside their doors."""

import math

import pytest
import torch

import posenc
from posenc import T5, DistanceAware, FourierFeatures, Positions, Relative2D, Sinusoidal, TransformerXL
from posenc.lowering.distances import Block
from tests.oracles import t5, transformer_xl


def test_nerfs_angles_are_exact_in_high_bands() -> None:
    table = FourierFeatures(64, bands="nerf").table(Positions.arange(12), torch.float64)[0]
    expected = [[wave(2.0**k * x) for k in range(32) for wave in (math.sin, math.cos)] for x in range(12)]
    torch.testing.assert_close(table, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=2**-52)


def test_distance_aware_overflows_for_neither_sign() -> None:
    scheme = DistanceAware(3)
    with torch.no_grad():
        scheme.v.copy_(torch.tensor([200.0, -200.0, 0.0]))
        scheme.w.copy_(torch.tensor([1.0, 1.0, -1.0]))
    factor = scheme.factor(torch.tensor([0.0, 3.0, -3.0])).mT
    torch.testing.assert_close(factor[0], torch.ones(3))  # f(0) = 1
    torch.testing.assert_close(factor[1], factor[2])  # blind to direction
    assert factor.isfinite().all()
    torch.testing.assert_close(factor[1, 0].log(), torch.tensor(3.0))  # far below v, f(R) = e^R
    torch.testing.assert_close(factor[1, 2], torch.tensor(2 / (1 + math.exp(3))))


def test_the_four_terms_of_transformer_xl_are_the_oracles_and_sum_to_the_score() -> None:
    scheme = TransformerXL(6, 4, dim=10).double()
    for parameter in scheme.parameters():
        torch.nn.init.normal_(parameter)
    query, key = torch.randn(1, 6, 5, 4, dtype=torch.float64), torch.randn(1, 3, 7, 4, dtype=torch.float64)
    x, y = Positions.arange(5, start=4), Positions.arange(7)
    terms = scheme.terms(Block(query, key, x, y, 0.5))
    four = transformer_xl.terms(
        query, key, scheme.projection, scheme.content_bias, scheme.position_bias, x.coords.tolist(), y.coords.tolist()
    )
    for n, term in enumerate(terms):
        expected = [[[four(0, h, i, j)[n] for j in range(7)] for i in range(5)] for h in range(6)]
        torch.testing.assert_close(term[0], torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(sum(terms), posenc.logits(query, key, scheme(x, y, dtype=torch.float64)))


@pytest.mark.parametrize("num_heads", [None, 3])
def test_relative_2d_resized_keeps_its_ends(num_heads: int | None) -> None:
    scheme = Relative2D((3, 5), 4, num_heads)
    same, larger = scheme.resized((3, 5)), scheme.resized((6, 9))
    for mine, copied, stretched in zip(scheme.parameters(), same.parameters(), larger.parameters(), strict=True):
        assert torch.equal(mine, copied)
        assert mine is not copied
        torch.testing.assert_close(stretched[..., [0, -1], :], mine[..., [0, -1], :])
        torch.testing.assert_close(stretched[..., stretched.size(-2) // 2, :], mine[..., mine.size(-2) // 2, :])
    assert larger.grid == (6, 9)


@pytest.mark.parametrize("layout", ["interleaved", "concatenated", "tensor2tensor"])
def test_the_linear_map_carries_every_axis(layout: str) -> None:
    scheme = Sinusoidal(24, base=77.0, layout=layout, axes=2)  # type: ignore[arg-type]
    here = Positions.grid(3, 4)
    there = Positions(here.coords + torch.tensor([2, -5]))
    carried = scheme.table(here, torch.float64) @ scheme.linear_map([2, -5]).mT
    torch.testing.assert_close(carried, scheme.table(there, torch.float64))
    with pytest.raises(ValueError, match=r"offset must be a sequence of 2 numbers, one per axis, got \[2\]"):
        scheme.linear_map([2])


# Buckets, max_distance, bidirectional.
T5_SIZES = (
    (32, 128, False),
    (32, 128, True),
    (48, 81, False),
    (7, 13, False),
    (10, 20, True),
    (2, 2, False),
    (4, 2, True),
)


def t5_bias(scheme: T5, distances: torch.Tensor) -> torch.Tensor:
    """What it adds to the score of one query far from 0, for keys at these distances."""
    here = Positions(torch.tensor([[1000]]))
    zeros = torch.zeros(1, scheme.num_heads, len(distances), 4, dtype=torch.float64)
    encoding = scheme(here, Positions((1000 + distances)[None]), dtype=torch.float64)
    return posenc.logits(zeros[:, :, :1], zeros, encoding)[0, :, 0]


def test_t5_says_its_bias_by_distance_and_from_where_on_it_is_constant() -> None:
    for buckets, longest, both in T5_SIZES:
        scheme = T5(3, buckets, longest, bidirectional=both).double()
        distances = torch.arange(-2 * longest, 2 * longest + 1)
        wanted = t5_bias(scheme, distances)
        expected = [t5.bucket(-int(r), buckets, longest, bidirectional=both) for r in distances]
        assert torch.equal(wanted, scheme.weight[expected].mT)

        (term,) = scheme.score(Positions.arange(1), Positions.arange(1))
        assert torch.equal(term.at(distances), wanted)

        past = max(n for n in range(1, 2 * longest) if expected[2 * longest - n] != expected[2 * longest - n + 1])
        assert (term.distance.tail, term.distance.past) == ("constant", past)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_has_the_buckets_of_single_precision_where_models_were_released(bidirectional: bool) -> None:
    """The published formula as it stands, of which only distances past the exact ones take the logarithm."""
    side = 16 if bidirectional else 32
    exact = side // 2
    n = torch.arange(exact, 5000)
    ratio = torch.log(n.float() / exact) / math.log(128 / exact)
    published = (exact + (ratio * (side - exact)).long()).clamp(max=side - 1)
    scheme = T5(1, bidirectional=bidirectional)
    with torch.no_grad():
        scheme.weight[:, 0] = torch.arange(32)
    assert torch.equal(t5_bias(scheme, -n)[0].long(), published)
    assert scheme.edges[-1] == (91 if bidirectional else 113)


def test_t5_is_drawn_with_glorots_bound() -> None:
    weight = T5(500, 1000, 1000).weight  # the largest of 500,000 numbers is within 1e-4 of the bound, but for e^-50
    bound = (6 / 1500) ** 0.5
    assert (1 - 1e-4) * bound < weight.abs().max() <= bound
    assert weight.mean().abs() < 5 * bound / (3 * 500_000) ** 0.5
