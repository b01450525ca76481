"""What the CPU kernel computes, and the threads that it runs on. test_library.py has how it is built and taken.

That it computes what the reference does, test_parity.py shows, in double precision; here it is asked what only it can
get wrong: numbers at the ends of what single precision holds, threads, and sizes at the edges of its blocks.
"""

import ctypes
from itertools import product

import pytest
import torch

import posenc
from posenc import FIRE, ALiBi, Positions, Shaw, Softcap, compat
from posenc.backends.blockwise import KernelLayout
from posenc.backends.native import backend, library, operator
from posenc.positions.tiles import Tiling, Visibility
from posenc.schemes.relative_1d import Relative1D
from tests.rounding import of_sums
from tests.rows import every_second


def test_a_library_that_says_something_else_of_a_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that has moved, one that only one side has, and another constant."""
    kernel = library.library(torch.float32)
    assert operator.differences(kernel) == []
    first, *others = operator.Rotation._fields_
    moved = type("Moved", (ctypes.Structure,), {"_fields_": [*others, first]})
    monkeypatch.setitem(operator.STRUCTURES, "Rotation", moved)
    monkeypatch.setitem(operator.STRUCTURES, "Extra", operator.Rows)
    monkeypatch.setattr(operator, "SPAN", 32)
    found = operator.differences(kernel)
    assert {"SPAN", "Rotation.query_cos", "Rotation.interleaved", "Extra.x"} <= set(found)
    assert not any(name.startswith(("Call.", "Table.")) for name in found)
    with pytest.raises(RuntimeError, match=r"call.h and operator.py differ in Extra.batch, Extra.head"):
        operator._check_fields.__wrapped__(kernel)


# --- numbers ----------------------------------------------------------------------------------------------------------


def single_and_reference(
    scheme: posenc.Scheme, *tensors: torch.Tensor, **how: object
) -> list[tuple[torch.Tensor, ...]]:
    found = []
    for dtype, way in ((torch.float32, "native"), (torch.float64, "reference")):
        leaves = [x.to(dtype).requires_grad_() for x in tensors]
        out = posenc.attention(*leaves, scheme.to(dtype), **how, backend=way)
        found.append((out.detach(), *torch.autograd.grad(out.sin().sum(), leaves)))
    return found


# There is an odd number of widths, so every second case has every width and every number of tokens.
@pytest.mark.parametrize(("tokens", "width"), every_second(product([1, 31, 33, 257, 600], [1, 7, 16, 40, 100])))
def test_sizes_at_the_edges_of_blocks(tokens: int, width: int) -> None:
    """In single precision: 600 keys are more than a block of 512, and 257 queries than a task of 256."""
    q, k, v = (torch.randn(2, 4, tokens, width) for _ in range(3))
    scheme = Relative1D(tokens, width)
    found, truth = single_and_reference(scheme, q, k[:, :2], v[:, :2], is_causal=True)
    for one, other in zip(found, truth, strict=True):
        bound = of_sums(torch.float32, tokens + width, other, score=16)
        torch.testing.assert_close(one.double(), other, rtol=0, atol=bound)


@pytest.mark.parametrize("scheme", [ALiBi(2), FIRE(2), Softcap(5.0)])
def test_nan_in_a_row_stays_in_it(scheme: posenc.Scheme) -> None:
    q, k, v = (torch.randn(1, 2, 300, 16) for _ in range(3))
    q[0, 1, 170, 3] = torch.nan
    out = posenc.attention(q, k, v, scheme, is_causal=True, backend="native")
    assert out[0, 1, 170].isnan().all()
    out[0, 1, 170] = 0.0
    assert out.isfinite().all()


@pytest.mark.parametrize(
    ("window", "scheme", "dtype"),
    [
        (None, posenc.RoPE(32), torch.bfloat16),
        (300, ALiBi(2), torch.float32),
        (None, Shaw(32, 5), torch.float32),
        (300, Shaw(32, 5), torch.bfloat16),
    ],
)
def test_no_digit_of_the_output_depends_on_threads_or_on_the_rest_of_the_batch(
    window: int | None, scheme: posenc.Scheme | None, dtype: torch.dtype
) -> None:
    """Of several blocks of keys, and of tasks whose size depends on how many there are to share out."""
    q, k, v = (torch.randn(3, 2, 1300, 32).to(dtype) for _ in range(3))
    made = torch.get_num_threads()
    found = []
    try:
        for threads, rows in ((1, 3), (2, 1), (3, 1), (3, 3), (16, 1)):
            torch.set_num_threads(threads)
            x = (q[:rows], k[:rows], v[:rows])
            out = posenc.attention(*x, scheme, is_causal=True, window=window, backend="native")
            found.append(out[:1])
    finally:
        torch.set_num_threads(made)
    for one in found[1:]:
        torch.testing.assert_close(one, found[0], rtol=0, atol=0)


def test_the_kernel_is_given_one_precision_alone() -> None:
    q = torch.randn(1, 2, 40, 16)
    text = Positions.arange(40).layout
    none = ([], "", "", Tiling(text, text, Visibility()).flat(), KernelLayout([0, 0], [0] * 7).flat(), 1.0, 0.0)
    with pytest.raises(RuntimeError, match=r"the kernel takes value in torch.float32, got torch.float64"):
        torch.ops.posenc.native(q, q, q.double(), *none)
    with pytest.raises(RuntimeError, match=r"the kernel takes as many values as keys, got "):
        torch.ops.posenc.native(q, q, q[:, :1], *none)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """float16, and bfloat16 where the processor does not multiply it. What comes in is exact in single precision, so
    all that is rounded is what goes out."""
    monkeypatch.setattr(backend, "multiplies_bfloat16", lambda: False)
    q, k, v = (torch.randn(1, 2, 300, 16).to(dtype).requires_grad_() for _ in range(3))
    scheme = Shaw(16, 5)
    assert posenc.explain(q, k, v, scheme, is_causal=True).backend == "native"
    leaves = (q, k, v, *scheme.parameters())
    out, lse = posenc.attention(q, k, v, scheme, is_causal=True, backend="native", return_lse=True)
    wide, sums = posenc.attention(
        *(x.float() for x in (q, k, v)), scheme, is_causal=True, backend="native", return_lse=True
    )
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(out, wide.to(dtype), rtol=0, atol=0)
    torch.testing.assert_close(lse, sums, rtol=0, atol=0)
    gradient = torch.randn_like(out)
    for one, other in zip(
        torch.autograd.grad(out, leaves, gradient), torch.autograd.grad(wide, leaves, gradient.float()), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


# --- a network that is a broken line, and a cap -----------------------------------------------------------------------


def network(w1: list[float], b1: list[float], c: float = 0.1) -> FIRE:
    """FIRE with units that bend where they are said to; its term has keys on both sides."""
    scheme = FIRE(4, len(w1), 40.0).double()
    scheme.looks_back = None
    with torch.no_grad():
        scheme.inner.weight[:, 0] = torch.tensor(w1, dtype=torch.float64)
        scheme.inner.bias[:] = torch.tensor(b1, dtype=torch.float64)
        scheme.c.fill_(c)
    return scheme


NETWORKS = {
    "bends at 0": lambda: network([1.0, -1.0, 2.0], [0.0, 0.0, 0.0]),
    "two at one place, either way": lambda: network([1.0, -2.0, 3.0, -1.0], [-0.5, 1.0, -1.5, 0.5]),
    "never bends": lambda: network([0.0, 0.0, 1.0, -1.0], [1.0, -1.0, 1.0, -1.0]),
    "bends out of sight": lambda: network([1.0, -1.0, 1e-300], [-5.0, 5.0, -1e300]),
    "no distance": lambda: network([1.0, -1.0], [-0.3, 0.3], 0.0),
    "a negative scale": lambda: network([1.0, -1.0], [-0.3, 0.3], -0.4),
}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_a_broken_line_wherever_it_bends(name: str, causal: bool) -> None:
    """With its gradients, at the bend of a unit that lies at no distance too, where many pairs stand."""
    q, k, v = (torch.randn(1, 4, 90, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    scheme = NETWORKS[name]()
    for wanted in ((q, k, v, *scheme.parameters()), *((p,) for p in scheme.parameters())):  # all, and each alone
        for parameter in scheme.parameters():
            parameter.requires_grad_(any(parameter is x for x in wanted))
        found, truth = (
            torch.autograd.grad(posenc.attention(q, k, v, scheme, is_causal=causal, backend=way).sin().sum(), wanted)
            for way in ("native", "reference")
        )
        for one, other in zip(found, truth, strict=True):
            bound = of_sums(torch.float64, 90 * 90, other, score=16)  # gradients of parameters sum over all pairs
            torch.testing.assert_close(one, other, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cap_is_right_to_the_last_digits(dtype: torch.dtype) -> None:
    """Of scores of every size: the log-sum-exp of one key is its score."""
    s = torch.cat([sign * torch.logspace(-20, 20, 2001, dtype=torch.float64) for sign in (1, -1)]).to(dtype)
    q = torch.zeros(1, 1, len(s), 16, dtype=dtype)
    q[0, 0, :, 0] = s
    key = torch.zeros(1, 1, 1, 16, dtype=dtype)
    key[..., 0] = 1.0
    at = Positions.arange(len(s)), Positions.arange(1)
    _, found = posenc.attention(
        q,
        key,
        key,
        Softcap(3.0),
        query_positions=at[0],
        key_positions=at[1],
        scale=1.0,
        backend="native",
        return_lse=True,
    )
    expected = 3 * (s.double() / 3).tanh()
    ulp = torch.finfo(dtype).eps
    torch.testing.assert_close(found[0, 0].double(), expected, rtol=4 * ulp, atol=0)


def test_two_networks_at_once_are_refused() -> None:
    q = torch.randn(1, 2, 200, 16)
    told = posenc.explain(q, q, q, FIRE(2) + FIRE(2), is_causal=True)
    assert told.refusals["native"] == "there is more than one piecewise linear function of both coordinates"


# --- threads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3, compat.MAX_THREADS_TO_SWITCH + 1])
def test_beside_the_kernel_torch_computes_by_itself_where_threads_are_few(threads: int) -> None:
    made = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with compat.single_threaded() as given:
            assert given == threads
            assert torch.get_num_threads() == (1 if threads <= compat.MAX_THREADS_TO_SWITCH else threads)
        assert torch.get_num_threads() == threads
        with pytest.raises(KeyError), compat.single_threaded():
            raise KeyError
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(made)
