"""The kernels for CUDA where pairs are far, near and masked in one block: small blocks, so that short texts have all of
them, at every place and in every way that attention is asked; and what memory they read and write.

These tests run on a GPU, and in a process that interprets the kernels; `test_triton` has those of single schemes.
"""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import T5, ALiBi, Shaw
from posenc.backends.triton import launch
from tests.backends.grounds import PLACES, WAYS, case, refuses
from tests.backends.test_triton import INTERPRETED, check_as_exact_as_the_reference, interpreted, on

__all__ = ["on"]  # a fixture

SMALL = (launch.Sizes(16, 16, 16, 4, 1),)
FILE = str(Path(__file__))


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.skipif(INTERPRETED, reason="this is the process that interprets them")
@pytest.mark.parametrize("only", ["not more", pytest.param("more", marks=pytest.mark.more)])
def test_where_there_is_no_gpu_they_are_interpreted(only: str) -> None:
    asked = [param for param in SWEEP if bool(param.marks) == (only == "more")]
    assert interpreted(FILE, only=f"not gpu and {only}") >= len(asked)  # and were not skipped


# --- every place, in every way ----------------------------------------------------------------------------------------

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


@pytest.mark.parametrize(("name", "place", "way", "heads", "kv_heads"), SWEEP)
def test_every_place_in_every_way(
    name: str, place: str, way: str, heads: int, kv_heads: int, on: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text of 37 is two blocks of 16 and a rest."""
    monkeypatch.setattr(launch, "sizes_of", lambda *_: SMALL)
    check_as_exact_as_the_reference(case(name, place, 37, way, heads=heads, kv_heads=kv_heads), on)


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [Shaw(16, 5), ALiBi(1), T5(1)], ids=["windows", "a line", "a table"])
def test_indices_beyond_32_bits(scheme: posenc.Scheme, on: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, and texts of a batch, 2^31 elements apart and more, of which only what is read takes memory."""
    monkeypatch.setattr(launch, "sizes_of", lambda *_: SMALL)
    whole = torch.empty(2**31 + 2**29, dtype=torch.float16, device=on)
    far = whole.as_strided((2, 1, 37, 16), (2**31 + 16, 16, 2**20, 1))
    far.copy_(torch.randn(2, 1, 37, 16))
    apart = whole.as_strided((1, 1, 37, 16), (16, 16, 2**26, 1))
    apart.copy_(torch.randn(37, 16))
    for x in (far, apart):
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
