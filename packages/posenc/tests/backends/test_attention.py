"""attention() and logits(): PyTorch's own without an encoding, what positions rule, and what is refused."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import posenc
from posenc import AbsoluteInAttention, ALiBi, DistanceAware, NoPE, Positions, Relative1D, RoPE, Scheme, Shaw
from tests.user_schemes import TrialCoPE

BACKENDS = ["reference", "sdpa"]
HEADS, HEAD_DIM, VALUE_DIM = 12, 6, 5
TWO_DOORS = RoPE(HEAD_DIM, base=313.0) + ALiBi(HEADS, "bidirectional")


def named(scheme: Scheme | None) -> str:
    return "none" if scheme is None else "+".join(type(part).__name__ for part in scheme.parts)


def attend(*tensors: Tensor, **how: Any) -> Tensor:
    out = posenc.attention(*tensors, **how)
    assert isinstance(out, Tensor)
    return out


def attend_lse(*tensors: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    out, lse = posenc.attention(*tensors, return_lse=True, **how)
    return out, lse


def qkv(
    queries: int = 7, keys: int = 7, kv_heads: int = 4, batch: int = 2, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Sizes that nothing can be mistaken for: 12 and 4 heads, 6 and 5 channels, two rows."""
    return (
        torch.randn(batch, HEADS, queries, HEAD_DIM, dtype=dtype),
        torch.randn(batch, kv_heads, keys, HEAD_DIM, dtype=dtype),
        torch.randn(batch, kv_heads, keys, VALUE_DIM, dtype=dtype),
    )


def seeing(*shape: int) -> Tensor:
    """A random bool mask in which every query sees the first key, so that no row is blind."""
    mask = torch.rand(*shape) > 0.4
    mask[..., 0] = True
    return mask


# --- without an encoding it is PyTorch's ----------------------------------------------------------------------------

