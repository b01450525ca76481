"""The kernels for CUDA against the reference: output, log-sum-exp and every gradient.

Where there is no GPU, Triton interprets them line by line on the CPU. Whether it interprets or compiles is settled when
it is imported, for good, so one test runs the others of this file in a process of their own.
"""

import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import Positions, Shaw
from posenc.backends.triton import backend as of_triton
from posenc.backends.triton import launch, lists, tasks
from posenc.schemes.catalog import Shape
from tests.backends.grounds import KINDS, Case, case, coarse, refuses, same, with_gradients

FILE = Path(__file__)
ROOT = FILE.parents[4]
INTERPRETED = launch.is_interpreted()
U = 2.0**-24  # what rounding to single precision is off by, relatively


ON = [
    pytest.param("cpu", marks=pytest.mark.triton)
    if INTERPRETED
    else pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.triton])
]


@pytest.fixture(params=ON)
def on(request: pytest.FixtureRequest) -> torch.device:
    """Where the kernels run: a GPU, or in the process that interprets them the CPU."""
    return torch.device(request.param)


def interpreted(*given: str, only: str = "not gpu") -> int:
    """How many tests pass in a process that interprets the kernels; they must not fail. ``given`` are files, and more
    options of pytest."""
    kept = {name: x for name, x in os.environ.items() if not name.startswith("PYTEST_")}
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", only, *given],
        cwd=ROOT,
        env=kept | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout[-8000:]
    passed = re.search(r"(\d+) passed", told.stdout)
    assert passed is not None
    return int(passed[1])


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.skipif(INTERPRETED, reason="this is the process that interprets them")
@pytest.mark.parametrize("only", ["not more", pytest.param("more", marks=pytest.mark.more)])
def test_where_there_is_no_gpu_they_are_interpreted(only: str) -> None:
    least = 1 if only == "more" else len(CASES) + len(WIDTHS)
    assert interpreted(str(FILE), only=f"not gpu and {only}") >= least  # and were not skipped


# --- as exact as the reference ----------------------------------------------------------------------------------------


def wide(name: str, tokens: int, heads: int, kv_heads: int, head_dim: int, value_dim: int) -> Case:
    """A text of so many tokens, of another width; values may have one of their own."""
    torch.default_generator.manual_seed(tokens)
    shape = Shape(heads * head_dim, heads, head_dim, max_positions=tokens, num_kv_heads=kv_heads)
    scheme = KINDS[name].build(shape).double()
    for parameter in scheme.parameters():
        torch.nn.init.normal_(parameter)
    positions = Positions.arange(tokens)
    shapes = ((heads, head_dim), (kv_heads, head_dim), (kv_heads, value_dim))
    q, k, v = (torch.randn(2, h, tokens, d, dtype=torch.float64).requires_grad_() for h, d in shapes)
    return Case(KINDS[name], scheme, q, k, v, *same(positions), {"is_causal": True})


