"""The kernels for CUDA against the reference: output, log-sum-exp and every gradient.

Where there is no GPU, Triton interprets them line by line on the CPU. Whether it interprets or compiles is settled when
it is imported, for good, so one test runs the others of this file in a process of their own.
"""

import itertools
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
from posenc import T5, ALiBi, Positions, Shaw
from posenc.backends.triton import backend as of_triton
from posenc.backends.triton import operator, tasks
from posenc.schemes.catalog import Shape
from tests.backends.parity_cases import KINDS, PLACES, WAYS, Case, case, coarse, refuses, same, with_gradients
from tests.rows import with_more

FILE = Path(__file__)
ROOT = FILE.parents[4]
INTERPRETED = operator.is_interpreted()
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


WITH_MORE = ("test_triton", "test_triton_decode", "test_triton_skipping")


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.skipif(INTERPRETED, reason="this is the process that interprets them")
@pytest.mark.parametrize(
    ("file", "only"),
    with_more(
        [(x, "not more") for x in (*WITH_MORE, "test_rotation_kernel", "test_hub")], [(x, "more") for x in WITH_MORE]
    ),
)
def test_where_there_is_no_gpu_they_are_interpreted(file: str, only: str) -> None:
    assert interpreted(str(FILE.with_stem(file)), only=f"not gpu and {only}") > 0  # and were not skipped


# --- as exact as the reference ----------------------------------------------------------------------------------------


SMALL = (operator.Blocks(16, 16, 16, 4, 1),)


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
    return Case(KINDS[name], scheme, q, k, v, *same(positions), {"is_causal": "bidirectional" not in name})


def both(
    it: Case, backend: str, dtype: torch.dtype, device: torch.device | str = "cpu", has_gradients: bool = True
) -> dict[str, Tensor]:
    """Output, log-sum-exp and gradients in some precision, back on the CPU."""
    moved = it.to(dtype) if str(device) == "cpu" else it.to(dtype).to(torch.device(device))
    with torch.set_grad_enabled(has_gradients):
        outs = moved.attend(backend, return_lse=True)
    names = ("output", "log-sum-exp")
    found = with_gradients(moved, outs) if has_gradients else dict(zip(names, outs, strict=True))
    return {name: x.double().cpu() for name, x in found.items()}


def error(found: Tensor, truth: Tensor) -> float:
    """The largest; infinite where rows that see nothing are not the same."""
    nothing = truth == -torch.inf
    if not torch.equal(nothing, found == -torch.inf):
        return math.inf
    return float((found - truth).masked_fill(nothing, 0.0).abs().nan_to_num(math.inf).max())


def check_as_exact_as_the_reference(it: Case, on: torch.device, has_gradients: bool = True) -> None:
    """In single precision the error, from double, is a few times the reference's: four, since it is the largest of
    thousands that is compared. And as the backward pass makes weights anew, exp(s - lse), each of them is off by what
    rounding a score and a log-sum-exp of that size is off by."""
    truth = both(it, "reference", torch.float64, has_gradients=has_gradients)
    plain = both(it, "reference", torch.float32, has_gradients=has_gradients)
    found = both(it, "triton", torch.float32, on, has_gradients)
    assert found.keys() == truth.keys()
    assert len(found) > (4 if has_gradients else 1)
    lse = truth["log-sum-exp"]
    highest = float(lse.masked_fill(lse == -torch.inf, 0.0).abs().max())
    for name, expected in truth.items():
        finite = expected.masked_fill(expected == -torch.inf, 0.0)
        allowed = 4 * error(plain[name], expected) + 4 * U * (1 + highest) * float(finite.abs().max())
        assert error(found[name], expected) <= allowed, name


TILED = [name for name, place in PLACES.items() if place.is_tiled and place.is_even]
ASKED = [name for name, way in WAYS.items() if not way.has_mask]
# One of each kind of term and of tail; (scheme, heads, heads of the keys).
TURNS = [
    ("alibi bidirectional", 2, 1),
    ("shaw", 3, 1),
    ("clocked", 2, 2),
    ("t5 bidirectional", 2, 1),
    ("transformer_xl", 2, 1),
    ("bent line", 2, 1),
    ("shaw+alibi", 2, 1),
    ("distance_aware", 2, 1),
    ("featured", 2, 2),
    ("alibi directed", 2, 2),
    ("shaw values", 2, 1),
]


