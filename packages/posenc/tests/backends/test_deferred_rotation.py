"""Turns that are left to the kernel: every convention gives what rotated queries and keys do, and what reads queries or
keys by itself is given rotated ones."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import posenc
from posenc import FIRE, DynamicNTK, LeRoPE, MixedRoPE, NoPE, Positions, RoPE, Scheme, Shaw, XPos, YaRN
from posenc.backends.native import library, operator
from posenc.encoding.terms import AddedVector
from tests import user_schemes
from tests.backends.parity_cases import KINDS, Case, packed, padded, with_gradients
from tests.backends.test_parity import check_close

HEADS, KV_HEADS, HEAD_DIM, TOKENS = 4, 2, 12, 72


def same(positions: Positions) -> tuple[Positions, Positions]:
    return positions, positions


def last(positions: Positions, queries: int) -> tuple[Positions, Positions]:
    return positions[len(positions) - queries :], positions


@dataclass(frozen=True)
class Convention:
    """A scheme that turns pairs of channels, where its tokens stand, and how attention is asked."""

    build: Callable[[], Scheme]
    places: Callable[[], tuple[Positions, Positions]] = lambda: same(Positions.arange(TOKENS, start=3))
    how: dict[str, Any] = field(default_factory=lambda: {"is_causal": True})


def along_axes(axes: int) -> tuple[Positions, Positions]:
    """Tokens of so many coordinates, in an order that rises."""
    at = torch.arange(TOKENS)
    coords = torch.stack((at // 9, at % 9, at % 5)[:axes], -1)
    return same(Positions(coords[None], order=at[None]))


def rope(**how: Any) -> Callable[[], Scheme]:
    return lambda: RoPE(HEAD_DIM, base=313.0, **how)


def frozen(build: Callable[[], Scheme]) -> Callable[[], Scheme]:
    return lambda: build().requires_grad_(False)


CONVENTIONS = {
    "half": Convention(rope()),
    "interleaved": Convention(rope(layout="interleaved")),
    "some channels": Convention(rope(rotary_dim=6)),
    "some channels, interleaved": Convention(rope(rotary_dim=6, layout="interleaved")),
    "from another channel on": Convention(rope(rotary_dim=4, first_channel=5, layout="interleaved")),
    "a turn that lengthens": Convention(rope(scaling=YaRN(4.0, 16))),
    "frequencies of each row's length": Convention(
        rope(scaling=DynamicNTK(2.0, 16)), lambda: same(padded("lrn", TOKENS))
    ),
    "three axes, dealt out": Convention(rope(axes=3, allocation=(0, 1, 2, 2, 1, 0)), lambda: along_axes(3)),
    "other angles for each head": Convention(frozen(lambda: MixedRoPE(HEAD_DIM, KV_HEADS)), lambda: along_axes(2)),
    "values too": Convention(rope(values=True)),
    "a window": Convention(rope(), how={"is_causal": True, "window": 9}),
    "chunks": Convention(rope(), how={"is_causal": True, "window": posenc.Chunk(16)}),
    "packed": Convention(rope(), lambda: same(packed(TOKENS))),
    "a cache": Convention(rope(), lambda: last(Positions.arange(TOKENS), 21)),
    "one query": Convention(rope(layout="interleaved"), lambda: last(padded("ln", TOKENS), 1)),
    "with a broken line": Convention(lambda: RoPE(HEAD_DIM) + FIRE(HEADS)),
    "with vectors of values": Convention(lambda: RoPE(HEAD_DIM) + Shaw(HEAD_DIM, 5, keys=False)),
}


def case_of(it: Convention, dtype: torch.dtype = torch.float64) -> Case:
    torch.default_generator.manual_seed(5)
    of_queries, of_keys = it.places()
    batch = max(of_queries.rows, of_keys.rows, 2)
    scheme = it.build().to(torch.promote_types(dtype, torch.float32))
    shapes = ((HEADS, len(of_queries)), (KV_HEADS, len(of_keys)), (KV_HEADS, len(of_keys)))
    tensors = [torch.randn(batch, *shape, HEAD_DIM).to(dtype).requires_grad_() for shape in shapes]
    return Case(KINDS["rope"], scheme, *tensors, of_queries, of_keys, it.how)


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each call of the kernel, whether it was given a turn to do."""
    for dtype in (torch.float32, torch.float64):
        library.missing(dtype)  # which may ask it for known answers
    seen: list[bool] = []
    run = operator.native

    def watched(*given: Any, **how: Any) -> Any:
        names = next(x for x in given if isinstance(x, str)).split()
        seen.append({"query_cos", "query_sin", "key_cos", "key_sin"} <= set(names))
        return run(*given, **how)

    monkeypatch.setattr(operator, "native", watched)
    return seen


@pytest.mark.parametrize("name", CONVENTIONS)
def test_the_kernel_turns_what_the_reference_is_given_turned(name: str, left: list[bool]) -> None:
    """Output, log-sum-exp, and all gradients."""
    it = case_of(CONVENTIONS[name])
    found, truth = (with_gradients(it, it.attend(way, return_lse=True)) for way in ("native", "reference"))
    assert left == [True]
    check_close(found, truth, it)


def added_to_keys() -> Scheme:
    return user_schemes.TermScheme(lambda w: (AddedVector("Folded", key=w),), w=torch.randn(1, 1, TOKENS, HEAD_DIM))


ROTATED_FIRST = {
    "frequencies that are learned": lambda: LeRoPE(HEAD_DIM),
    "learned for each head": lambda: MixedRoPE(HEAD_DIM, KV_HEADS),
    "a query that meets vectors": lambda: RoPE(HEAD_DIM) + Shaw(HEAD_DIM, 5),
    "a vector that is added to the query": lambda: RoPE(HEAD_DIM) + posenc.TransformerXL(HEADS, HEAD_DIM),
    "a vector that is added to the key": lambda: RoPE(HEAD_DIM) + added_to_keys(),
    "another map than a turn": lambda: XPos(HEAD_DIM),
    "two turns": lambda: RoPE(HEAD_DIM, rotary_dim=6) + RoPE(HEAD_DIM, rotary_dim=6, first_channel=6),
    "some of the heads": lambda: RoPE(HEAD_DIM, heads=range(2), num_heads=HEADS),
    "no turn": lambda: NoPE(),
}


def check_turned_first(name: str) -> None:
    places = along_axes(2) if name == "learned for each head" else same(Positions.arange(TOKENS))
    it = case_of(Convention(ROTATED_FIRST[name], lambda: places))
    found, truth = (with_gradients(it, it.attend(way, return_lse=True)) for way in ("native", "reference"))
    check_close(found, truth, it)


@pytest.mark.parametrize("name", ROTATED_FIRST)
def test_these_are_turned_before_the_kernel(name: str, left: list[bool]) -> None:
    check_turned_first(name)
    assert left == [False]


@pytest.mark.parametrize("backend", ["auto", "sdpa", "chunked", "reference"])
def test_every_other_backend_is_given_rotated_queries_and_keys(backend: str, left: list[bool]) -> None:
    it = case_of(CONVENTIONS["a turn that lengthens"])
    encoding = it.scheme(it.query_positions, dtype=torch.float64)
    turned = encoding.rotate(it.query, it.key)
    expected = posenc.attention(*turned, it.value, is_causal=True, backend="reference")
    (found,) = it.attend(backend)
    assert left == []
    torch.testing.assert_close(found, expected)
