"""The oracles themselves, against numbers worked by hand or printed in the literature."""

import ast
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.oracles import (
    absolute_in_attention,
    alibi,
    attention,
    cope,
    distance_aware,
    exponential_decay,
    fourier_features,
    learned,
    nope,
    relative_1d,
    relative_2d,
    rope,
    segment,
    shaw,
    sinusoidal,
    t5,
    transformer_xl,
    yarn,
)
from tests.rows import in_one_test

DOUBLE = torch.float64


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def identity(size: int) -> list[list[float]]:
    return [[float(r == c) for c in range(size)] for r in range(size)]


def norm(row: list[float]) -> float:
    return math.sqrt(sum(x * x for x in row))


# --- independence ---------------------------------------------------------------------------------------------------


@in_one_test(sorted((Path(__file__).parent / "oracles").glob("*.py")))
def test_an_oracle_imports_only_the_standard_library_torch_and_other_oracles(path: Path) -> None:
    allowed = {"math", "cmath", "dataclasses", "functools", "typing", "collections.abc", "torch"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= allowed
        elif isinstance(node, ast.ImportFrom):
            beside = node.level == 1 and (path.parent / f"{node.module}.py").exists()  # another oracle
            assert beside or (node.level == 0 and node.module in allowed)
            if node.module == "torch":  # a tensor goes in or comes out; it is never computed with
                assert {alias.name for alias in node.names} == {"Tensor"}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
            assert node.attr in {"tensor", "float64"}


# --- attention ------------------------------------------------------------------------------------------------------


def test_attention_of_two_keys_by_hand() -> None:
    # q.k = (2 ln 3, 0), d = 4, so the logits are (ln 3, 0) and the weights (3/4, 1/4).
    query = [[[[2.0 * math.log(3.0), 0.0, 0.0, 0.0]]]]
    key = [[[[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]]]
    value = [[[[8.0, 0.0], [0.0, 4.0]]]]
    output, lse, logits = attention.attend(query, key, value)
    torch.testing.assert_close(logits, torch.tensor([[[[math.log(3.0), 0.0]]]], dtype=DOUBLE))
    torch.testing.assert_close(lse, torch.tensor([[[math.log(4.0)]]], dtype=DOUBLE))
    torch.testing.assert_close(output, torch.tensor([[[[6.0, 1.0]]]], dtype=DOUBLE))

    output, _, logits = attention.attend(
        query,
        key,
        value,
        score=lambda s, b, h, i, j: s + 5.0 * j,
        row=lambda row, b, h, i, visible: [row[0] + 5.0, row[1] if visible[1] else math.nan],
        value_term=lambda b, h, i, j: [100.0, 10.0 * j],
    )
    torch.testing.assert_close(logits, torch.tensor([[[[math.log(3.0) + 5.0, 5.0]]]], dtype=DOUBLE))
    torch.testing.assert_close(output, torch.tensor([[[[106.0, 3.5]]]], dtype=DOUBLE))


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(5, 5), (12, 4), (6, 1)])
def test_attention_is_pytorchs(num_heads: int, num_kv_heads: int) -> None:
    q, k, v = normal(2, num_heads, 5, 3), normal(2, num_kv_heads, 7, 3, seed=1), normal(2, num_kv_heads, 7, 2, seed=2)
    mask = normal(2, 5, 7, seed=3) > -0.5
    mask[:, :, 0] = True
    output, lse, logits = attention.attend(q, k, v, visible=lambda b, i, j: bool(mask[b, i, j]), scale=0.3)
    group = num_heads // num_kv_heads
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None], scale=0.3)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(logits, 0.3 * q @ k.mT)
    torch.testing.assert_close(lse, (0.3 * q @ k.mT).masked_fill(~mask[:, None], -math.inf).logsumexp(-1))


def test_large_logits_do_not_overflow() -> None:
    output, lse, _ = attention.attend([[[[1e4]]]], [[[[1.0], [1.0]]]], [[[[2.0], [4.0]]]])
    assert output.item() == 3.0
    assert lse.item() == pytest.approx(1e4 + math.log(2.0), rel=1e-15)


def test_a_query_that_sees_nothing_gives_zeros() -> None:
    q, k, v = normal(2, 3, 4, 6), normal(2, 3, 5, 6, seed=1), normal(2, 3, 5, 2, seed=2)
    output, lse, logits = attention.attend(
        q, k, v, visible=lambda b, i, j: i != 1, value_term=lambda b, h, i, j: [1.0, 1.0]
    )
    assert (output[:, :, 1] == 0).all()
    assert (lse[:, :, 1] == -math.inf).all()
    assert logits.isfinite().all()
    assert output.isfinite().all()
    assert (output[:, :, [0, 2, 3]] != 0).all()


def test_a_score_of_minus_infinity_is_a_mask() -> None:
    q, k, v = normal(2, 4, 5, 3), normal(2, 2, 7, 3, seed=1), normal(2, 2, 7, 2, seed=2)
    seen = [[(i + 2 * j + b) % 3 > 0 for j in range(7)] for b in range(2) for i in range(5)]
    seen[1], seen[8] = [False] * 7, [False] * 7
    masked = attention.attend(q, k, v, visible=lambda b, i, j: seen[5 * b + i][j])
    scored = attention.attend(q, k, v, score=lambda s, b, h, i, j: s if seen[5 * b + i][j] else -math.inf)
    assert torch.equal(scored[0], masked[0])
    assert torch.equal(scored[1], masked[1])
    assert (scored[0][0, :, 1] == 0).all()
    assert (scored[1][1, :, 3] == -math.inf).all()
    assert scored[2].isneginf().sum() == 4 * sum(not x for row in seen for x in row)  # the logits are shown as they are

    # What is left when the mask hides one part and the score the other is nothing.
    output, lse, _ = attention.attend(
        q, k, v, score=lambda s, b, h, i, j: s if j < 3 else -math.inf, visible=lambda b, i, j: j >= 3
    )
    assert (output == 0).all()
    assert (lse == -math.inf).all()


def test_what_is_out_of_sight_does_not_reach_the_output() -> None:
    q, k, v = normal(1, 2, 3, 4), normal(1, 2, 5, 4, seed=1), normal(1, 2, 5, 4, seed=2)
    expected, _, _ = attention.attend(q, k[:, :, :3], v[:, :, :3])
    k[:, :, 3:], v[:, :, 3:] = math.nan, math.nan
    output, _, _ = attention.attend(q, k, v, visible=lambda b, i, j: j < 3)
    assert torch.equal(output, expected)


