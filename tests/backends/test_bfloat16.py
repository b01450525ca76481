"""bfloat16 that the kernel does not widen: its matrix or vector units multiply it, or what does the same in their place.

Products of two numbers of bfloat16 are exact in single precision, in which they are summed. So what is rounded to bfloat16
are weights and gradients of scores before they are multiplied, rotated queries and keys, and what goes out: as in
PyTorch's own attention, whose error against float64 is the measure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import posenc
from posenc import FIRE, T5, ALiBi, DistanceAware, Positions, RoPE, Scheme, Shaw, Softcap, TransformerXL
from posenc.backends.native import library
from posenc.backends.native.processor import LEVELS
from tests.awkward import clocked

WORST = 1.5  # times the error of plain attention in the same precision

pytestmark = pytest.mark.skipif(
    library.missing(torch.bfloat16) is not None, reason=f"no kernel: {library.missing(torch.bfloat16)}"
)


@pytest.fixture(autouse=True)
def is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 goes to the kernel as it is, on every processor: where none multiplies it, it is emulated."""
    monkeypatch.setattr(library, "MULTIPLIES_BFLOAT16", [level.name for levels in LEVELS.values() for level in levels])


def error(x: Tensor, truth: Tensor) -> float:
    """Relative root mean square."""
    return ((x.double() - truth).norm() / truth.norm()).item()


def gradients(out: Tensor, given: Tensor, leaves: tuple[Tensor, ...]) -> list[Tensor]:
    return [out.detach(), *torch.autograd.grad((out * given).sum(), leaves)]


def errors(
    scheme: Scheme | None, tensors: list[Tensor], given: Tensor, how: dict[str, Any]
) -> tuple[list[float], list[float]]:
    """Of output and gradients of query, key and value, and of what the scheme learns: the kernel's and plain attention's,
    whose last stands for all that is learned."""
    found: list[list[Tensor]] = []
    for dtype, way in ((torch.bfloat16, "native"), (torch.float64, "reference")):
        leaves = [x.to(dtype).requires_grad_() for x in tensors]
        made = None if scheme is None else scheme.to(torch.promote_types(dtype, torch.float32))
        parameters = [] if made is None else list(made.parameters())
        out = posenc.attention(*leaves, made, backend=way, **how)
        assert isinstance(out, Tensor)
        assert out.dtype == dtype
        found.append(gradients(out, given.to(dtype), (*leaves, *parameters)))
    plain: list[list[Tensor]] = []
    for dtype in (torch.bfloat16, torch.float64):
        leaves = [x.to(dtype).requires_grad_() for x in tensors]
        out = F.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)
        plain.append(gradients(out, given.to(dtype), tuple(leaves)))
    return [error(*pair) for pair in zip(*found, strict=True)], [error(*pair) for pair in zip(*plain, strict=True)]


SCHEMES: dict[str, Callable[[int], Scheme | None]] = {
    "no scheme": lambda width: None,
    "rope": lambda width: RoPE(width),
    "rope, interleaved, of some channels": lambda width: RoPE(width, layout="interleaved", rotary_dim=width // 2),
    "rope and alibi": lambda width: RoPE(width) + ALiBi(4),
    "alibi": lambda width: ALiBi(4),
    "t5": lambda width: T5(4),
    "shaw": lambda width: Shaw(width, 5),
    "distance aware": lambda width: DistanceAware(4),
    "a cap": lambda width: Softcap(2.0),
    "fire": lambda width: FIRE(4, 8, 50.0),
    "transformer-xl": lambda width: TransformerXL(4, width),
}


@pytest.mark.parametrize("width", [16, 40, 64])
@pytest.mark.parametrize("name", SCHEMES)
def test_it_is_as_exact_as_plain_attention(name: str, width: int) -> None:
    """At lengths that are multiples of no block, with grouped heads."""
    torch.manual_seed(0)
    tensors = [torch.randn(2, heads, 341, width).bfloat16() for heads in (4, 2, 2)]
    given = torch.randn(2, 4, 341, width).bfloat16()
    ours, plain = errors(SCHEMES[name](width), tensors, given, {"is_causal": True})
    for one, other in zip(ours, [*plain, *plain[-1:] * len(ours)], strict=False):
        assert one <= WORST * other


PLACES: dict[str, dict[str, Any]] = {
    "window": {"is_causal": True, "window": 9},
    "packed": {"is_causal": True, "query_positions": Positions.packed([[100, 1, 240], [341]])},
    "padded": {"is_causal": True, "query_positions": Positions.padded(torch.arange(341) >= torch.tensor([[0], [77]]))},
    "with gaps": {
        "is_causal": True,
        "query_positions": Positions.cat([Positions.arange(150), Positions.arange(191, start=400)]),
    },
    "no product of whole numbers": {"is_causal": True, "scale": 0.3},
    "sinks": {"is_causal": True, "sinks": torch.tensor([0.5, -1.0, 3.0, 0.0])},
}


@pytest.mark.parametrize("name", ["rope", "t5", "shaw"])
@pytest.mark.parametrize("place", PLACES)
def test_so_it_is_wherever_tokens_stand(name: str, place: str) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(2, heads, 341, 32).bfloat16() for heads in (4, 2, 2)]
    given = torch.randn(2, 4, 341, 32).bfloat16()
    ours, plain = errors(SCHEMES[name](32), tensors, given, PLACES[place])
    for one, other in zip(ours, [*plain, *plain[-1:] * len(ours)], strict=False):
        assert one <= WORST * other