def both(it: Case, backend: str, dtype: torch.dtype, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Output, log-sum-exp and gradients in some precision, back on the CPU."""
    moved = it.to(dtype) if str(device) == "cpu" else it.to(dtype).to(torch.device(device))
    found = with_gradients(moved, moved.attend(backend, return_lse=True))
    return {name: x.double().cpu() for name, x in found.items()}


def error(found: Tensor, truth: Tensor) -> float:
    """The largest; infinite where rows that see nothing are not the same."""
    nothing = truth == -torch.inf
    if not torch.equal(nothing, found == -torch.inf):
        return math.inf
    return float((found - truth).masked_fill(nothing, 0.0).abs().nan_to_num(math.inf).max())


def check_as_exact_as_the_reference(it: Case, on: torch.device, backend: str = "triton") -> None:
    """In single precision the error, from double, is a few times the reference's: four, since it is the largest of
    thousands that is compared. And as the backward pass makes weights anew, exp(s - lse), each of them is off by what
    rounding a score and a log-sum-exp of that size is off by."""
    truth = both(it, "reference", torch.float64)
    plain, found = both(it, "reference", torch.float32), both(it, backend, torch.float32, on)
    assert found.keys() == truth.keys()
    assert len(found) > 4
    lse = truth["log-sum-exp"]
    highest = float(lse.masked_fill(lse == -torch.inf, 0.0).abs().max())
    for name, expected in truth.items():
        finite = expected.masked_fill(expected == -torch.inf, 0.0)
        allowed = 4 * error(plain[name], expected) + 4 * U * (1 + highest) * float(finite.abs().max())
        assert error(found[name], expected) <= allowed, name


CASES = [  # scheme, place, way, heads, heads of the keys, tokens of a block
    ("shaw", "text", "causal", 1, 1, 16),
    ("shaw", "other keys", "both", 3, 3, 64),
    ("shaw per head", "a prefix", "causal, sinks", 2, 1, 64),
    ("shaw keys", "padded inside and wholly", "a window", 2, 1, 64),
    ("shaw values", "a gap", "both", 3, 1, 64),
    ("shaw+alibi", "offset", "to the left", 3, 1, 64),
    ("relative_1d", "packed", "a window", 2, 1, 64),
    ("relative_1d per head", "cache", "causal, a window", 12, 3, 64),
    ("relative_1d", "text", "a window", 1, 1, 16),
    ("transformer_xl", "padded left and right", "both", 2, 2, 32),
    ("of each key+shaw", "position ids", "causal", 2, 1, 64),
    ("featured", "packed, other keys", "a window, sinks", 2, 1, 64),
    ("featured", "cache", "both", 2, 1, 16),
    ("clocked", "text", "causal", 2, 1, 16),
    ("t5 bidirectional", "cache", "both", 3, 3, 32),
    ("distance_aware", "a gap", "causal", 3, 1, 64),
    ("alibi+distance_aware", "other keys", "both", 2, 1, 16),
    ("distance_aware+alibi", "other keys", "a window", 3, 1, 32),
    ("nope", "coordinates backwards", "causal", 3, 1, 64),
    ("learned slope", "cache", "causal", 3, 1, 64),
]
TOKENS = 37


@pytest.mark.parametrize(("name", "place", "way", "heads", "kv_heads", "block"), CASES)
def test_what_goes_by_distance_is_what_the_reference_says(
    name: str,
    place: str,
    way: str,
    heads: int,
    kv_heads: int,
    block: int,
    on: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A text of 37 is three blocks of 16, or less than one of 64."""
    assert not refuses("triton", name, place, way)
    monkeypatch.setattr(launch, "sizes_of", lambda *_: (launch.Sizes(block, block, block, 4, 1),))
    check_as_exact_as_the_reference(case(name, place, TOKENS, way, heads=heads, kv_heads=kv_heads), on)


WIDTHS = [  # scheme, tokens, heads, heads of the keys, head_dim, value_dim: blocks are of 64 tokens, or of 32
    ("shaw keys", 130, 1, 1, 20, 33),
    ("relative_1d", 65, 1, 1, 64, 64),
    ("relative_1d", 130, 1, 1, 16, 7),
    ("shaw", 65, 2, 1, 20, 20),
    ("shaw", 65, 1, 1, 72, 72),
]


@pytest.mark.parametrize(("name", "tokens", "heads", "kv_heads", "head_dim", "value_dim"), WIDTHS)
def test_other_widths_and_lengths(
    name: str, tokens: int, heads: int, kv_heads: int, head_dim: int, value_dim: int, on: torch.device
) -> None:
    check_as_exact_as_the_reference(wide(name, tokens, heads, kv_heads, head_dim, value_dim), on)


HALVES = [
    ("shaw", torch.bfloat16),
    ("featured", torch.bfloat16),
    ("transformer_xl", torch.float16),
    ("clocked", torch.float16),
]


@pytest.mark.parametrize(("name", "dtype"), HALVES)
def test_half_precision(name: str, dtype: torch.dtype, on: torch.device) -> None:
    """Tensors and tables are numbers that it holds. Beside the reference's roundings, of inputs' gradients and the
    output, a weight and the gradient of a score are rounded before they are multiplied, and a vector that was summed
    of others. Each puts the largest number off by U of itself, or by less where errors of either sign are summed; a
    rounded vector changes a score, and so a weight in both passes. 8 is for all of these."""
    check_half_precision(case(name, "cache", TOKENS, "causal", heads=2, kv_heads=1), dtype, on)


def check_half_precision(it: Case, dtype: torch.dtype, on: torch.device, backend: str = "triton") -> None:
    """Output, log-sum-exp and every gradient of numbers that it holds."""
    with torch.no_grad():
        for x in (*it.scheme.parameters(), it.query, it.key, it.value, *it.features.values()):
            x.copy_(coarse(x))
    truth = both(it, "reference", torch.float64)
    plain, found = both(it, "reference", dtype), both(it, backend, dtype, on)
    u = torch.finfo(dtype).eps / 2
    for what, expected in truth.items():
        largest = float(expected.masked_fill(expected == -torch.inf, 0.0).abs().max())
        assert error(found[what], expected) <= 2 * error(plain[what], expected) + 8 * u * largest, what


# --- some gradients and not others, and odd numbers -------------------------------------------------------------------


def test_the_log_sum_exp_alone_has_its_gradients(on: torch.device) -> None:
    it = case("shaw", "padded inside and wholly", TOKENS, "both", heads=2).to(torch.float32).to(on)
    there = it.query_positions.document[:, None] != -1
    found, truth = (
        torch.autograd.grad(
            it.attend(way, return_lse=True)[1].masked_fill(~there, 0.0).square().sum(),
            list(it.leaves.values()),
            materialize_grads=True,
        )
        for way in ("triton", "reference")
    )
    assert sum(float(g.abs().sum()) for g in truth) > 1
    for one, other in zip(found, truth, strict=True):
        # Scores up to 8 over 16 channels and some 40 keys: 8 * 2^-24 (8 + sqrt(56)) is 7e-6.
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * max(1.0, float(other.abs().max())))


