"""bfloat16 that the kernel does not widen: the processor multiplies it, or what does the same in its place.

Products of two numbers of bfloat16 are exact in single precision, in which they are summed. So what is rounded to
bfloat16 are weights and gradients of scores before they are multiplied, rotated queries and keys, and what goes out: as
in PyTorch's own attention, whose error against float64 is the measure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import T5, ALiBi, DistanceAware, Positions, RoPE, Scheme, Shaw, Softcap, TransformerXL
from posenc.backends.native import backend, library

WORST = 1.5  # times the error of PyTorch's attention in the same precision, of output and gradients of tokens
# Of what schemes learn. Every gradient of a score has the product of the output, as it is rounded, and its gradient,
# which is one error for a row; what is learned sums it over keys as well, with numbers that may be greater than 1.
WORST_LEARNED = 2.0

pytestmark = pytest.mark.skipif(
    library.missing(torch.bfloat16) is not None, reason=f"no kernel: {library.missing(torch.bfloat16)}"
)


@pytest.fixture(autouse=True)
def is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 goes to the kernel as it is, on every processor: where none multiplies it, it is emulated."""
    monkeypatch.setattr(backend, "multiplies_bfloat16", lambda: True)


def error(x: Tensor, truth: Tensor) -> float:
    """Relative root mean square."""
    return ((x.double() - truth).norm() / truth.norm()).item()


def gradients(out: Tensor, given: Tensor, leaves: tuple[Tensor, ...]) -> list[Tensor]:
    return [out.detach(), *torch.autograd.grad((out * given).sum(), leaves)]


def check(name: str, width: int, tokens: list[Tensor], given: Tensor, how: dict[str, Any]) -> None:
    """Against the reference in double precision the kernel is about as exact as PyTorch's attention: with the same
    rotation, rounded, and else without positions. Of what is learned the worst of its gradients is the measure."""
    scheme = SCHEMES[name](width)
    found, plain = [], []
    rotates = name in ROTATE
    bare = {} if rotates else {"is_causal": True}
    for dtype, way in ((torch.bfloat16, "native"), (torch.float64, "reference")):
        leaves = [x.to(dtype).requires_grad_() for x in tokens]
        made = None if scheme is None else scheme.to(torch.promote_types(dtype, torch.float32))
        parameters = [] if made is None else list(made.parameters())
        out = posenc.attention(*leaves, made, backend=way, **how)
        assert isinstance(out, Tensor)
        assert out.dtype == dtype
        found.append(gradients(out, given.to(dtype), (*leaves, *parameters)))
        theirs = "sdpa" if way == "native" else way
        made, how_theirs = (made, {**how, "sinks": None}) if rotates else (None, bare)
        out = posenc.attention(*leaves, made, backend=theirs, **how_theirs)
        assert isinstance(out, Tensor)
        plain.append(gradients(out, given.to(dtype), tuple(leaves)))
    ours, allowed = ([error(*pair) for pair in zip(*results, strict=True)] for results in (found, plain))
    for one, other in zip(ours[:4], allowed, strict=True):
        assert one <= WORST * other
    assert all(one <= WORST_LEARNED * max(allowed) for one in ours[4:])


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
    "transformer-xl": lambda width: TransformerXL(4, width),
}
ROTATE = ("rope", "rope, interleaved, of some channels", "rope and alibi")


@pytest.mark.parametrize(("name", "width"), [(name, (16, 40, 64)[n % 3]) for n, name in enumerate(SCHEMES)])
def test_it_is_as_exact_as_plain_attention(name: str, width: int) -> None:
    """At lengths that are multiples of no block, with grouped heads."""
    torch.manual_seed(0)
    tensors = [torch.randn(2, heads, 341, width).bfloat16() for heads in (4, 2, 2)]
    given = torch.randn(2, 4, 341, width).bfloat16()
    check(name, width, tensors, given, {"is_causal": True})


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


@pytest.mark.parametrize(("place", "name"), [(x, ("rope", "t5", "shaw")[n % 3]) for n, x in enumerate(PLACES)])
def test_so_it_is_wherever_tokens_stand(name: str, place: str) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(2, heads, 341, 32).bfloat16() for heads in (4, 2, 2)]
    given = torch.randn(2, 4, 341, 32).bfloat16()
    check(name, 32, tensors, given, PLACES[place])


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


def test_explain_says_in_which_precision_products_are() -> None:
    q = torch.randn(1, 2, 300, 16)

    def told(dtype: torch.dtype, scheme: Scheme) -> str:
        x = q.to(dtype)
        return posenc.explain(x, x, x, scheme, is_causal=True).why

    assert told(torch.bfloat16, ALiBi(2)).endswith("; it multiplies in bfloat16")
    assert told(torch.float16, ALiBi(2)).endswith("; it converts float16 to float32")
    assert told(torch.bfloat16, posenc.DeBERTa(2, 16)).endswith("; it converts bfloat16 to float32")
    assert "float32" not in told(torch.float32, ALiBi(2))