def sweep() -> list[Any]:
    """Each place in each way, with the schemes by turns, so that each of them meets many of either. A seventh runs in
    `make check-triton`, with each place and each way among them."""
    found = []
    for (p, place), (w, way) in itertools.product(enumerate(TILED), enumerate(ASKED)):
        turn = (len(ASKED) * p + w) % len(TURNS)
        name, heads, kv_heads = next(
            x for x in (*TURNS[turn:], *TURNS[:turn]) if not refuses("triton", x[0], place, way)
        )
        marks = () if (p + w) % len(ASKED) == 0 else pytest.mark.more
        found.append(pytest.param(name, place, way, heads, kv_heads, marks=marks, id=f"{name}-{place}-{way}"))
    return found


ENDING = [  # in blocks of keys that are of two tiles
    ("shaw+alibi", "a prefix", "a window", 2, 1),
    ("alibi bidirectional", "a prefix", "a window", 2, 1),
]
SWEEP = [*sweep(), *(pytest.param(*x) for x in ENDING)]


TOKENS = 37


@pytest.mark.parametrize(("name", "place", "way", "heads", "kv_heads"), SWEEP)
def test_every_place_in_every_way(
    name: str, place: str, way: str, heads: int, kv_heads: int, on: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text of 37 is two blocks of 16 and a rest, so that pairs are far, near and masked."""
    monkeypatch.setattr(operator, "sizes_of", lambda *_: SMALL)
    check_as_exact_as_the_reference(case(name, place, TOKENS, way, heads=heads, kv_heads=kv_heads), on)


@pytest.mark.parametrize(("block", "kv_heads"), [(16, 2), (32, 2), (64, 1)])
def test_blocks_of_every_size(block: int, kv_heads: int, on: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """And heads of which two or four share keys."""
    monkeypatch.setattr(operator, "sizes_of", lambda *_: (operator.Blocks(block, block, block, 4, 1),))
    check_as_exact_as_the_reference(case("shaw per head", "packed", TOKENS, "both", heads=4, kv_heads=kv_heads), on)


def test_layers_share_learned_tables(on: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which are made once, with the gradients of layers that each make their own."""
    monkeypatch.setattr(operator, "sizes_of", lambda *_: SMALL)
    scheme, made = T5(1).to(on), []
    positions = Positions.arange(20, device=on)
    drawings = [torch.randn(3, 1, 1, 20, 16, device=on).requires_grad_() for _ in range(2)]
    monkeypatch.setattr(of_triton, "_Lines", lambda call, of=of_triton._Lines: made.append(call) or of(call))

    def gradients(encodings: list[posenc.Encoding]) -> tuple[Tensor, ...]:
        outs = [
            posenc.attention(*x, encoding, is_causal=True, backend="triton")
            for x, encoding in zip(drawings, encodings, strict=True)
        ]
        return torch.autograd.grad(outs, [*scheme.parameters(), *drawings], [x[0].detach() for x in drawings])

    one, *others = (scheme(positions) for _ in range(3))
    together = gradients([one] * 2)
    assert len(made) == 1
    torch.testing.assert_close(together, gradients(others))


WIDTHS = [  # scheme, tokens, heads, heads of the keys, head_dim, value_dim: blocks are of 64 tokens, or of 32
    ("shaw keys", 130, 1, 1, 20, 33),
    ("relative_1d", 65, 1, 1, 64, 64),
    ("relative_1d", 130, 1, 1, 16, 7),
    ("shaw", 65, 2, 1, 20, 20),
    ("shaw", 65, 1, 1, 72, 72),
    ("nope", 130, 2, 1, 80, 80),
    ("alibi bidirectional", 130, 2, 1, 96, 64),
    ("alibi", 65, 4, 2, 96, 96),
    ("t5", 130, 2, 1, 81, 96),
    ("distance_aware", 65, 2, 1, 88, 96),
    ("alibi", 9, 4, 2, 96, 88),
    ("alibi", 65, 2, 2, 192, 136),
    ("t5 bidirectional", 65, 2, 1, 72, 33),
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
    it = case(name, "cache", TOKENS, "causal", heads=2, kv_heads=1)
    with torch.no_grad():
        for x in (*it.scheme.parameters(), it.query, it.key, it.value, *it.features.values()):
            x.copy_(coarse(x))
    truth = both(it, "reference", torch.float64)
    plain, found = both(it, "reference", dtype), both(it, "triton", dtype, on)
    u = torch.finfo(dtype).eps / 2
    for what, expected in truth.items():
        largest = float(expected.masked_fill(expected == -torch.inf, 0.0).abs().max())
        assert error(found[what], expected) <= 2 * error(plain[what], expected) + 8 * u * largest, what


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
        patch.setattr(of_triton, "triton", lambda *args, prepared: given.append(args) or real(*args))
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
        tasks._lists.clear()
        for x in (q, k, v):
            x.normal_()
        graph.replay()
        torch.testing.assert_close(out, run(), rtol=0, atol=0)


def test_on_a_gpu_auto_takes_it(on: torch.device) -> None:
    """And in the interpreter, which is for tests, it does not."""
    q = torch.randn(1, 2, 300, 16, device=on)
    taken = posenc.explain(q, q, q, Shaw(16, 5).to(on), is_causal=True).backend
    assert (taken == "triton") == (on.type == "cuda")


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [Shaw(16, 5), ALiBi(1), T5(1)], ids=["windows", "a line", "a table"])
def test_indices_beyond_32_bits(scheme: posenc.Scheme, on: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, and texts of a batch, 2^31 elements apart and more, of which only what is read takes memory."""
    monkeypatch.setattr(operator, "sizes_of", lambda *_: SMALL)
    whole = torch.empty(2**31 + 2**29, dtype=torch.float16, device=on)
    far = whole.as_strided((2, 1, 37, 16), (2**31 + 16, 16, 2**20, 1))
    far.copy_(torch.randn(2, 1, 37, 16))
    apart = whole.as_strided((1, 1, 37, 16), (16, 16, 2**26, 1))
    apart.copy_(torch.randn(37, 16))
    beside = whole.as_strided((2, 1, 37, 16), (16, 16, 2**20, 1))  # the tokens outermost
    beside.copy_(torch.randn(2, 1, 37, 16))
    for x in (far, apart, beside):
        near = x.contiguous()
        found, plain = (_with_gradient(x.detach().requires_grad_(), scheme.to(on)) for x in (x, near))
        for one, other in zip(found, plain, strict=True):
            assert torch.equal(one, other)
        assert found[0].abs().sum() > 1


def _with_gradient(x: Tensor, scheme: posenc.Scheme) -> tuple[Tensor, Tensor]:
    out = posenc.attention(x, x, x, scheme, is_causal=True, backend="triton")
    assert isinstance(out, Tensor)
    (gradient,) = torch.autograd.grad(out.float().sin().sum(), x)
    return out.detach().contiguous(), gradient.contiguous()


@pytest.mark.parametrize("scheme", [Shaw(16, 5), ALiBi(2)], ids=["windows", "a line"])
def test_nan_in_a_query_reaches_no_key_that_it_does_not_see(scheme: posenc.Scheme, on: torch.device) -> None:
    q, k, v = (torch.randn(1, 2, 70, 16, device=on, requires_grad=True) for _ in range(3))
    with torch.no_grad():
        q[0, :, 35, 3] = torch.nan
    out = posenc.attention(q, k, v, scheme.to(on), is_causal=True, backend="triton")
    assert isinstance(out, Tensor)
    of_q, of_k, of_v = torch.autograd.grad(out.sum(), (q, k, v))
    assert of_q[0, :, 35].isnan().all()
    assert of_q[0, :, [*range(35), *range(36, 70)]].isfinite().all()
    assert of_k[0, :, :36].isnan().any()
    assert of_v[0, :, :36].isnan().any()
    others = [channel for channel in range(16) if channel != 3]  # of that one, 0 times NaN is NaN in any product
    assert of_k[0, :, 36:, others].isfinite().all()
    assert of_v[0, :, 36:].isfinite().all()