def test_visibility_is_read_off_order_and_document() -> None:
    order, document = [[1, 0, 0, 2, 7]], [[4, 4, 5, 4, -1]]  # unsorted, two documents, one padding token

    def seen(causal: bool) -> list[list[int]]:
        visible = attention.visible_from(order, order, document, document, causal)
        return [[j for j in range(5) if visible(0, i, j)] for i in range(5)]

    assert seen(causal=True) == [[0, 1], [1], [2], [0, 1, 3], []]
    assert seen(causal=False) == [[0, 1, 3], [0, 1, 3], [2], [0, 1, 3], []]
    last = attention.visible_from([[2]], [[0, 1, 2, 3]], [[0]], [[0, 0, 0, 0]], causal=True)  # a cached decode step
    assert [last(0, 0, j) for j in range(4)] == [True, True, True, False]


# --- added to the input ---------------------------------------------------------------------------------------------


def test_sinusoidal_table_as_printed() -> None:
    printed = [
        [0.0000e00, 1.0000e00, 0.0000e00, 1.0000e00, 0.0000e00, 1.0000e00, 0.0000e00, 1.0000e00],
        [8.4147e-01, 5.4030e-01, 9.9833e-02, 9.9500e-01, 9.9998e-03, 9.9995e-01, 1.0000e-03, 1.0000e00],
        [9.0930e-01, -4.1615e-01, 1.9867e-01, 9.8007e-01, 1.9999e-02, 9.9980e-01, 2.0000e-03, 1.0000e00],
        [1.4112e-01, -9.8999e-01, 2.9552e-01, 9.5534e-01, 2.9995e-02, 9.9955e-01, 3.0000e-03, 1.0000e00],
    ]
    table = sinusoidal.table([0, 1, 2, 3], dim=8)
    for row, expected in zip(table, printed, strict=True):
        for x, digits in zip(row, expected, strict=True):  # half of the last digit printed, from an fp32 computation
            unit = 10.0 ** (math.floor(math.log10(abs(digits))) - 4) if digits else 0.0
            assert abs(x - digits) <= 0.5 * unit + 2.0**-23 * abs(x)
        assert norm(row) == pytest.approx(2.0, rel=1e-15)


@pytest.mark.parametrize("dim", [2, 6, 128])
def test_sinusoidal_norm_is_the_root_of_half_the_dimension_everywhere(dim: int) -> None:
    for row in sinusoidal.table([0, 1, 2.5, -3, 512, 1_000_000], dim, base=777.0):
        assert norm(row) == pytest.approx(math.sqrt(dim / 2), rel=1e-14)


def test_sinusoidal_dot_products_at_d_128() -> None:
    table = sinusoidal.table(range(100, 114), dim=128)  # an offset: the product depends on the distance alone
    products = [attention.dot(table[0], row) for row in table]
    assert round(products[0], 1) == 64.0
    assert round(products[10], 1) == 42.8
    assert [r for r, (a, b) in enumerate(pairwise(products), start=1) if b > a] == [12]


