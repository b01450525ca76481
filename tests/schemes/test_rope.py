"""RoPE beyond its oracle: what it keeps for the gradient, every way to take one, several axes, and what it refuses."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from posenc import Positions, RoPE
from posenc.rotation.phases import PairLayout, PairRotation
from tests.oracles import rope
from tests.rounding import of_angles

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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_of_tokens_join_up(layout: PairLayout, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half precision is turned some tokens at a time: however many they are, the bits are the same."""
    cos, sin = angles(BATCH)
    x = drawn(BATCH, HEADS, TOKENS, HEAD_DIM).to(dtype)
    whole = turned(layout)(x, cos, sin)
    for tokens in (1, 2, 3):
        monkeypatch.setattr("posenc.rotation.phases._BLOCK", tokens * BATCH * HEADS * HEAD_DIM)
        assert torch.equal(turned(layout)(x, cos, sin), whole)


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


@pytest.mark.parametrize("shape", [(0, HEADS, TOKENS), (BATCH, 0, TOKENS), (BATCH, HEADS, 0)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_is_turned_into_nothing(layout: PairLayout, shape: tuple[int, ...]) -> None:
    cos, sin = (t[:, :, : shape[2]] for t in angles())
    x = torch.zeros(*shape, HEAD_DIM, requires_grad=True)
    out = turned(layout)(x, cos, sin)
    out.sum().backward()
    assert out.shape == x.shape
    assert x.grad is not None
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("layout", LAYOUTS)
def test_on_meta_a_turn_has_a_shape(layout: PairLayout) -> None:
    cos, sin = (t.to("meta") for t in angles())
    x = torch.empty(BATCH, HEADS, TOKENS, HEAD_DIM, dtype=torch.bfloat16, device="meta")
    out = turned(layout)(x, cos, sin)
    assert (out.shape, out.dtype, out.device.type) == (x.shape, x.dtype, "meta")


@pytest.mark.more
@pytest.mark.slow
def test_compiled_it_is_the_same() -> None:
    """But for a product and a sum that a compiler may fuse: two roundings, in the precision of the turn, of numbers
    below 2^4. In bfloat16 that can tip the one rounding at the end, by a unit in the last place. One graph has both
    layouts in both precisions, since each graph takes seconds to compile."""
    cos, sin = angles()
    x, weight = (drawn(BATCH, HEADS, TOKENS, HEAD_DIM, seed=n) for n in (0, 3))
    ways = [(layout, dtype) for layout in LAYOUTS for dtype in (torch.float64, torch.bfloat16)]

    def turn(leaves: list[Tensor]) -> list[Tensor]:
        return [turned(layout)(leaf, cos, sin) for leaf, (layout, _) in zip(leaves, ways, strict=True)]

    found = []
    for function in (turn, torch.compile(turn, fullgraph=True)):
        leaves = [x.to(dtype, copy=True).requires_grad_() for _, dtype in ways]
        outs = function(leaves)
        found.append([*outs, *torch.autograd.grad(outs, leaves, [weight.to(out.dtype) for out in outs])])
    for expected, compiled in zip(*found, strict=True):
        precision = torch.promote_types(expected.dtype, torch.float32)
        absolute = 2 * 2**4 * torch.finfo(precision).eps / 2
        relative = 0.0 if expected.dtype == precision else torch.finfo(expected.dtype).eps
        torch.testing.assert_close(compiled, expected, rtol=relative, atol=absolute)


# --- several axes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_axis_turns_the_pairs_of_its_own(layout: PairLayout) -> None:
    """Of 12 channels, pairs 0 to 2 turn with axis 0 and pairs 3 to 5 with axis 1, each as RoPE of 6 channels does."""
    x = drawn(1, 1, 4, 12)
    rows, columns = [3, 0, -2, 5], [1, 4, 7, 0]
    places = Positions(torch.tensor([list(zip(rows, columns, strict=True))]))
    out, _ = RoPE(12, 50.0, layout, axes=2)(places, dtype=torch.float64).rotate(x, x)
    pairs = (lambda t: t.view(1, 1, 4, 2, 6).mT) if layout == "half" else (lambda t: t.view(1, 1, 4, 6, 2))
    bound = 2 * of_angles(torch.float64, 7, x)  # either side is rounded
    for axis, coordinates in enumerate((rows, columns)):
        mine, found = (pairs(t)[..., 3 * axis : 3 * axis + 3, :] for t in (x, out))
        alone = rope.rotate_all(mine.flatten(-2), [coordinates], 50.0, "interleaved")
        torch.testing.assert_close(found.flatten(-2), alone, rtol=0, atol=bound)
    torch.testing.assert_close(out, rope.rotate_all(x, places.coords.tolist(), 50.0, layout), rtol=0, atol=bound)


def test_one_axis_takes_its_coordinate_with_or_without_a_dimension_of_its_own() -> None:
    x = drawn(1, 1, 4, 6)
    flat, deep = (
        RoPE(6)(Positions(torch.arange(4).view(shape)), dtype=x.dtype).rotate(x, x)[0] for shape in ((1, 4), (1, 4, 1))
    )
    assert torch.equal(flat, deep)


# --- what it refuses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"axes": 0}, "axes must be a whole number of at least 1, got 0"),
        ({"axes": 2}, r"rotary_dim must be even on each of 2 axes and within 2\.\.head_dim = 6, got 6"),
        ({"rotary_dim": 5}, r"rotary_dim must be even and within 2\.\.head_dim = 6, got 5"),
        ({"rotary_dim": 8}, r"rotary_dim must be even and within 2\.\.head_dim = 6, got 8"),
    ],
)
def test_wrong_configurations(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RoPE(6, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scheme", "places", "message"),
    [
        (RoPE(6), Positions.grid(2, 2), "RoPE takes one coordinate per token, got positions of 2 axes"),
        (RoPE(8, axes=2), Positions.arange(4), "RoPE takes 2 coordinates per token, got positions of 1 axes"),
    ],
)
def test_positions_of_another_number_of_axes(scheme: RoPE, places: Positions, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scheme(places)


def test_angles_for_other_rows_heads_or_tokens() -> None:
    cos, sin = angles(BATCH)
    for shape in ((1, HEADS, TOKENS), (BATCH, HEADS, 1), (BATCH, HEADS, TOKENS + 1)):
        with pytest.raises(ValueError, match=r"made for \(batch, heads, tokens\) \(2, 1, 5\), got \("):
            turned("half")(torch.zeros(*shape, HEAD_DIM), cos, sin)
