from collections.abc import Callable

import pytest
import torch

import posenc
from posenc.encoding.encoding import Encoding
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.shaw import Shaw
from posenc.tools.bench import cases
from posenc.tools.bench.limit import multiply_adds, products
from posenc.tools.bench.measure import Inputs
from posenc.tools.bench.settings import Settings
from tests.bench.test_command import TINY

HEADS, TOKENS, DIM = 3, 11, 4
PAIRS = TOKENS * (TOKENS + 1) // 2
QUERY = torch.zeros(1, HEADS, TOKENS, DIM)


def encoding(scheme: Scheme) -> Encoding:
    return scheme(Positions.arange(TOKENS))


def by_loops(entry: Callable[[int], int]) -> int:
    """How many entries queries meet, each once, of keys up to their own."""
    return sum(len({entry(i - j) for j in range(i + 1)}) for i in range(TOKENS))


@pytest.mark.parametrize(("training", "products"), [(False, 2), (True, 7)])
def test_each_visible_pair_has_products_over_the_channels(training: bool, products: int) -> None:
    assert multiply_adds(None, QUERY, training) == HEADS * PAIRS * DIM * products
    assert multiply_adds(encoding(posenc.RoPE(DIM)), QUERY, training) == HEADS * PAIRS * DIM * products
    assert multiply_adds(None, QUERY, training, computed=0.5) == HEADS * PAIRS * DIM * products / 2


@pytest.mark.parametrize(("training", "pair", "met"), [(False, 2, 2), (True, 7, 4 + 3)])
def test_vectors_by_distance_are_met_once_for_each_distance(training: bool, pair: int, met: int) -> None:
    window = 2  # farther distances have the vector of this one
    found = multiply_adds(encoding(Shaw(DIM, window)), QUERY, training)
    assert found == HEADS * DIM * (PAIRS * pair + met * by_loops(lambda r: min(r, window)))
    keys_alone = multiply_adds(encoding(Shaw(DIM, window, values=False)), QUERY, training)
    met_by_keys = 4 if training else 1
    assert keys_alone == HEADS * DIM * (PAIRS * pair + met_by_keys * by_loops(lambda r: min(r, window)))


def test_rows_and_columns_of_a_grid_are_met_by_themselves() -> None:
    settings = Settings(**TINY | {"heads": HEADS})
    scheme = cases.build_scheme("relative_2d", settings, 64)
    positions = cases.positions_of("relative_2d", 64, "cpu")
    query = torch.zeros(1, HEADS, 64, settings.head_dim)
    # Of 8 x 8 patches the i-th has met rows 0 to i // 8, and columns 0 to i, 7 at most.
    met = sum(i // 8 + 1 + min(i + 1, 8) for i in range(64))
    expected = HEADS * settings.head_dim * (2 * 64 * 65 // 2 + met)
    assert multiply_adds(scheme(positions), query, training=False) == expected


@pytest.mark.parametrize(
    ("dtype", "precisions"),
    [
        ("float32", ["float32"]),
        ("float64", ["float64"]),
        ("bfloat16", ["bfloat16", "float32"]),
        ("float16", ["float32"]),
    ],
)
def test_products_are_made_in_what_may_compute_a_precision(dtype: str, precisions: list[str]) -> None:
    makes, work = products(dtype, "cpu", (4, 8))
    assert list(makes) == list(work) == [f"{p}, {n} × {n}" for p in precisions for n in (4, 8)]
    assert set(work.values()) == {64, 512}
    for name, make in makes.items():
        (out,) = make()()
        assert str(out.dtype) == f"torch.{name.split(',')[0]}"
        assert out.shape in ((4, 4), (8, 8))


def test_what_a_group_counts_is_of_plain_attention_and_of_the_kernel() -> None:
    settings = Settings(**TINY)
    built = cases.of_ways(settings, {"shaw": cases.Way("shaw", "native"), "rope": cases.Way("rope", "sdpa")}, 64, False)
    assert built.facts["takes"] == {"shaw": "native", "rope": "sdpa"}
    query = Inputs.draw(settings, 64, 64, False).query
    plain = multiply_adds(None, query, training=False)
    assert built.facts["multiply_adds"].keys() == {"plain", "shaw"}
    assert built.facts["multiply_adds"]["plain"] == plain < built.facts["multiply_adds"]["shaw"]
