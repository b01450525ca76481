"""What can be told of the kernels for CUDA where there is none: what is refused, who takes them, which tasks they get,
and that they compile."""

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc import KERPLE, T5, ALiBi, DistanceAware, Positions, Relative1D, RoPE, Scheme, Shaw, TransformerXL
from posenc.backends import choose
from posenc.backends.call import Call
from posenc.backends.flex import FLEX_FLASH
from posenc.backends.request import Options, Request
from posenc.backends.triton import backend, operator
from posenc.backends.triton.tasks import ANY, tasks_of
from posenc.positions.tiles import Tiling, Visibility
from tests.backends import ceilings
from tests.backends.parity_cases import ATTENDING, BANDED, BY_LAYERS, KINDS, PLACES, built, shape_of, takes
from tests.backends.test_triton import INTERPRETED
from tests.user_schemes import disentangled, interpolated, softcap

pytestmark = pytest.mark.skipif(INTERPRETED, reason="the kernels are interpreted in this process")


# --- what is refused, and who takes it --------------------------------------------------------------------------------


class Elsewhere(Tensor):
    """Says that it is on a GPU, as far as choosing goes."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")


def on_cuda(scheme: Scheme, width: int = 16, dtype: torch.dtype = torch.float32, dropout_p: float = 0.0) -> Call:
    """A causal call over 300 tokens, as it would be there."""
    q = torch.empty(1, 2, 300, width, dtype=dtype)
    *_, call = Request(q, q, q, scheme, options=Options(is_causal=True, dropout_p=dropout_p)).checked()
    return replace(call, query=q.as_subclass(Elsewhere))


@pytest.fixture
def has_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it is installed."""
    monkeypatch.setattr(backend, "missing", lambda: None)


REFUSED = {
    "it supports only float32, bfloat16 and float16": (lambda: Shaw(16, 5), 16, torch.float64, {}),
    "it supports at most 256 channels, got 257": (lambda: Shaw(257, 5), 257, torch.float32, {}),
    "a key is multiplied with a vector": (lambda: disentangled(16, 2), 16, torch.float32, {}),
    "a score term is a function of the score that the kernel does not support": (softcap, 16, torch.float32, {}),
    "a score term is a function of both coordinates": (lambda: interpolated(2), 16, torch.float32, {}),
    "it does not support attn_mask and dropout": (lambda: Shaw(16, 5), 16, torch.float32, {"dropout_p": 0.1}),
}


@pytest.mark.parametrize("said", REFUSED)
def test_it_says_what_it_does_not_take(said: str, has_triton: None) -> None:
    make, width, dtype, how = REFUSED[said]
    assert backend.TRITON.refuses(on_cuda(make(), width, dtype, **how)) == said


@pytest.mark.parametrize(
    "name", [name for name in ATTENDING if KINDS[name].axes == 1 and name not in BANDED | BY_LAYERS | {"learned"}]
)
def test_it_takes_the_kinds_that_it_is_to_take(name: str, has_triton: None) -> None:
    scheme = built(name, heads=2, tokens=300, dtype=torch.float32)
    q = torch.empty(1, 2, 300, shape_of(name).head_dim)
    positions = KINDS[name].at(Positions.arange(300))
    *_, call = Request(q, q, q, scheme, positions, options=Options(is_causal=True)).checked()
    refused = backend.TRITON.refuses(replace(call, query=q.as_subclass(Elsewhere)))
    assert (refused is None) == takes("triton", name), refused
    with torch.no_grad():
        assert (FLEX_FLASH._refuses_term(call) is None) == takes("flex_flash", name)


def test_without_triton_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def importing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(operator.importlib, "import_module", importing)
    assert operator.missing() == "Triton is not installed"
    monkeypatch.setattr(operator.importlib, "import_module", lambda name: SimpleNamespace(__version__="3.4.0"))
    assert operator.missing() == "it needs Triton 3.5 or later, got 3.4.0"