PLAIN: dict[str, tuple[int, int, Callable[[], dict[str, Any]]]] = {
    "square": (7, 7, dict),
    "causal square": (7, 7, lambda: {"is_causal": True}),
    "a scale": (7, 7, lambda: {"scale": 0.3, "is_causal": True}),
    "bool mask": (7, 9, lambda: {"attn_mask": seeing(7, 9)}),
    "bool mask of each row": (7, 9, lambda: {"attn_mask": seeing(2, 1, 7, 9)}),
    "bool mask of each head": (7, 9, lambda: {"attn_mask": seeing(HEADS, 7, 9)}),
    "bool mask of keys": (7, 9, lambda: {"attn_mask": seeing(2, 1, 1, 9)}),
    "float mask": (7, 9, lambda: {"attn_mask": torch.randn(2, HEADS, 7, 9, dtype=torch.float64)}),
    "float mask of queries": (7, 9, lambda: {"attn_mask": torch.randn(1, HEADS, 7, 1, dtype=torch.float64)}),
    "float mask that hides": (
        7,
        9,
        lambda: {"attn_mask": torch.zeros(7, 9, dtype=torch.float64).masked_fill(~seeing(7, 9), -torch.inf)},
    ),
    "fewer queries": (3, 9, dict),
    "more queries than keys": (
        9,
        3,
        lambda: {"query_positions": Positions.arange(9), "key_positions": Positions.arange(3)},
    ),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv_heads", [HEADS, 4, 1])
@pytest.mark.parametrize("case", PLAIN)
def test_without_an_encoding_it_is_pytorchs(case: str, kv_heads: int, backend: str) -> None:
    queries, keys, make = PLAIN[case]
    leaves = [x.requires_grad_() for x in qkv(queries, keys, kv_heads)]
    how = make()
    asked = {name: value for name, value in how.items() if not name.endswith("positions")}
    expected = F.scaled_dot_product_attention(*leaves, **asked, enable_gqa=True)
    weight = torch.randn_like(expected)
    for encoding in (None, NoPE()):
        out = attend(*leaves, encoding, **how, backend=backend)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(
            torch.autograd.grad(out, leaves, weight), torch.autograd.grad(expected, leaves, weight, retain_graph=True)
        )


# --- where queries and keys stand -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_by_default_queries_are_the_last_of_the_keys(backend: str) -> None:
    q, k, v = qkv(9, 9)
    positions = Positions.arange(9)
    for causal in (True, False):
        at = {"query_positions": positions, "key_positions": positions, "is_causal": causal}
        whole = attend(q, k, v, TWO_DOORS, **at, backend="reference")
        for m in (9, 4, 1):
            last = attend(q[:, :, 9 - m :], k, v, TWO_DOORS, is_causal=causal, backend=backend)
            torch.testing.assert_close(last, whole[:, :, 9 - m :])


@pytest.mark.parametrize("backend", BACKENDS)
def test_causality_compares_order_and_nothing_else(backend: str) -> None:
    """Coordinates say the opposite of the order here, and the index says something else again."""
    q, k, v = qkv()
    order = torch.tensor([[4, 0, 6, 2, 5, 1, 3], [6, 5, 4, 3, 2, 1, 0]])
    positions = Positions(10 - order, order=order)
    mask = (order[:, None, :] <= order[:, :, None])[:, None]
    expected = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    out = attend(q, k, v, query_positions=positions, key_positions=positions, is_causal=True, backend=backend)
    torch.testing.assert_close(out, expected)


# --- precision ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_output_is_in_the_querys_dtype_and_scores_in_single_precision_at_least(dtype: torch.dtype) -> None:
    q, k, v = qkv(dtype=dtype)
    wide = torch.promote_types(dtype, torch.float32)
    for backend in BACKENDS:
        assert attend(q, k, v, TWO_DOORS, backend=backend).dtype == dtype
    assert attend_lse(q, k, v, TWO_DOORS)[1].dtype == wide
    assert posenc.logits(q, k, TWO_DOORS).dtype == wide


def relative_error(out: Tensor, exact: Tensor) -> float:
    return ((out.double() - exact).norm() / exact.norm()).item()


def far_keys() -> tuple[Tensor, Tensor, Tensor, Positions, Positions]:
    """One query that looks back at eight keys, 1000 to 1007 tokens away. Their ALiBi biases at slope 1/2 are -500,
    -500.5 .. -503.5, and of those bfloat16 knows only the even integers. Values are the unit vectors, so the output is
    the attention weights."""
    q, k = torch.zeros(1, 8, 1, 8), torch.zeros(1, 8, 8, 8)
    v = torch.eye(8).expand(1, 8, 8, 8)
    return q, k, v, Positions.arange(1, start=1007), Positions.arange(8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_does_not_round_the_bias(backend: str) -> None:
    q, k, v, query_positions, key_positions = far_keys()
    at = {"query_positions": query_positions, "key_positions": key_positions}
    exact = torch.tensor([2.0**-h for h in range(1, 9)])[:, None] * torch.arange(8.0)  # -m (i - j), less a constant
    with torch.autocast("cpu", torch.bfloat16):
        out = attend(q, k, v, ALiBi(8), **at, is_causal=True, backend=backend)
    assert out.dtype == torch.bfloat16
    # The weight is rounded and the output is, by at most 2^-8 of itself each.
    torch.testing.assert_close(out[0, :, 0].float(), exact.softmax(-1), rtol=2 * 2**-8, atol=0)
    rounded = (exact - (exact[:, -1:] + 1000 * exact[:, 1:2])).bfloat16().float()
    assert (rounded.softmax(-1) - exact.softmax(-1)).abs().max() > 0.05  # and it would show


@pytest.mark.parametrize("backend", BACKENDS)
def test_under_autocast_the_output_is_that_of_tensors_cast_before(backend: str) -> None:
    q, k, v = qkv(dtype=torch.float32)
    expected = attend(*(x.bfloat16() for x in (q, k, v)), TWO_DOORS, is_causal=True, backend=backend)
    encoding = TWO_DOORS(Positions.arange(7))
    with torch.autocast("cpu", torch.bfloat16):
        for given in (TWO_DOORS, TWO_DOORS(Positions.arange(7)), encoding):
            assert torch.equal(attend(q, k, v, given, is_causal=True, backend=backend), expected)
        mixed = attend(q.bfloat16(), k, v.bfloat16(), TWO_DOORS, is_causal=True, backend=backend)
        assert torch.equal(mixed, expected)
        assert posenc.logits(q, k, TWO_DOORS).dtype == torch.float32
    full = attend(q, k, v, TWO_DOORS, is_causal=True, backend=backend)
    # q, k, v, the turned q and k, the weights and the output are rounded, by at most 2^-8 each.
    assert relative_error(expected, full.double()) < 7 * 2**-8


def test_tensors_on_meta_have_shapes_alone() -> None:
    q, k, v = (x.to("meta") for x in qkv(5, 7))
    for backend in BACKENDS:
        out = attend(q, k, v, TWO_DOORS, is_causal=True, backend=backend)
        assert (out.shape, out.device.type) == ((2, HEADS, 5, VALUE_DIM), "meta")
    assert posenc.logits(q, k, TWO_DOORS).shape == (2, HEADS, 5, 7)


# --- dropout --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_keeps_the_expectation(backend: str) -> None:
    """The mean over many draws is the output without dropout, within five standard errors of the mean."""
    draws = 4000
    q, k, v = (x.expand(draws, -1, -1, -1) for x in qkv(3, 3, batch=1, dtype=torch.float32))
    exact = attend(q[:1], k[:1], v[:1], TWO_DOORS, is_causal=True, backend=backend)
    dropped = attend(q, k, v, TWO_DOORS, is_causal=True, dropout_p=0.3, backend=backend)
    assert dropped.shape == (draws, HEADS, 3, VALUE_DIM)
    standard_error = dropped.std(0, keepdim=True) / math.sqrt(draws)
    assert ((dropped.mean(0, keepdim=True) - exact).abs() <= 5 * standard_error).all()
    # The first query sees one key: its output is dropped, or divided by what is kept.
    first = dropped[:, :, 0] / exact[:, :, 0]
    torch.testing.assert_close(first, torch.where(first == 0, first, torch.full_like(first, 1 / 0.7)))
    assert 0.25 < (first == 0).float().mean() < 0.35


# --- backends -------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[], Scheme | None], dict[str, Any], str]] = {
    "value door": (
        lambda: Shaw(HEAD_DIM, 2).double(),
        {},
        "vectors added to values need the attention weights, which the fused kernel does not return",
    ),
    "row score": (
        lambda: TrialCoPE(4, HEAD_DIM),
        {},
        "a score term needs whole rows of scores, which the fused kernel does not provide",
    ),
    "product": (
        lambda: DistanceAware(HEADS).double(),
        {},
        "a score term is not additive, and the fused kernel only adds a mask",
    ),
    "log-sum-exp": (lambda: None, {"return_lse": True}, "the fused kernel does not return the log-sum-exp"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_backend_that_refuses_says_why_and_names_those_that_can(case: str) -> None:
    make, how, reason = REFUSED[case]
    scheme, (q, k, _) = make(), qkv()
    with pytest.raises(ValueError, match=rf"^backend 'sdpa' cannot run this: {reason}; these can: .*\breference$"):
        posenc.attention(q, k, k, scheme, **how, backend="sdpa")
    auto = posenc.attention(q, k, k, scheme, **how)
    by_name = posenc.attention(q, k, k, scheme, **how, backend="reference")
    torch.testing.assert_close(auto, by_name)


# -- what "auto" takes ------------------------------------------------------------------------------------------------

LONG = 300
MASK, FEW = "for a dense mask", "there are few scores"
KERNEL = "the kernel computes the scores on the fly"
NOTHING = ("sdpa", "the fused kernel suffices")
UNMEASURED = ("native", "there are no score terms, and from 256 tokens on")
CAUSAL = {"is_causal": True}
# What is taken with the kernel, and without a compiler.
TAKEN: dict[str, tuple[Callable[[], Scheme | None], dict[str, Any], tuple[str, str], tuple[str, str]]] = {
    "nothing": (lambda: None, CAUSAL, UNMEASURED, NOTHING),
    "rotation": (lambda: RoPE(HEAD_DIM), CAUSAL, UNMEASURED, NOTHING),
    "folds": (lambda: AbsoluteInAttention(LONG, HEAD_DIM), CAUSAL, NOTHING, NOTHING),
    "linear": (lambda: ALiBi(HEADS), CAUSAL, ("native", KERNEL), ("sdpa", MASK)),
    "both ways": (lambda: ALiBi(HEADS, "bidirectional"), {}, ("native", KERNEL), ("sdpa", MASK)),
    "window": (lambda: Shaw(HEAD_DIM, 3), CAUSAL, ("native", KERNEL), ("reference", FEW)),
    "all distances": (lambda: Relative1D(LONG, HEAD_DIM), CAUSAL, ("native", KERNEL), ("sdpa", MASK)),
    "product": (lambda: DistanceAware(HEADS), CAUSAL, ("native", KERNEL), ("reference", FEW)),
    "counts": (lambda: TrialCoPE(4, HEAD_DIM).float(), CAUSAL, ("reference", FEW), ("reference", FEW)),
    "keys that are hidden": (lambda: ALiBi(HEADS, "directed"), {}, ("native", KERNEL), ("sdpa", MASK)),
    "mask": (lambda: ALiBi(HEADS), CAUSAL | {"attn_mask": torch.ones(LONG, LONG).bool()}, *[("sdpa", MASK)] * 2),
}


@pytest.mark.parametrize("case", TAKEN)
@pytest.mark.parametrize("has_compiler", [True, False])
def test_explain_says_what_auto_takes_and_why_not_the_others(
    case: str, has_compiler: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_compiler:
        monkeypatch.setattr("posenc.backends.native.backend.missing", lambda dtype: "there is no C++ compiler")
        monkeypatch.setattr("posenc.backends.cache.texts", {})
    make, how, *both = TAKEN[case]
    expected, why = both[not has_compiler]
    q = torch.randn(1, HEADS, LONG, HEAD_DIM)
    scheme = make()
    explained = posenc.explain(q, q, q, scheme, **how)
    assert explained.backend == expected
    assert why in explained.why
    assert str(explained).startswith(f"{expected}: {explained.why}")
    taken = posenc.attention(q, q, q, scheme, **how)
    torch.testing.assert_close(taken, posenc.attention(q, q, q, scheme, **how, backend=expected), rtol=0, atol=0)
    for name, reason in explained.refusals.items():
        assert f"not {name}: {reason}" in str(explained)
        with pytest.raises(ValueError, match=f"backend '{name}' cannot run this: {re.escape(reason)}"):
            posenc.attention(q, q, q, scheme, **how, backend=name)


def test_too_many_scores_are_not_held_at_once() -> None:
    """A mask of all pairs that is given is held already."""
    q = torch.empty(1, 8, 1000, 4, device="meta")
    held, learned = (torch.empty(1, 1, 1000, 1000, device="meta", requires_grad=r) for r in (False, True))
    assert posenc.explain(q, q, q, ALiBi(8, "directed")).backend == "chunked"
    assert posenc.explain(q, q, q, ALiBi(8, "directed"), attn_mask=held).backend == "chunked"
    assert posenc.explain(q, q, q, attn_mask=held > 0).backend == "sdpa"
    assert posenc.explain(q, q, q, attn_mask=learned).backend == "chunked"


class Written(TorchDispatchMode):
    """Counts the numbers that operations return, but for views."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and not func.is_view:
            self.count += out.numel()
        return out


@pytest.mark.parametrize("how", [{"window": 7}, {"attn_mask": True}, {}], ids=["a window", "a mask", "padding"])
@pytest.mark.parametrize("backend", ["sdpa", "native", "auto"])
def test_a_step_of_decoding_copies_no_cache(how: dict[str, Any], backend: str) -> None:
    """Though most of its keys are seen by no query, or some rows begin with padding. What they hold is finite."""
    keys = Positions.padded(torch.arange(LONG)[None] >= torch.tensor([[0], [5]]))
    if how.get("attn_mask"):
        if backend == "native":
            pytest.skip("native takes no mask")
        keys, how = Positions.arange(LONG), {"attn_mask": torch.arange(LONG)[None] > 9}
    query, (key, value) = torch.randn(2, HEADS, 1, HEAD_DIM), torch.randn(2, 2, HEADS, LONG, HEAD_DIM)
    where = {"query_positions": keys[LONG - 1 :], "key_positions": keys, "is_causal": True}
    with torch.no_grad(), Written() as written:
        posenc.attention(query, key, value, **where, **how, backend=backend)
    assert written.count < key.numel() / 2
