"""Phases and distances are exact to single precision up to position 2^20, whatever the dtype of the module or autocast.

The bounds are derived. The angle p theta is formed in double precision: theta and the product are each off by at most
2^-52 of themselves, on either side of the comparison, so at p = 2^20 the angles differ by less than 2^-30. A sine or
cosine of it, rounded to single precision, adds half a unit in the last place: 2^-25 for numbers within [1/2, 1), and
less below. In all

    |table - oracle| <= 2^-25 + 2^-30

where single-precision phases would be off by up to 2^20 * 2^-24 = 0.06, and half-precision ones by radians.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor

import posenc
from posenc import ALiBi, Positions, RoPE, Scheme, Sinusoidal
from tests.oracles import alibi, rope, sinusoidal

PLACES = [0, 255, 256, 257, 2047, 2049, 65_535, 2**20 - 1]
PHASE = 2.0**-30
SINE = 2.0**-25 + PHASE
DIM, BASE = 24, 313.0

WAYS: dict[str, tuple[Callable[[Scheme], Scheme], Callable[[], AbstractContextManager[object]]]] = {
    "built": (lambda scheme: scheme, nullcontext),
    "bfloat16": (lambda scheme: scheme.to(torch.bfloat16), nullcontext),
    "half": (lambda scheme: scheme.half(), nullcontext),
    "autocast to bfloat16": (lambda scheme: scheme, lambda: torch.autocast("cpu", torch.bfloat16)),
    "autocast to float16": (lambda scheme: scheme, lambda: torch.autocast("cpu", torch.float16)),
    "both": (lambda scheme: scheme.bfloat16(), lambda: torch.autocast("cpu", torch.bfloat16)),
}
DTYPES = {torch.float32: SINE, torch.float64: PHASE}


def places() -> Positions:
    return Positions(torch.tensor([PLACES]))


@pytest.mark.parametrize("layout", ["interleaved", "concatenated", "tensor2tensor"])
@pytest.mark.parametrize("way", WAYS)
def test_sinusoidal_vectors(way: str, layout: str) -> None:
    cast, context = WAYS[way]
    expected = torch.tensor([sinusoidal.table(PLACES, DIM, BASE, layout)], dtype=torch.float64)
    scheme = cast(Sinusoidal(DIM, BASE, layout))
    for dtype, tolerance in DTYPES.items():
        with context():
            table = scheme(places(), dtype=dtype).add(torch.zeros(1, len(PLACES), DIM, dtype=dtype))
        assert table.dtype == dtype
        torch.testing.assert_close(table.double(), expected, rtol=0, atol=tolerance)


def unit_pairs(layout: str) -> Tensor:
    """A query of which every pair is (1, 0), so that turning it gives (cos, sin) itself and rounds nothing more."""
    pairs = torch.tensor([[1.0] * (DIM // 2), [0.0] * (DIM // 2)])
    return (pairs if layout == "half" else pairs.mT).reshape(1, 1, 1, DIM).repeat(1, 1, len(PLACES), 1)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("way", WAYS)
def test_rope_phases(way: str, layout: str) -> None:
    cast, context = WAYS[way]
    x = unit_pairs(layout)
    expected = rope.rotate_all(x, [PLACES], BASE, layout)
    scheme = cast(RoPE(DIM, BASE, layout))
    for dtype, tolerance in DTYPES.items():
        with context():
            encoding = scheme(places(), dtype=dtype)
            for turned in encoding.rotate(x.to(dtype), x.to(dtype)):
                assert turned.dtype == dtype
                torch.testing.assert_close(turned.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("way", WAYS)
def test_rope_turns_any_query_to_its_own_precision(way: str, layout: str, dtype: torch.dtype) -> None:
    """a cos - b sin in single precision: cos and sin are off by 2^-25, the two products and the difference by 2^-24 of
    themselves, so the result by at most (|a| + |b|)(2^-25 + 2^-24 + 2^-24) = 5 * 2^-25 (|a| + |b|), and by as much as
    the phases are. In half precision the result is then rounded, once: half a unit in its last place."""
    cast, context = WAYS[way]
    x = torch.randn(1, 2, len(PLACES), DIM).to(dtype)
    expected = rope.rotate_all(x.double(), [PLACES], BASE, layout)
    scheme = cast(RoPE(DIM, BASE, layout))
    with context():
        turned, _ = scheme(places()).rotate(x, x)
    assert turned.dtype == dtype
    pairs = x.double().abs().unflatten(-1, (2, -1) if layout == "half" else (-1, 2))
    axis = -2 if layout == "half" else -1
    magnitude = pairs.sum(axis, keepdim=True).expand_as(pairs).flatten(-2)
    allowed = (5 * 2.0**-25 + PHASE) * magnitude
    if dtype != torch.float32:
        smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        allowed = allowed + torch.finfo(dtype).eps / 2 * (expected.abs() + allowed) + smallest
    assert ((turned.double() - expected).abs() <= allowed).all()


@pytest.mark.parametrize("num_heads", [8, 12, 5])
@pytest.mark.parametrize("way", WAYS)
def test_alibi_distances_are_exact(way: str, num_heads: int) -> None:
    """The bias of slope m at distance D is m D. Distances are exact, being integers below 2^24. The slopes of 8 heads
    are powers of two, so their bias is exact as well; for other head counts the slope and the product are rounded, by
    2^-24 of themselves each."""
    cast, context = WAYS[way]
    exact = num_heads == 8
    zeros = torch.zeros(1, num_heads, len(PLACES), 4)
    for bidirectional in (True, False):
        score = alibi.score(alibi.slopes(num_heads), [PLACES], [PLACES], causal=not bidirectional)
        expected = torch.tensor(
            [
                [
                    [[score(0.0, 0, h, i, j) for j in range(len(PLACES))] for i in range(len(PLACES))]
                    for h in range(num_heads)
                ]
            ],
            dtype=torch.float64,
        )
        scheme = cast(ALiBi(num_heads, "bidirectional" if bidirectional else "causal"))
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            with context():
                bias = posenc.logits(zeros.to(dtype), zeros.to(dtype), scheme(places()))
            assert bias.dtype == torch.float32
            torch.testing.assert_close(bias.double(), expected, rtol=0 if exact else 2 * 2.0**-24, atol=0)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_with_buckets_of_any_distance(bidirectional: bool) -> None:
    """A table of all distances up to 10^9 would take gigabytes."""
    scheme = posenc.T5(2, max_distance=10**9, bidirectional=bidirectional)
    small, near = posenc.T5(2, max_distance=2**16, bidirectional=bidirectional), torch.arange(-7, 8)
    assert torch.equal(scheme._bucket(near), small._bucket(near))  # each has a bucket of its own
    assert int(scheme._bucket(torch.tensor([-(2 * 10**9)]))) == (15 if bidirectional else 31)
