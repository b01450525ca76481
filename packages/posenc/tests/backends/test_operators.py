"""What posenc's own operators must not get wrong beside their numbers: layouts, derivatives they lack, odd calls."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef

import posenc
from posenc import T5, ALiBi, DistanceAware, Positions, Relative1D, RoPE, Scheme, Shaw, TransformerXL, compat
from posenc.backends.native import operator as native
from tests.user_schemes import disentangled

HEADS, HEAD_DIM, TOKENS = 4, 16, 150
SCHEMES: dict[str, Callable[[], Scheme]] = {
    "linear": lambda: ALiBi(HEADS),
    "linear, turned": lambda: RoPE(HEAD_DIM, layout="interleaved") + ALiBi(HEADS),
    "near and far": lambda: Shaw(HEAD_DIM, 5),
    "near and far, fixed": lambda: Shaw(HEAD_DIM, 5).requires_grad_(False),
    "both sides": lambda: disentangled(HEAD_DIM, HEADS),
    "by distance": lambda: Relative1D(TOKENS, HEAD_DIM),
    "by distance, a factor": lambda: DistanceAware(HEADS),
    "by distance, folded": lambda: TransformerXL(HEADS, HEAD_DIM),
}


def transposed(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value as projections leave them, (batch, tokens, heads, head_dim) in memory."""
    query, key, value = (torch.randn(2, TOKENS, HEADS, HEAD_DIM, dtype=dtype).transpose(1, 2) for _ in range(3))
    return query, key, value


@pytest.mark.parametrize("scheme", SCHEMES)
def test_memory_order_does_not_matter(scheme: str) -> None:
    made = SCHEMES[scheme]().double()
    channels_first = tuple(x.mT.contiguous().mT for x in transposed())
    assert channels_first[0].stride(-1) != 1
    for tensors in (transposed(), channels_first):
        leaves = [x.detach().requires_grad_() for x in tensors]
        out = posenc.attention(*leaves, made, is_causal=True)
        truth = posenc.attention(*leaves, made, is_causal=True, backend="reference")
        torch.testing.assert_close(out, truth)
        for found, expected in zip(
            torch.autograd.grad(out.square().sum(), leaves),
            torch.autograd.grad(truth.square().sum(), leaves),
            strict=True,
        ):
            torch.testing.assert_close(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "dtype", "is_causal"),
    [
        ("near and far", torch.float64, True),
        ("near and far", torch.float64, False),
        ("near and far, fixed", torch.bfloat16, True),  # whose output is rounded
    ],
)
def test_what_the_operator_promises_the_compiler_is_so(
    scheme: str, dtype: torch.dtype, is_causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's own examination: schema, gradients, and shapes and strides as foretold for a compiled graph."""
    operator, calls = torch.ops.posenc.native, []
    leaves = [x.detach().to(dtype).requires_grad_() for x in transposed()]
    made = SCHEMES[scheme]().to(torch.promote_types(dtype, torch.float32))
    with monkeypatch.context() as patched:
        patched.setattr(compat, "can_bypass_dispatch", lambda tensors: False)
        patched.setattr(native, "native", lambda *given, prepared: calls.append(given) or operator(*given))
        posenc.attention(*leaves, made, is_causal=is_causal, backend="native")
    (given,) = calls

    def as_leaf(x: Any) -> Any:
        if isinstance(x, list):
            return [as_leaf(one) for one in x]
        return x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x

    given = tuple(as_leaf(x) for x in given)
    results = torch.library.opcheck(operator.default, given)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_kernel_gives_the_same_directly_and_by_its_operator(scheme: str) -> None:
    made = SCHEMES[scheme]().double()
    query, key, value = (x.requires_grad_() for x in transposed())
    leaves = [query, key, value, *(x for x in made.parameters() if x.requires_grad)]

    def found() -> tuple[str, list[Tensor]]:
        out, lse = posenc.attention(query, key, value, made, is_causal=True, backend="native", return_lse=True)
        with torch.no_grad():
            alone = posenc.attention(query, key, value, made, is_causal=True, backend="native")
        gradients = torch.autograd.grad(out.sin().sum() + lse.sin().sum(), leaves, allow_unused=True)
        return type(lse.grad_fn).__name__, [out, lse, alone, *gradients]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CustomOpDef, "__call__", lambda *_: pytest.fail("the operator ran"))
        name, directly = found()
    assert name == "posenc_nativeBackward"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compat, "can_bypass_dispatch", lambda tensors: False)
        name, by_operator = found()
    assert name != "posenc_nativeBackward"
    for one, other in zip(directly, by_operator, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # PyTorch's own fused kernel, in vmap
@pytest.mark.parametrize("tokens", [20, 150])
def test_transforms_run_what_supports_them(tokens: int) -> None:
    query, key, value = (torch.randn(2, HEADS, tokens, 8, dtype=torch.float64) for _ in range(3))
    scheme = ALiBi(HEADS).double()

    def loss(query: Tensor, backend: str = "auto") -> Tensor:
        out = posenc.attention(query, key, value, scheme, is_causal=True, backend=backend)
        assert isinstance(out, Tensor)
        return out.sin().sum()

    leaf = query.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf, "reference"), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(query), expected)
    several = torch.stack((query, -query))
    torch.testing.assert_close(torch.func.vmap(loss)(several), torch.stack((loss(query), loss(-query))))
    with pytest.raises(ValueError, match=r"does not support torch\.func transforms"):
        torch.func.grad(lambda x: loss(x, "native"))(query)


@pytest.mark.parametrize("shape", [(1100, 4, 31), (40, 2, 127)])
def test_large_batches_of_short_texts_do_not_go_in_blocks(shape: tuple[int, int, int]) -> None:
    batch, heads, tokens = shape
    torch.manual_seed(0)
    text = Positions.padded(torch.arange(tokens) < torch.randint(2, tokens + 1, (batch, 1)))
    x = torch.empty(batch, heads, tokens, 1)
    for scheme in (ALiBi(heads), T5(heads)):
        assert posenc.explain(x, x, x, scheme(text), is_causal=True).backend == "native"


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # PyTorch's own, in jvp
@pytest.mark.parametrize("scheme", SCHEMES)
def test_forward_mode_derivatives_are_not_lost(scheme: str) -> None:
    made = SCHEMES[scheme]().double()
    query, key, value = transposed()

    def run(query: Tensor, backend: str) -> Tensor:
        out = posenc.attention(query, key, value, made, is_causal=True, backend=backend)
        assert isinstance(out, Tensor)
        return out

    direction = torch.randn_like(query)
    _, found = torch.func.jvp(lambda q: run(q, "auto"), (query,), (direction,))
    _, expected = torch.func.jvp(lambda q: run(q, "reference"), (query,), (direction,))
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(found, expected)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(ValueError, match="it has no forward-mode derivative"):
        posenc.attention(query, key, value, ALiBi(HEADS), is_causal=True, backend="native")


@pytest.mark.parametrize("backend", ["auto", "chunked", "reference"])
def test_a_table_ends_where_it_ends_in_every_backend(backend: str) -> None:
    query, key = torch.randn(1, HEADS, 20, HEAD_DIM), torch.randn(1, HEADS, 320, HEAD_DIM)
    positions = Positions.arange(20), Positions.arange(320)
    with pytest.raises(posenc.PositionError, match="Relative1D encodes distances up to 29, got 319"):
        posenc.attention(
            query,
            key,
            key,
            Relative1D(30, HEAD_DIM),
            query_positions=positions[0],
            key_positions=positions[1],
            is_causal=True,
            backend=backend,
        )