@pytest.mark.parametrize("queries", [1, 3, 40])
@pytest.mark.parametrize("name", ["no scheme", "rope", "t5", "shaw"])
def test_few_queries_meet_a_cache(name: str, queries: int) -> None:
    torch.manual_seed(0)
    q = torch.randn(1, 4, queries, 32).bfloat16()
    k, v = (torch.randn(1, 2, 700, 32).bfloat16() for _ in range(2))
    scheme = SCHEMES[name](32)
    found = posenc.attention(q, k, v, scheme, is_causal=True, backend="native")
    wide = None if scheme is None else scheme.double()
    truth = posenc.attention(q.double(), k.double(), v.double(), wide, is_causal=True, backend="reference")
    plain = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), enable_gqa=True)
    assert error(found, truth) <= WORST * error(plain, exact)


def test_what_others_tokens_hold_goes_nowhere() -> None:
    """NaN in the values, keys and gradients of one document is in no other's, whose rows and columns share blocks."""
    positions = Positions.packed([[45, 60, 83]])
    leaves = [torch.randn(1, 2, 188, 32).bfloat16() for _ in range(3)]
    given = torch.randn(1, 2, 188, 32).bfloat16()
    for x in (*leaves, given):
        x[:, :, 45:105] = torch.nan
    for x in leaves:
        x.requires_grad_()
    how = {"query_positions": positions, "is_causal": True, "backend": "native"}
    out = posenc.attention(*leaves, ALiBi(2), **how)
    assert isinstance(out, Tensor)
    for x in gradients(out, given, tuple(leaves)):
        assert x[:, :, 45:105].isnan().all(-1).all()
        assert x[:, :, :45].isfinite().all()
        assert x[:, :, 105:].isfinite().all()


def test_clocks_and_keys_that_are_left_out() -> None:
    """Gates that fall far leave nearly all keys out, and the row is as exact as before."""
    torch.manual_seed(0)
    tensors = [torch.randn(1, 2, 700, 32).bfloat16() for _ in range(3)]
    found, everything = (
        posenc.attention(*tensors, ALiBi(2), is_causal=True, backend="native", skip_below=share)
        for share in (None, 0.0)
    )
    torch.testing.assert_close(found, everything, rtol=2.0**-7, atol=2.0**-9)
    scheme = clocked(2)
    out = posenc.attention(*tensors, scheme, is_causal=True, backend="native")
    truth = posenc.attention(*(x.double() for x in tensors), scheme, is_causal=True, backend="reference")
    assert error(out, truth) <= 2.0**-7


def test_keys_that_meet_vectors_are_widened() -> None:
    """The one term that the kernel takes in single precision alone."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 50, 16).bfloat16() for _ in range(3))
    scheme = posenc.DeBERTa(2, 16)
    out, wide = (posenc.attention(*x, scheme, backend="native") for x in ((q, k, v), (q.float(), k.float(), v.float())))
    torch.testing.assert_close(out, wide.bfloat16(), rtol=0, atol=0)