# --- a graph has one node of it ---------------------------------------------------------------------------------------


def attended(scheme: posenc.Scheme) -> Callable[..., Tensor]:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = posenc.attention(q, k, v, scheme, is_causal=True, backend="triton")
        assert isinstance(out, Tensor)
        return out

    return run


def test_what_the_operator_promises_the_compiler_is_so(on: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own examination: schema, gradients, and shapes and strides as foretold for a compiled graph."""
    given: list[tuple[Any, ...]] = []
    real = torch.ops.posenc.triton
    leaves = [torch.randn(1, 20, 2, 16, device=on).transpose(1, 2).requires_grad_() for _ in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(of_triton, "triton", lambda *args: given.append(args) or real(*args))
        attended(Shaw(16, 3).to(on))(*leaves)
    tables = [x.detach().requires_grad_() for x in given[0][3]]
    results = torch.library.opcheck(real.default, (*given[0][:3], tables, *given[0][4:]))
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.gpu
def test_a_cuda_graph_captures_it() -> None:
    """With padding, whose tasks are copied to the device; it is replayed on other numbers after all else is gone."""
    mask = torch.ones(2, 200, dtype=torch.bool)
    mask[0, 150:] = False
    positions = Positions.padded(mask).with_layout().to("cuda")
    scheme = Shaw(16, 5).cuda()
    q, k, v = (torch.randn(2, 2, 200, 16, device="cuda") for _ in range(3))

    def run() -> Tensor:
        out = posenc.attention(q, k, v, scheme, query_positions=positions, is_causal=True, backend="triton")
        assert isinstance(out, Tensor)
        return out

    with torch.no_grad():
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            run()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = run()
        tasks._tasks.cache_clear()
        lists._KEPT.clear()
        for x in (q, k, v):
            x.normal_()
        graph.replay()
        torch.testing.assert_close(out, run(), rtol=0, atol=0)


def test_on_a_gpu_auto_takes_it(on: torch.device) -> None:
    """And in the interpreter, which is for tests, it does not."""
    q = torch.randn(1, 2, 300, 16, device=on)
    taken = posenc.explain(q, q, q, Shaw(16, 5).to(on), is_causal=True).backend
    assert (taken == "triton") == (on.type == "cuda")
