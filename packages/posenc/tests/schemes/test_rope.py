"""RoPE beyond its oracle: what it keeps for the gradient, every way to take one, several axes, and what it refuses."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from posenc.rotation.phases import PairLayout, PairRotation

LAYOUTS: tuple[PairLayout, ...] = ("half", "interleaved")
BATCH, HEADS, TOKENS, HEAD_DIM, PAIRS = 2, 3, 5, 7, 3


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def angles(rows: int = 1, heads: int = 1) -> tuple[Tensor, Tensor]:
    """Any two numbers for cos and sin: what is linear in them and in x needs no angle, and may lengthen."""
    return drawn(rows, heads, TOKENS, PAIRS, seed=1), drawn(rows, heads, TOKENS, PAIRS, seed=2)


def turned(layout: PairLayout) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda x, cos, sin: PairRotation(cos, sin, layout, HEAD_DIM)(x)


def by_loops(x: Tensor, cos: Tensor, sin: Tensor, layout: PairLayout) -> Tensor:
    """(a, b) -> (a cos - b sin, a sin + b cos), a number at a time."""
    out = x.clone()
    cos, sin = (t.expand(*x.shape[:3], PAIRS) for t in (cos, sin))
    for place in torch.cartesian_prod(*map(torch.arange, x.shape[:3])).tolist():
        for k in range(PAIRS):
            first, second = (k, k + PAIRS) if layout == "half" else (2 * k, 2 * k + 1)
            a, b, c, s = (float(t[(*place, n)]) for t, n in ((x, first), (x, second), (cos, k), (sin, k)))
            out[(*place, first)], out[(*place, second)] = a * c - b * s, a * s + b * c
    return out


@pytest.mark.parametrize("rows", [1, BATCH])
@pytest.mark.parametrize("heads", [1, HEADS])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_pair_is_turned_in_any_layout_of_memory(layout: PairLayout, rows: int, heads: int) -> None:
    cos, sin = angles(rows, heads)
    laid_out = {
        "contiguous": drawn(BATCH, HEADS, TOKENS, HEAD_DIM),
        "tokens before heads": drawn(BATCH, TOKENS, HEADS, HEAD_DIM).transpose(1, 2),
        "channels first": drawn(HEAD_DIM, BATCH, HEADS, TOKENS).movedim(0, -1),
        "every other channel": drawn(BATCH, HEADS, TOKENS, 2 * HEAD_DIM)[..., ::2],
        "one head for all": drawn(BATCH, 1, TOKENS, HEAD_DIM).expand(-1, HEADS, -1, -1),
    }
    for x in laid_out.values():
        before = x.clone()
        found = turned(layout)(x, cos, sin)
        # A product and a sum may be fused: two roundings of numbers below 2^4.
        torch.testing.assert_close(found, by_loops(x, cos, sin, layout), rtol=0, atol=2 * 2**4 * 2.0**-53)
        assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("layout", "rows", "heads"), [(LAYOUTS[0], 1, HEADS), (LAYOUTS[1], BATCH, HEADS), (LAYOUTS[1], 1, 1)]
)
def test_gradients_to_the_second_order(layout: PairLayout, rows: int, heads: int) -> None:
    x, (cos, sin) = drawn(BATCH, HEADS, TOKENS, HEAD_DIM).requires_grad_(), angles(rows, heads)
    of_x, learned = (x, cos, sin), (x, cos.clone().requires_grad_(), sin.clone().requires_grad_())
    for inputs in (of_x, learned):
        assert torch.autograd.gradcheck(turned(layout), inputs)
        assert torch.autograd.gradgradcheck(turned(layout), inputs, fast_mode=True)  # along random directions


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_kept_for_the_gradient_is_the_angles_and_x_where_they_are_learned(layout: PairLayout) -> None:
    x, (cos, sin) = drawn(BATCH, HEADS, TOKENS, HEAD_DIM).requires_grad_(), angles()

    def kept(cos: Tensor, sin: Tensor) -> list[int]:
        pointers: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: pointers.append(t.data_ptr()), lambda t: t):
            turned(layout)(x, cos, sin)
        return pointers

    assert kept(cos, sin) == [cos.data_ptr(), sin.data_ptr()]
    cos.requires_grad_()
    assert kept(cos, sin) == [cos.data_ptr(), sin.data_ptr(), x.data_ptr()]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradient_of_half_precision_is_turned_in_float32_and_rounded_once(layout: PairLayout) -> None:
    """The gradient is the turn by (cos, -sin) of the one that comes in, so it has the bits of that turn."""
    cos, sin = (t.float() for t in angles())
    x, weight = (drawn(BATCH, HEADS, TOKENS, HEAD_DIM, seed=n).bfloat16() for n in (0, 3))
    (gradient,) = torch.autograd.grad(turned(layout)(x.requires_grad_(), cos, sin), x, weight)
    assert torch.equal(gradient, turned(layout)(weight.float(), cos, -sin).bfloat16())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_vmap_over_any_of_x_cos_and_sin(layout: PairLayout) -> None:
    turn, x, (cos, sin) = turned(layout), drawn(4, BATCH, HEADS, TOKENS, HEAD_DIM), angles()
    many = torch.stack([cos * n for n in range(1, 5)], 1)
    each = (
        torch.func.vmap(turn, (0, None, None))(x, cos, sin),
        torch.func.vmap(turn, (None, 1, None))(x[0], many, sin),
        torch.func.vmap(turn, (0, 1, None))(x, many, sin),
    )
    for n in range(4):
        expected = turn(x[n], cos, sin), turn(x[0], many[:, n], sin), turn(x[n], many[:, n], sin)
        for found, one in zip(each, expected, strict=True):
            torch.testing.assert_close(found[n], one, rtol=0, atol=0)