def test_sinusoidal_shift_is_a_rotation_of_each_pair() -> None:
    start, shift, dim, base = 17.25, 4.0, 6, 100.0
    before, after = sinusoidal.table([start, start + shift], dim, base)
    for k in range(dim // 2):
        angle = shift * base ** (-2 * k / dim)
        sin, cos = before[2 * k : 2 * k + 2]
        assert after[2 * k] == pytest.approx(sin * math.cos(angle) + cos * math.sin(angle), rel=1e-12)
        assert after[2 * k + 1] == pytest.approx(cos * math.cos(angle) - sin * math.sin(angle), rel=1e-12)


def test_sinusoidal_index_zero_is_the_fastest_and_speed_does_not_depend_on_the_position() -> None:
    """Two widely read introductions say the opposite."""
    rows = sinusoidal.table([0, 0.01, 900, 900.01], dim=8)
    angles = [[math.atan2(row[2 * k], row[2 * k + 1]) for k in range(4)] for row in rows]
    turned = [[(b - a) % (2 * math.pi) for a, b in zip(angles[n], angles[n + 1], strict=True)] for n in (0, 2)]
    assert turned[0] == pytest.approx([0.01, 0.001, 0.0001, 0.00001], rel=1e-6)
    assert turned[1] == pytest.approx(turned[0], rel=1e-6)


def test_sinusoidal_layouts_are_permutations_of_one_another() -> None:
    interleaved = sinusoidal.table([0, 1, 2.5, 400], 6, base=50.0)
    concatenated = sinusoidal.table([0, 1, 2.5, 400], 6, base=50.0, layout="concatenated")
    assert concatenated == [row[0::2] + row[1::2] for row in interleaved]
    assert concatenated[1][:3] == [math.sin(50.0 ** (-k / 3)) for k in range(3)]
    with pytest.raises(ValueError, match="layout"):
        sinusoidal.table([0], 6, layout="half")


SIN = {0: 0.0, 0.1: 0.0998334166, 0.2: 0.1986693308, 1: 0.8414709848, 2: 0.9092974268}
COS = {0: 1.0, 0.1: 0.9950041653, 0.2: 0.9800665778, 1: 0.5403023059, 2: -0.4161468365}


def test_sinusoidal_grid_of_two_rows_and_three_columns_by_hand() -> None:
    """Four channels an axis; base 100 gives them the frequencies 1 and 1/10. The row comes first."""
    points = [(r, c) for r in range(2) for c in range(3)]
    by_hand = {
        "interleaved": {p: [SIN[p], COS[p], SIN[p / 10], COS[p / 10]] for p in range(3)},
        "concatenated": {p: [SIN[p], SIN[p / 10], COS[p], COS[p / 10]] for p in range(3)},
    }
    for layout, axis in by_hand.items():
        table = sinusoidal.grid_table(points, 8, base=100.0, layout=layout)
        assert table == [pytest.approx(axis[r] + axis[c], abs=1e-10) for r, c in points]
        turned = sinusoidal.grid_table([(c, r) for r, c in points], 8, base=100.0, layout=layout)
        assert turned == [row[4:] + row[:4] for row in table]  # MAE's order: the column first


def test_sinusoidal_grid_frequencies_are_over_the_channels_of_an_axis() -> None:
    # Twelve channels on two axes: 10000^(-2k/6); over all twelve it would be 10000^(-2k/12).
    row = sinusoidal.grid_table([(0.5, -1.0)], 12)[0]
    thirds = [1.0, 0.046415888336, 0.0021544346900]
    assert row[0::2] == pytest.approx([math.sin(0.5 * f) for f in thirds] + [-math.sin(f) for f in thirds], rel=1e-10)
    assert row[1::2] == pytest.approx([math.cos(0.5 * f) for f in thirds] + [math.cos(f) for f in thirds], rel=1e-10)
    assert norm(row) == pytest.approx(math.sqrt(6), rel=1e-14)
    for layout in ("interleaved", "concatenated", "tensor2tensor"):
        one = sinusoidal.grid_table([(7,), (-2.5,)], 6, base=77.0, layout=layout)
        assert one == sinusoidal.table([7, -2.5], 6, base=77.0, layout=layout)
        assert len(sinusoidal.grid_table([(1, 2, 3)], 18, layout=layout)[0]) == 18


@pytest.mark.parametrize("layout", ["interleaved", "concatenated", "tensor2tensor"])
def test_sinusoidal_shift_is_the_vector_further_on(layout: str) -> None:
    quarter = sinusoidal.shift([0.6, 0.8], [math.pi / 2], layout=layout)  # one pair: (sin, cos) -> (cos, -sin)
    assert quarter == pytest.approx([0.8, -0.6])
    (before,) = sinusoidal.table([17.25], 10, base=300.0, layout=layout)
    for offset in (0.0, 4.0, -30.5, 1000.0):
        (after,) = sinusoidal.table([17.25 + offset], 10, base=300.0, layout=layout)
        assert sinusoidal.shift(before, [offset], base=300.0, layout=layout) == pytest.approx(after, abs=1e-12)
    before, after = sinusoidal.grid_table([(3, 5, -1), (7, 5, 1.5)], 18, base=50.0, layout=layout)
    assert sinusoidal.shift(before, [4, 0, 2.5], base=50.0, layout=layout) == pytest.approx(after, abs=1e-12)
    with pytest.raises(ValueError, match="layout"):
        sinusoidal.shift(before, [1.0], layout="half")


def test_fourier_features_by_hand() -> None:
    # Directions (1/4, 0), (0, 1/12), (1/2, 1/6) and the point (1, 2): a quarter, a sixth and 5/6 of a turn.
    directions = [[0.25, 0.0], [0.0, 1 / 12], [0.5, 1 / 6]]
    (row,) = fourier_features.table([(1, 2)], directions)
    high = math.sqrt(0.75)
    assert row == pytest.approx([0.0, 0.5, 0.5, 1.0, high, -high])
    assert fourier_features.table([(0, 0), (4, 12)], directions)[0] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert fourier_features.table([(4, 12)], directions)[0] == pytest.approx([1.0, 1.0, 1.0, 0.0, 0.0, 0.0], abs=1e-14)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_fourier_features_have_one_norm_and_products_of_the_difference_alone(axes: int) -> None:
    directions = 0.3 * normal(7, axes)
    points = normal(3, axes, seed=1).tolist()
    table = fourier_features.table(points, directions)
    assert [norm(row) for row in table] == pytest.approx([math.sqrt(7)] * 3, rel=1e-14)
    moved = fourier_features.table([[x + 2.75 for x in point] for point in points], directions)
    assert attention.dot(moved[0], moved[1]) == pytest.approx(attention.dot(table[0], table[1]), abs=1e-12)
    assert abs(moved[0][0] - table[0][0]) > 0.01


@pytest.mark.parametrize("sigma", [0.25, 1.5])
def test_fourier_features_average_to_the_gaussian_kernel(sigma: float) -> None:
    """P[x].P[y] / (dim/2) is the mean of cos z, z = 2 pi b.(x - y) being normal of variance s^2 = (2 pi sigma r)^2.

    E cos z = exp(-s^2/2) = phi, and Var cos z = (1 + phi^4)/2 - phi^2 = (1 - phi^2)^2 / 2: five deviations of the mean.
    """
    count = 20_000
    directions = (sigma * normal(count, 2, seed=3)).tolist()
    for r in (0.0, 0.02, 0.1, 0.3, 1.0):
        x, y = fourier_features.table([(1.0, -2.0), (1.0 + 0.6 * r, -2.0 - 0.8 * r)], directions)
        expected = math.exp(-2.0 * math.pi**2 * sigma**2 * r**2)
        tolerance = 5.0 * (1.0 - expected**2) / math.sqrt(2.0 * count) + 1e-12
        assert abs(attention.dot(x, y) / count - expected) <= tolerance


def test_learned_fourier_features_by_hand() -> None:
    # One direction of a quarter turn: P[1] = (0, 1), over sqrt 2. The hidden layer sees 3 and, from the bias alone, -1.
    root = math.sqrt(2.0)
    w1, b1 = [[5.0, 2.0 * root], [7.0, 0.0]], [1.0, -1.0]
    w2, b2 = [[1.0, 0.0], [0.0, 1.0], [10.0, 100.0]], [0.0, 0.0, 0.5]
    (row,) = fourier_features.learned_table([(1.0,)], [[0.25]], w1, b1, w2, b2)
    gelu_3, gelu_minus_1 = 3 * 0.9986501020, -0.1586552539  # z times the normal distribution's Phi(z)
    assert row == pytest.approx([gelu_3, gelu_minus_1, 10 * gelu_3 + 100 * gelu_minus_1 + 0.5], rel=1e-9)
    assert fourier_features.gelu(0.0) == 0.0


def test_learned_fourier_features_are_two_linear_layers_of_pytorch() -> None:
    points, directions = normal(4, 2), 0.4 * normal(5, 2, seed=1)
    w1, b1, w2, b2 = normal(6, 10, seed=2), normal(6, seed=3), normal(3, 6, seed=4), normal(3, seed=5)
    angles = 2.0 * math.pi * points @ directions.T
    features = torch.cat([angles.cos(), angles.sin()], dim=-1) / math.sqrt(10)
    expected = torch.nn.functional.gelu(features @ w1.T + b1) @ w2.T + b2
    table = fourier_features.learned_table(points.tolist(), directions, w1, b1, w2, b2)
    torch.testing.assert_close(torch.tensor(table, dtype=DOUBLE), expected)


def test_exponential_decay_by_hand() -> None:
    # longest 16 over four channels: time constants 2, 4, 8, 16, so 16 ln 2 is 8, 4, 2 and 1 half-lives.
    halved = exponential_decay.table([0, 16 * math.log(2), 8], 4, longest=16.0)
    assert halved[0] == [1.0, 1.0, 1.0, 1.0]
    assert halved[1] == pytest.approx([1 / 256, 1 / 16, 1 / 4, 1 / 2])
    assert halved[2] == pytest.approx([0.0183156389, 0.1353352832, 0.3678794412, 0.6065306597])  # e to -4, -2, -1, -1/2
    assert exponential_decay.table([10_000], 5)[0][-1] == pytest.approx(0.3678794412)  # the last constant is `longest`
    assert exponential_decay.table([10], 4)[0][0] == pytest.approx(0.3678794412)  # the first 10000^(1/4)
    for negative in (-1, -0.5):
        with pytest.raises(IndexError, match=f"position {negative} is negative"):
            exponential_decay.table([0, negative], 4)


def test_exponential_decay_falls_with_the_position_and_rises_with_the_channel() -> None:
    table = exponential_decay.table([0, 0.25, 1, 2, 7, 40, 300], 6, longest=300.0)
    for before, after in pairwise(table):
        assert all(x > y > 0 for x, y in zip(before, after, strict=True))
    for row in table[1:]:
        assert all(x < y < 1 for x, y in pairwise(row))


def test_exponential_decay_shift_is_one_factor_a_channel() -> None:
    start, step, moved = exponential_decay.table([3.5, 9, 12.5], 6, longest=50.0)
    assert moved == pytest.approx([x * y for x, y in zip(start, step, strict=True)], rel=1e-13)


def test_learned_adds_the_row_of_the_position() -> None:
    x = [[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]
    weight = [[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]]
    assert learned.add(x, [[2, 0, 2]], weight).tolist() == [[[51.0, 62.0], [13.0, 24.0], [55.0, 66.0]]]
    for outside in (-1, 3):
        with pytest.raises(IndexError, match=rf"position {outside} .*0\.\.2"):
            learned.add(x, [[0, 1, outside]], weight)


def test_segment_adds_the_row_of_the_segment() -> None:
    x = normal(2, 3, 4)
    weight = normal(2, 4, seed=1)
    expected = torch.stack([x[0] + weight[[0, 0, 1]], x[1] + weight[[1, 0, 1]]])
    assert torch.equal(segment.add(x, [[0, 0, 1], [1, 0, 1]], weight), expected)
    with pytest.raises(IndexError, match=r"segment 2 .*0\.\.1"):
        segment.add(x, [[0, 0, 1], [1, 0, 2]], weight)


def test_nope_changes_nothing() -> None:
    x = normal(2, 3, 4)
    assert torch.equal(nope.add(x), x)
    assert nope.rotate([1.0, -2.0], 70.5) == [1.0, -2.0]
    assert nope.score(0.7, 0, 1, 2, 3) == 0.7


# --- rotations ------------------------------------------------------------------------------------------------------


def test_rope_by_hand() -> None:
    quarter = math.pi / 2  # base 1 gives both pairs the frequency 1
    x = [1.0, 2.0, 3.0, 4.0]
    assert rope.rotate(x, quarter, base=1.0, layout="interleaved") == pytest.approx([-2.0, 1.0, -4.0, 3.0])
    assert rope.rotate(x, quarter, base=1.0, layout="half") == pytest.approx([-3.0, -4.0, 1.0, 2.0])
    # base 9 over four channels: frequencies 1 and 1/3, so pi turns the pairs by pi and pi/3.
    expected = [-1.0, 2.0 * 0.5 - 4.0 * math.sqrt(0.75), -3.0, 2.0 * math.sqrt(0.75) + 4.0 * 0.5]
    assert rope.rotate(x, math.pi, base=9.0) == pytest.approx(expected)
    with pytest.raises(ValueError, match="layout"):
        rope.rotate(x, 1.0, layout="concatenated")


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_partial_rope_takes_its_frequencies_over_rotary_dim_and_leaves_the_rest(layout: str) -> None:
    x = [0.3, -1.2, 0.7, 2.0, -0.4, 0.9, 1.1]
    rotated = rope.rotate(x, 5.0, base=500.0, layout=layout, rotary_dim=4)
    assert rotated[4:] == x[4:]
    assert rotated[:4] == rope.rotate(x[:4], 5.0, base=500.0, layout=layout)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rope_product_depends_on_the_difference_alone(layout: str) -> None:
    q, k = normal(2, 10).tolist()

    def product(i: float, j: float) -> float:
        return attention.dot(
            rope.rotate(q, i, base=300.0, layout=layout, rotary_dim=6),
            rope.rotate(k, j, base=300.0, layout=layout, rotary_dim=6),
        )

    for shift in (1.0, 1000.0, 0.5, -40.0):
        assert product(9 + shift, 2.5 + shift) == pytest.approx(product(9, 2.5), rel=1e-11)
    assert abs(product(9, 2.5) - product(2.5, 9)) > 0.1  # and it tells left from right
    assert abs(product(9, 2.5) - product(9, 3.5)) > 0.01


def test_rope_layouts_are_permutations_of_one_another() -> None:
    x = normal(10).tolist()
    rotated = rope.rotate(x, 3.5, base=500.0, layout="interleaved", rotary_dim=6)

    def to_half(row: list[float]) -> list[float]:
        return row[0:6:2] + row[1:6:2] + row[6:]

    assert rope.rotate(to_half(x), 3.5, base=500.0, layout="half", rotary_dim=6) == to_half(rotated)


def test_rope_of_a_whole_tensor_reads_each_samples_positions() -> None:
    x = normal(2, 3, 4, 6)
    positions = [[5.0, 1.0, 1.0, 0.5], [100.0, 101.0, 3.0, 2.0]]
    rotated = rope.rotate_all(x, positions, base=70.0, layout="interleaved", rotary_dim=4)
    expected = rope.rotate(x[1, 2, 2].tolist(), 3, base=70.0, layout="interleaved", rotary_dim=4)
    assert rotated[1, 2, 2].tolist() == expected
    torch.testing.assert_close(rotated.norm(dim=-1), x.norm(dim=-1))


def test_rope_score_can_peak_at_any_distance() -> None:
    """The decay of the bound is often taken for the decay of the score."""
    q = normal(32).tolist()
    k = rope.rotate(q, 255.0)  # peaks 255 tokens before the query
    products = {r: attention.dot(rope.rotate(q, r), k) for r in range(512)}
    assert max(products, key=lambda r: products[r]) == 255


def test_rope_bound_at_d_128() -> None:
    published = {0: 32.5, 10: 17.95, 50: 12.63, 100: 10.23, 255: 6.78}
    assert {r: round(rope.bound(r, 128), 2) for r in published} == published


def test_yarn_ranges_and_magnitude() -> None:
    assert yarn.correction_range(128, 10_000.0, 4096) == (20, 46)
    assert yarn.correction_range(128, 10_000.0, 2048) == (16, 41)
    assert yarn.correction_range(8, 10_000.0, 64) == (0, 2)  # dim(32) is below 0: held at 0
    assert round(yarn.magnitude(8.0), 4) == 1.2079
    assert round(yarn.magnitude(8.0) ** 2, 3) == 1.459
    assert yarn.magnitude(1.0) == 1.0


def test_yarn_frequencies_by_hand() -> None:
    theta = rope.frequencies(128)
    scaled = yarn.frequencies(128, 10_000.0, 8.0, 4096)
    assert scaled[:21] == theta[:21]
    assert scaled[46:] == pytest.approx([t / 8 for t in theta[46:]], rel=1e-15)
    assert scaled[33] == pytest.approx(0.5625 * theta[33], rel=1e-15)  # half way: (1 + 1/8) / 2
    assert scaled[21] == pytest.approx((25 / 26 + 1 / 26 / 8) * theta[21], rel=1e-15)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_yarn_lengthens_both_sides_and_is_rope_at_factor_one(layout: str) -> None:
    q = normal(12).tolist()
    stretched = yarn.rotate(q, 7.0, factor=8.0, original_length=64, layout=layout, rotary_dim=8)
    assert stretched[8:] == q[8:]
    assert norm(stretched[:8]) ** 2 == pytest.approx(1.4591290795886054 * norm(q[:8]) ** 2, rel=1e-12)
    same = yarn.rotate(q, 7.0, factor=1.0, original_length=64, base=30.0, layout=layout, rotary_dim=8)
    assert same == pytest.approx(rope.rotate(q, 7.0, base=30.0, layout=layout, rotary_dim=8), rel=1e-14)
    whole = yarn.rotate_all([[[q]]], [[7.0]], factor=8.0, original_length=64, layout=layout, rotary_dim=8)
    assert whole[0, 0, 0].tolist() == stretched


# --- in the scores and the values -----------------------------------------------------------------------------------


def test_alibi_slopes() -> None:
    def exponents(num_heads: int) -> list[float]:
        return [-math.log2(m) for m in alibi.slopes(num_heads)]

    assert alibi.slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert exponents(16) == pytest.approx([h / 2 for h in range(1, 17)])  # 2^-h holds for 8 heads only
    assert exponents(12) == pytest.approx([1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5])
    assert exponents(6) == pytest.approx([2, 4, 6, 8, 1, 3])
    assert exponents(1) == [8]
    assert exponents(5) == pytest.approx([2, 4, 6, 8, 1])
    assert exponents(3) == pytest.approx([4, 8, 2])
    assert [len(alibi.slopes(n)) for n in range(1, 65)] == list(range(1, 65))


def test_alibi_bias_by_hand() -> None:
    queries, keys = [[10.0, 3.5]], [[7.0, 10.0, 12.0]]
    causal = alibi.score([0.5, 0.25], queries, keys, causal=True)
    both = alibi.score([0.5, 0.25], queries, keys, causal=False)
    assert [causal(1.0, 0, 0, 0, j) for j in range(3)] == [-0.5, 1.0, 2.0]
    assert [both(1.0, 0, 0, 0, j) for j in range(3)] == [-0.5, 1.0, 0.0]
    assert both(0.0, 0, 1, 1, 0) == -0.875


def test_alibi_bias_is_not_divided_by_the_root_of_d() -> None:
    q, k = torch.zeros(1, 1, 1, 64, dtype=DOUBLE), torch.zeros(1, 1, 3, 64, dtype=DOUBLE)
    score = alibi.score([0.5], [[2]], [[0, 1, 2]], causal=True)
    assert attention.attend(q, k, k, score=score)[2].tolist() == [[[[-1.0, -0.5, 0.0]]]]


def test_alibi_directed_by_hand() -> None:
    # Two heads look left and two right, each pair with the slopes of two heads: 2^-4 and 2^-8.
    score = alibi.directed_score(4, [[10.0, 3.5]], [[6.0, 10.0, 12.0]])
    rows = [[score(1.0, 0, h, 0, j) for j in range(3)] for h in range(4)]
    assert rows == [
        [0.75, 1.0, -math.inf],  # 1 - 4/16
        [0.984375, 1.0, -math.inf],  # 1 - 4/256
        [-math.inf, 1.0, 0.875],  # 1 - 2/16
        [-math.inf, 1.0, 0.9921875],  # 1 - 2/256
    ]
    assert [score(1.0, 0, h, 1, 0) for h in range(4)] == [-math.inf, -math.inf, 0.84375, 0.990234375]  # 2.5 away
    twelve = alibi.directed_score(12, [[0]], [[-1, 1]])
    assert [-twelve(0.0, 0, h, 0, h // 6) for h in range(12)] == 2 * alibi.slopes(6)
    with pytest.raises(AssertionError, match="even, got 5"):
        alibi.directed_score(5, [[0]], [[0]])


def test_alibi_directed_is_causal_attention_beside_its_mirror_image() -> None:
    q, k, v = normal(2, 6, 4, 3), normal(2, 2, 5, 3, seed=1), normal(2, 2, 5, 2, seed=2)
    queries, keys = [[9, 3, 4, -1], [2, 0, 2, 50]], [[0, 9, 3, 2, 5], [1, 0, 7, 3, 50]]
    output, lse, logits = attention.attend(q, k, v, score=alibi.directed_score(6, queries, keys))
    one = [[0] * 5] * 2
    for half, sign in ((slice(0, 3), 1), (slice(3, 6), -1)):
        x, y = [[sign * p for p in row] for row in queries], [[sign * p for p in row] for row in keys]
        expected, expected_lse, _ = attention.attend(
            q[:, half],
            k.repeat_interleave(3, dim=1)[:, half],
            v.repeat_interleave(3, dim=1)[:, half],
            score=alibi.score(alibi.slopes(3), x, y, causal=True),
            visible=attention.visible_from(x, y, one, one, causal=True),
        )
        torch.testing.assert_close(output[:, half], expected)
        torch.testing.assert_close(lse[:, half], expected_lse)
    assert (output[0, :3, 3] == 0).all()  # nothing lies before -1
    assert (lse[0, :3, 3] == -math.inf).all()
    assert output.isfinite().all()
    assert (logits[:, :3].isneginf() != logits[:, 3:].isneginf()).sum() == 3 * (2 * 4 * 5 - 4)  # but for 9, 3, 0 and 50


def test_shaw_window_of_two() -> None:
    assert [shaw.index(4, j, 2) - 2 for j in (1, 2, 3, 4, 5, 6, 7)] == [-2, -2, -1, 0, 1, 2, 2]
    assert [shaw.index(3, j, 2) - 2 for j in (1, 2, 3)] == [-2, -1, 0]


def test_shaw_by_hand() -> None:
    query = [[[[2.0, 0.0, 0.0, 0.0]]]]
    key = [[[[0.0] * 4, [1.0] * 4, [0.0] * 4]]]
    key_table = [[10.0, 9.0, 9.0, 9.0], [20.0, 9.0, 9.0, 9.0], [30.0, 9.0, 9.0, 9.0]]  # left, self, right
    score = shaw.score(query, key_table, [[5]], [[1, 5, 6]])
    _, _, logits = attention.attend(query, key, key, score=score)
    assert logits.tolist() == [[[[10.0, 21.0, 30.0]]]]  # 2 * (0 + 10), 2 * (1 + 20), 2 * (0 + 30), all over 2

    zeros = [[[[0.0]], [[0.0]]]]  # two heads, uniform weights over three keys
    values = [[[[3.0], [6.0], [9.0]], [[0.0], [0.0], [0.0]]]]
    term = shaw.value_term([[100.0], [10.0], [1.0]], [[5]], [[1, 5, 6]])
    output, _, _ = attention.attend(zeros, [[[[0.0]] * 3] * 2], values, value_term=term)
    torch.testing.assert_close(output, torch.tensor([[[[43.0]], [[37.0]]]], dtype=DOUBLE))


def test_shaw_with_a_table_a_head() -> None:
    query = [[[[2.0]], [[3.0]]]]
    keys = [[[10.0], [20.0], [30.0]], [[1.0], [2.0], [3.0]]]
    values = [[[100.0], [200.0], [300.0]], [[7.0], [8.0], [9.0]]]
    score = shaw.score(query, keys, [[5]], [[1, 5, 6]])
    assert [[score(1.0, 0, h, 0, j) for j in range(3)] for h in range(2)] == [[21.0, 41.0, 61.0], [4.0, 7.0, 10.0]]
    term = shaw.value_term(values, [[5]], [[6, 1]])
    assert [[term(0, h, 0, j) for j in range(2)] for h in range(2)] == [[[300.0], [100.0]], [[9.0], [7.0]]]


def test_shaw_tables_as_tensors_or_lists_shared_or_repeated() -> None:
    q, table = normal(2, 3, 2, 4), normal(7, 4, seed=5)
    queries, keys = [[5, 11], [2, 7]], [[0, 9, 3, 18], [1, 0, 7, 4]]
    tables = table.expand(3, 7, 4)
    expected = shaw.score(q, table, queries, keys), shaw.value_term(table, queries, keys)
    for same in (table.tolist(), tables, tables.tolist()):
        score, term = shaw.score(q, same, queries, keys), shaw.value_term(same, queries, keys)
        for b, h, i, j in [(0, 0, 0, 0), (1, 2, 1, 3), (0, 2, 1, 1), (1, 1, 0, 2)]:
            assert score(0.3, b, h, i, j) == expected[0](0.3, b, h, i, j)
            assert term(b, h, i, j) == expected[1](b, h, i, j)


def test_t5_buckets_as_published() -> None:
    def buckets(distances: list[int], bidirectional: bool) -> list[int]:
        return [t5.bucket(n, 32, 128, bidirectional=bidirectional) for n in distances]

    assert buckets([15, 16, 20, 32, 64, 127], False) == [15, 16, 17, 21, 26, 31]
    assert buckets([0, -1, -500, 128, 10**12], False) == [0, 0, 0, 31, 31]
    assert buckets([0, 7, 8, 16, 64, 128, 10**12], True) == [0, 7, 8, 10, 14, 15, 15]
    assert buckets([-1, -8, -128, -(10**12)], True) == [17, 24, 31, 31]


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (16, 128), (7, 13), (2, 5), (48, 81), (64, 1000)])
def test_t5_buckets_are_those_of_the_logarithm(num_buckets: int, max_distance: int) -> None:
    """In double precision a bucket that begins at an integer exactly may come out one less, and no other."""
    exact = num_buckets // 2
    for n in range(exact, 2 * max_distance):
        power = (num_buckets - exact) * math.log(n / exact) / math.log(max_distance / exact)
        found = t5.bucket(n, num_buckets, max_distance, bidirectional=False)
        assert found in {min(num_buckets - 1, exact + math.floor(power + error)) for error in (-1e-9, 1e-9)}


def test_t5_begins_a_bucket_at_an_integer() -> None:
    # (54/24)^24 = (81/24)^16 = 1.5^48; sqrt(2)^2, sqrt(2)^4 and sqrt(2)^6 times 8.
    assert [t5.bucket(n, 48, 81, bidirectional=False) for n in (53, 54)] == [39, 40]
    assert [t5.bucket(n, 16, 128, bidirectional=False) for n in (15, 16, 31, 32, 63, 64)] == [9, 10, 11, 12, 13, 14]


def test_t5_by_hand() -> None:
    table = [[float(bucket), 100.0 * bucket] for bucket in range(8)]  # a side is 0; 1; 2 and 3; 4 or more
    keys = [[96, 97, 98, 99, 100, 101, 102, 104, 1000]]
    both = t5.score(table, [[100]], keys, 8, bidirectional=True)
    assert [both(1.0, 0, 0, 0, j) for j in range(9)] == [4.0, 3.0, 3.0, 2.0, 1.0, 6.0, 7.0, 8.0, 8.0]
    assert [both(1.0, 0, 1, 0, j) for j in (0, 8)] == [301.0, 701.0]
    causal = t5.score(table, [[100]], keys, 16, bidirectional=False)
    assert [causal(0.0, 0, 0, 0, j) for j in range(9)] == [4.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_transformer_xl_terms_by_hand() -> None:
    # d = 1, d_model = 2: W_R = (1, 0) picks sin r out of R_r = (sin r, cos r).
    query, key = [[[[2.0]]]], [[[[3.0], [4.0]]]]
    four = transformer_xl.terms(query, key, [[[1.0, 0.0]]], [[5.0]], [[7.0]], [[11.0]], [[10.0, 12.0]])
    assert four(0, 0, 0, 0) == pytest.approx((6.0, 2 * math.sin(1), 15.0, 7 * math.sin(1)))
    assert four(0, 0, 0, 1) == pytest.approx((8.0, -2 * math.sin(1), 20.0, -7 * math.sin(1)))  # r = -1: signed
    _, _, logits = attention.attend(query, key, key, score=transformer_xl.score(four))
    assert logits.flatten().tolist() == pytest.approx([21.0 + 9 * math.sin(1), 28.0 - 9 * math.sin(1)])


def test_transformer_xl_sinusoid_is_concatenated() -> None:
    assert transformer_xl.sinusoid(3.0, 4, base=100.0) == pytest.approx(
        [math.sin(3), math.sin(0.3), math.cos(3), math.cos(0.3)]
    )


def test_transformer_xl_is_the_papers_factored_product() -> None:
    """(q_i + u).k_j + (q_i + v).W_R R_r over sqrt(d), with grouped queries, offsets and a second head's parameters."""
    q, k = normal(2, 4, 3, 5), normal(2, 2, 6, 5, seed=1)
    w_r, u, v = normal(4, 5, 8, seed=2), normal(4, 5, seed=3), normal(4, 5, seed=4)
    queries, keys = [[9, 3, 4], [100, 0, 2]], [[0, 9, 3, 2, 5, 5], [1, 0, 7, 3, 4, 100]]
    four = transformer_xl.terms(q, k, w_r, u, v, queries, keys, base=77.0)
    _, _, logits = attention.attend(q, k, k, score=transformer_xl.score(four))
    for b, h, i, j in [(0, 0, 0, 0), (1, 3, 2, 4), (0, 2, 1, 5), (1, 1, 0, 2)]:
        r = torch.tensor(transformer_xl.sinusoid(queries[b][i] - keys[b][j], 8, base=77.0), dtype=DOUBLE)
        expected = ((q[b, h, i] + u[h]) @ k[b, h // 2, j] + (q[b, h, i] + v[h]) @ (w_r[h] @ r)) / math.sqrt(5)
        torch.testing.assert_close(logits[b, h, i, j], expected)
        assert four(b, h, i, j)[0] == pytest.approx((q[b, h, i] @ k[b, h // 2, j] / math.sqrt(5)).item())


def test_distance_aware_function() -> None:
    assert distance_aware.rescale(0.0, 3.0, 0.7) == pytest.approx(1.0, rel=1e-15)
    assert distance_aware.rescale(1.0, math.log(3.0), 0.0) == pytest.approx(1.5)  # 2 / (1 + 1/3)
    assert distance_aware.rescale(-1.0, -math.log(3.0), 0.0) == pytest.approx(0.5)  # 2 / (1 + 3), and no direction
    assert distance_aware.rescale(1e6, 1.0, 0.7) == pytest.approx(1.0 + math.exp(0.7))  # the supremum
    assert distance_aware.rescale(1e6, -1.0, 0.7) == 0.0
    slope = (distance_aware.rescale(1e-6, 1.0, 0.7) - distance_aware.rescale(1e-6, -1.0, 0.7)) / 2e-6
    assert slope == pytest.approx(1 / (1 + math.exp(-0.7)), rel=1e-9)  # f'(0) = sigmoid(v)


def test_distance_aware_by_hand() -> None:
    weight, steepness = [math.log(3.0), 0.0, math.log(3.0)], [0.0, 1.3, math.log(3.0)]
    score = distance_aware.score(weight, steepness, [[4.0]], [[3.0, 4.0, 5.0]])
    assert [score(2.0, 0, 0, 0, j) for j in range(3)] == pytest.approx([3.0, 2.0, 3.0])
    assert [score(-2.0, 0, 0, 0, j) for j in range(3)] == [0.0, 0.0, 0.0]
    assert [score(2.0, 0, 1, 0, j) for j in range(3)] == pytest.approx([2.0, 2.0, 2.0])  # w = 0: attention on ReLU
    assert [score(2.0, 0, 2, 0, j) for j in range(3)] == pytest.approx([4.0, 2.0, 4.0])  # (1 + 3) / (1 + 3/3) = 2


def test_cope_by_hand() -> None:
    # All logits 0, so every gate is 1/2 and the last query counts 3/2, 1, 1/2 up to the three keys.
    query, table = [[[[0.0], [0.0], [2.0]]]], [[0.0], [10.0], [30.0]]
    order = [[0, 1, 2]]
    term = cope.row(query, table, order, order, position_scale=1.0)
    assert term([0.0, 0.0, 0.0], 0, 0, 2, [True, True, True]) == pytest.approx([40.0, 20.0, 10.0])
    halved = cope.row(query, table, order, order, position_scale=0.5)
    assert halved([0.0, 0.0, 0.0], 0, 0, 2, [True, True, True]) == pytest.approx([20.0, 10.0, 5.0])
    clamped = cope.row(query, table[:2], order, order, position_scale=1.0)
    assert clamped([0.0, 0.0, 0.0], 0, 0, 2, [True, True, True]) == pytest.approx([20.0, 20.0, 10.0])
    assert term([0.0, 0.0, 0.0], 0, 0, 2, [True, False, True]) == pytest.approx([20.0, 10.0, 10.0])  # 1, 1/2, 1/2


def test_cope_counts_in_the_tokens_order() -> None:
    logits = [math.log(0.2 / 0.8), math.log(0.5 / 0.5), math.log(0.9 / 0.1)]  # gates 0.2, 0.5, 0.9
    counts = cope.positions(logits, [0, 1, 2], 2, [True] * 3, 8, True)
    assert counts == pytest.approx([1.6, 1.4, 0.9])
    shuffled = cope.positions([logits[2], logits[0], logits[1]], [2, 0, 1], 2, [True] * 3, 8, True)
    assert shuffled == pytest.approx([0.9, 1.6, 1.4])
    earlier = cope.positions(logits, [0, 1, 2], 1, [True] * 3, 8, True)
    assert earlier == pytest.approx([0.7, 0.5, 0.0])  # from key to query, no further
    assert cope.positions(logits, [0, 1, 2], 1, [True] * 3, 8, False) == pytest.approx([1.6, 1.4, 0.9])


def test_cope_with_open_gates_is_a_relative_position() -> None:
    q = torch.full((1, 1, 4, 1), 100.0, dtype=DOUBLE)  # q.k = 10^4: every gate is 1, so p_ij = i - j + 1
    order = [[0, 1, 2, 3]]
    term = cope.row(q, [[float(n)] for n in range(6)], order, order, position_scale=0.01)
    _, _, logits = attention.attend(q, q, q, row=term)
    lower = torch.ones(4, 4, dtype=torch.bool).tril()
    difference = torch.tensor([[float(i - j + 1) for j in range(4)] for i in range(4)], dtype=DOUBLE)
    torch.testing.assert_close((logits[0, 0] - 1e4)[lower], difference[lower])


def pad_and_reshape(q: list[list[float]]) -> list[list[float]]:
    """The usual pad, flatten, pad, fold and slice, on lists."""
    n = len(q)
    flat = [x for row in q for x in [*row, 0.0]] + [0.0] * (n - 1)
    folded = [flat[r * (2 * n - 1) : (r + 1) * (2 * n - 1)] for r in range(n + 1)]
    return [row[n - 1 :] for row in folded[:n]]


@pytest.mark.parametrize("n", [1, 4, 7])
def test_relative_1d_is_the_pad_and_reshape_shift(n: int) -> None:
    q = normal(1, 1, n, 2 * n - 1)  # R = identity, so q.R[c] = q[c]
    score = relative_1d.score(q, [identity(2 * n - 1)], [list(range(n))], [list(range(n))], scale=1.0)
    rows = q[0, 0].tolist()
    term = [[score(0.0, 0, 0, i, j) for j in range(n)] for i in range(n)]
    assert term == pad_and_reshape(rows)
    assert term == [[rows[i][j - i + n - 1] for j in range(n)] for i in range(n)]


def test_relative_index_of_four_tokens_as_printed() -> None:
    """Rows 0 .. 6 of a table stand for the distances -3 .. +3; the diagonal is row 3."""
    printed = [[3, 4, 5, 6], [2, 3, 4, 5], [1, 2, 3, 4], [0, 1, 2, 3]]
    rows = [[float(c)] for c in range(7)]
    for start in (0, 17):
        tokens = [[start + n for n in range(4)]]
        score = relative_1d.score([[[[1.0]] * 4]], [rows], tokens, tokens)
        assert [[score(0.0, 0, 0, i, j) for j in range(4)] for i in range(4)] == printed
        assert [[shaw.index(i, j, 3) for j in tokens[0]] for i in tokens[0]] == printed
        assert [[c - 3 for c in row] for row in printed] == [[j - i for j in range(4)] for i in range(4)]


def test_relative_1d_by_hand() -> None:
    query = [[[[4.0, 0.0, 0.0, 0.0]], [[0.0, 2.0, 0.0, 0.0]]]]
    tables = [[[float(c), 0.0, 0.0, 0.0] for c in range(5)], [[0.0, 10.0 * c, 0.0, 0.0] for c in range(5)]]  # N = 3
    score = relative_1d.score(query, tables, [[100]], [[98, 99, 100, 101, 102]])
    assert [score(1.0, 0, 0, 0, j) for j in range(5)] == [1.0, 3.0, 5.0, 7.0, 9.0]
    assert [score(1.0, 0, 1, 0, j) for j in range(5)] == [1.0, 11.0, 21.0, 31.0, 41.0]
    with pytest.raises(IndexError, match=r"distance 3 .*-2\.\.2"):
        relative_1d.score(query, tables, [[100]], [[103]])(0.0, 0, 0, 0, 0)


def test_relative_2d_on_a_rectangle_by_hand() -> None:
    """Two rows of three columns. A common port swaps heights and widths and cannot run this."""
    query = [[[[4.0, 2.0, 0.0, 0.0]] * 6]]
    grid = [[(r, c) for r in range(2) for c in range(3)]]
    rows = [[[100.0 * n, 0.0, 0.0, 0.0] for n in range(3)]]  # delta row -1, 0, 1
    columns = [[[0.0, float(n), 0.0, 0.0] for n in range(5)]]  # delta column -2 .. 2
    score = relative_2d.score(query, rows, columns, grid, grid)
    # From the middle of the first row: the same row is 200 * 1, the one below 200 * 2; columns 1, 2, 3.
    assert [score(0.0, 0, 0, 1, j) for j in range(6)] == [201.0, 202.0, 203.0, 401.0, 402.0, 403.0]
    # From the last column of the second row: the row above is 200 * 0; columns 0, 1, 2.
    assert [score(0.0, 0, 0, 5, j) for j in range(6)] == [0.0, 1.0, 2.0, 200.0, 201.0, 202.0]
    with pytest.raises(IndexError, match=r"distance 2 .*-1\.\.1"):
        relative_2d.score(query, rows, columns, [[(0, 0)]], [[(2, 0)]])(0.0, 0, 0, 0, 0)


def test_relative_2d_of_a_transposed_grid_is_transposed() -> None:
    q, rows, columns = normal(1, 2, 6, 3), normal(2, 3, 3, seed=1), normal(2, 5, 3, seed=2)
    grid = [[(r, c) for r in range(2) for c in range(3)]]
    turned = [[(c, r) for r in range(2) for c in range(3)]]
    score = relative_2d.score(q, rows, columns, grid, grid)
    swapped = relative_2d.score(q, columns, rows, turned, turned)
    for i in range(6):
        for j in range(6):
            assert score(0.3, 0, 1, i, j) == pytest.approx(swapped(0.3, 0, 1, i, j), rel=1e-12)


def test_absolute_in_attention_by_hand() -> None:
    query, table = [[[[4.0, 2.0, 0.0, 0.0]]]], [[float(n), 0.0, 0.0, 0.0] for n in range(3)]
    score = absolute_in_attention.score(query, table, [[2, 0, 2, 1]])
    assert [score(1.0, 0, 0, 0, j) for j in range(4)] == [5.0, 1.0, 5.0, 3.0]
    for outside in (-1, 3):
        with pytest.raises(IndexError, match=rf"position {outside} .*0\.\.2"):
            absolute_in_attention.score(query, table, [[outside]])(0.0, 0, 0, 0, 0)


# --- all of them ----------------------------------------------------------------------------------------------------

Positions = list[list[int]]


def scores(q: torch.Tensor, k: torch.Tensor, queries: Positions, keys: Positions) -> dict[str, attention.Score]:
    """Every score oracle with its own parameters, for 3 heads of width 4."""
    tables, w_r, u, v = normal(3, 39, 4, seed=5), normal(3, 4, 6, seed=6), normal(3, 4, seed=7), normal(3, 4, seed=8)
    query_grid, key_grid = ([[divmod(p, 4) for p in row] for row in positions] for positions in (queries, keys))
    return {
        "absolute_in_attention": absolute_in_attention.score(q, tables[0], keys),
        "alibi": alibi.score(alibi.slopes(3), queries, keys, causal=False),
        "distance_aware": distance_aware.score([0.3, -0.2, 1.0], [1.0, 0.0, -1.0], queries, keys),
        "relative_1d": relative_1d.score(q, tables, queries, keys),
        "relative_2d": relative_2d.score(q, tables[:, :9], tables[:, 9:16], query_grid, key_grid),
        "shaw": shaw.score(q, tables[0, :7], queries, keys),
        "shaw per head": shaw.score(q, tables[:, :7], queries, keys),
        "t5": t5.score(tables[0, :8, :3], queries, keys, 6, bidirectional=True),
        "transformer_xl": transformer_xl.score(transformer_xl.terms(q, k, w_r, u, v, queries, keys)),
    }


@pytest.mark.parametrize("scheme", sorted(scores(normal(1, 3, 1, 4), normal(1, 1, 1, 4), [[0]], [[0]])))
def test_a_sample_scores_as_it_does_alone(scheme: str) -> None:
    q, k = normal(2, 3, 2, 4), normal(2, 1, 4, 4, seed=1)
    queries, keys = [[5, 11], [2, 7]], [[0, 9, 3, 18], [1, 0, 7, 7]]
    together = attention.attend(q, k, k, score=scores(q, k, queries, keys)[scheme])[2]
    alone = attention.attend(q[1:], k[1:], k[1:], score=scores(q[1:], k[1:], queries[1:], keys[1:])[scheme])[2]
    assert torch.equal(together[1:], alone)
    assert not torch.equal(together[1:], attention.attend(q[1:], k[1:], k[1:])[2])


def test_shaw_values_and_cope_rows_read_their_own_sample() -> None:
    q, table = normal(2, 3, 2, 4), normal(7, 4, seed=5)
    queries, keys = [[5, 11], [2, 7]], [[0, 9, 3, 18], [1, 0, 7, 4]]
    both, last = shaw.value_term(table, queries, keys), shaw.value_term(table, queries[1:], keys[1:])
    assert [both(1, 0, 1, j) for j in range(4)] == [last(0, 0, 1, j) for j in range(4)]
    rows = cope.row(q, table, queries, keys, position_scale=0.5)
    row = cope.row(q[1:], table, queries[1:], keys[1:], position_scale=0.5)
    logits = [0.3, -1.0, 2.0, 0.1]
    assert rows(logits, 1, 2, 0, [True] * 4) == row(logits, 0, 2, 0, [True] * 4)
