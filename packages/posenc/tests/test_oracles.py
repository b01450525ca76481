"""The oracles themselves, against numbers worked by hand or printed in the literature."""

import ast
import math
from pathlib import Path

import pytest
import torch

from tests.oracles import (
    absolute_in_attention,
    alibi,
    attention,
    distance_aware,
    exponential_decay,
    fourier_features,
    relative_1d,
    relative_2d,
    shaw,
    sinusoidal,
)
from tests.rows import in_one_test

DOUBLE = torch.float64


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


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


# --- added to the input ---------------------------------------------------------------------------------------------


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


# --- in the scores and the values -----------------------------------------------------------------------------------


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


def test_absolute_in_attention_by_hand() -> None:
    query, table = [[[[4.0, 2.0, 0.0, 0.0]]]], [[float(n), 0.0, 0.0, 0.0] for n in range(3)]
    score = absolute_in_attention.score(query, table, [[2, 0, 2, 1]])
    assert [score(1.0, 0, 0, 0, j) for j in range(4)] == [5.0, 1.0, 5.0, 3.0]
    for outside in (-1, 3):
        with pytest.raises(IndexError, match=rf"position {outside} .*0\.\.2"):
            absolute_in_attention.score(query, table, [[outside]])(0.0, 0, 0, 0, 0)