AUTO: list[tuple[Scheme | None, str, str]] = [
    (Shaw(16, 5), "triton", "vectors depend on distance, and the kernel computes their products on the fly"),
    (Shaw(16, 5, keys=False), "triton", "vectors depend on distance"),
    (Relative1D(300, 16), "triton", "vectors depend on distance"),
    (TransformerXL(2, 16), "triton", "vectors depend on distance"),
    (RoPE(16) + Shaw(16, 5), "triton", "vectors depend on distance"),
    (ALiBi(2), "triton", "constant or linear at large distances"),
    (T5(2), "triton", "constant or linear at large distances"),
    (KERPLE(2), "triton", "a table by distance is learned"),
    (DistanceAware(2), "triton", "a table by distance is learned"),
    (KERPLE(2).requires_grad_(False), "flex", "a fused kernel"),
    (ALiBi(2, "directed"), "flex", "a fused kernel"),  # which hides keys
    (softcap(), "flex", "a fused kernel"),
    (RoPE(16), "sdpa", "the fused kernel suffices"),
]


@pytest.mark.parametrize(("scheme", "expected", "why"), AUTO)
def test_on_cuda_auto_takes_it_for_what_goes_by_distance(
    scheme: Scheme, expected: str, why: str, has_triton: None
) -> None:
    taken, told = choose.choose(on_cuda(scheme))
    assert taken.name == expected
    assert why in told


# --- which tasks there are --------------------------------------------------------------------------------------------

SEEN = (Visibility(True), Visibility(False), Visibility(True, 9), Visibility(False, 5, 3))
TILED = [name for name, place in PLACES.items() if place.is_tiled and name != "grid"]


@pytest.mark.parametrize("place", TILED)
def test_each_pair_that_is_seen_is_of_one_task_of_either_side(place: str) -> None:
    """And each token is of one task at most: two would write to the same place."""
    layouts = [p.with_layout().layout for p in PLACES[place].positions(45)]
    rows, block = 2, 16
    for seen in SEEN:
        tiling = Tiling(*layouts, seen)
        made = tasks_of(tuple(tiling.flat()), (-3, 0, 7, 2**60), rows, block, torch.device("cpu"))
        expected = {
            (b, i, j)
            for tile in tiling.tiles(rows)
            for b in range(tile.row.start, tile.row.stop)
            for i, j in itertools.product(range(tile.start, tile.stop), range(tile.first, tile.last))
            if (tile.low is None or j - i >= tile.low) and (tile.high is None or j - i <= tile.high)
        }
        for side in (0, 1):
            found: list[tuple[int, int, int]] = []
            tokens: list[tuple[int, int]] = []
            for row, start, stop, first_tile, last_tile in made.tasks[side].tolist():
                assert 0 < stop - start <= block
                for b in range(row, row + made.rows):
                    tokens += [(b, token) for token in range(start, stop)]
                    for tile in made.tiles[side][first_tile:last_tile].tolist():
                        of_queries, of_keys = range(*tile[:2]), range(*tile[2:4])
                        mine = range(start, stop)
                        for i in set(of_queries) & set(mine) if side == 0 else of_queries:
                            for j in set(of_keys) & set(mine) if side == 1 else of_keys:
                                if tile[4] <= j - i <= tile[5]:
                                    found.append((b, i, j))
                        assert tile[9] == -ANY  # of a table that begins out of reach
            assert len(set(tokens)) == len(tokens)
            assert sorted(found) == sorted(expected)


# --- they compile -----------------------------------------------------------------------------------------------------


# --- and to what ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ceilings.IN_MAKE_TRITON else pytest.mark.more)
        for name in ceilings.VARIANTS
    ],
)
def test_no_kernel_exceeds_its_ceiling(name: str) -> None:
    """Those that research/benchmarks/results/kernels.json holds, of Triton's version there; by another one, spills and
    shared memory alone."""
    import triton  # not before: it is not everywhere

    version, variants = ceilings.stored()
    found = ceilings.measured(ceilings.VARIANTS[name])
    assert found.keys() == variants[name].keys()
    above = {kernel: x.exceeds(variants[name][kernel], version == triton.__version__) for kernel, x in found.items()}
    assert not any(above.values()), f"python -m tests.backends.ceilings {name!r} says more: {above}"
