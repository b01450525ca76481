"""The kernels for few queries against the reference, and what can be told of them without a GPU.

As of `test_triton`, a process of its own interprets them.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import posenc
from posenc import FIRE, ALiBi, Positions, Scheme, Shaw
from posenc.backends import choose
from posenc.backends.request import Options, Request
from posenc.backends.triton import backend, operator
from tests.backends import ceilings, parity_cases
from tests.backends.parity_cases import (
    ATTENDING,
    BANDED,
    BY_LAYERS,
    KINDS,
    Place,
    case,
    encoded,
    last,
    packed,
    padded,
    takes,
)
from tests.backends.test_triton import INTERPRETED, U, check_as_exact_as_the_reference, on
from tests.backends.test_triton_ahead import Elsewhere
from tests.user_schemes import clocked, learned_slope

__all__ = ["on"]  # a fixture


# --- as exact as the reference ----------------------------------------------------------------------------------------

TOKENS = 55


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs have 16 keys at once, and 55 keys are of three programs."""
    small = {name: split._replace(bytes=2**9) for name, split in operator.SPLITS.items()}
    monkeypatch.setattr(operator, "SPLITS", small)
    monkeypatch.setattr(operator, "LEAST", 24)


ENDS: dict[str, Callable[[int], tuple[Positions, Positions]]] = {
    "one": lambda n: last(Positions.arange(n, start=11).shift(-4), 1),
    "some": lambda n: last(Positions.arange(n), 5),
    "rows of several lengths": lambda n: last(padded("lnia", n), 3),
    "rows that end earlier": lambda n: last(padded("lrn", n), 2),
    "documents": lambda n: last(packed(n), 16),
    "a gap": lambda n: last(parity_cases.with_a_gap(n), 4),
    "a prefix": lambda n: last(parity_cases.prefixed(n), 2),
}
SCHEMES = ["nope", "fire"]
SCHEMES += [
    name
    for name in ATTENDING
    if takes("triton", name)
    and KINDS[name].axes == 1
    and name not in BANDED | BY_LAYERS
    and (encoded(name).score_terms or encoded(name).values)
]
WAYS = ("causal", "a window", "both", "causal, a window", "causal, sinks")
FIRST = ("nope", "fire", "alibi", "t5", "shaw", "shaw per head", "relative_1d", "clocked", "featured")
CASES = [
    pytest.param(*each, marks=() if each[0] in FIRST or "+" in each[0] else pytest.mark.more)
    for each in zip(SCHEMES, itertools.cycle(ENDS), itertools.cycle(WAYS), strict=False)
]
"""Of other schemes the kernels make nothing else."""


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("name", "place", "way"), CASES)
def test_every_scheme_that_it_takes(
    name: str, place: str, way: str, on: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(parity_cases.PLACES, "the end", Place(ENDS[place]))
    check_as_exact_as_the_reference(case(name, "the end", TOKENS, way, heads=6, kv_heads=2), on, False)


SHAPES = [  # scheme, heads, heads of the keys, queries
    ("alibi", 12, 3, 16),
    ("alibi", 1, 1, 1),
    ("shaw per head", 12, 3, 3),
    ("shaw", 71, 1, 2),
    ("t5", 4, 4, 7),
    ("clocked", 12, 3, 1),
    ("fire", 12, 3, 5),
    ("alibi+distance_aware", 12, 3, 3),
]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("name", "heads", "kv_heads", "queries"), SHAPES)
def test_heads_that_share_keys(
    name: str, heads: int, kv_heads: int, queries: int, on: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(parity_cases.PLACES, "the end", Place(lambda n: last(padded("ln", n), queries)))
    check_as_exact_as_the_reference(case(name, "the end", 37, "causal", heads=heads, kv_heads=kv_heads), on, False)


def step_of(tokens: int, queries: int, on: torch.device, heads: int = 6, kv_heads: int = 2) -> tuple[Tensor, ...]:
    return tuple(
        torch.randn(2, h, n, 16, device=on) for h, n in ((heads, queries), (kv_heads, tokens), (kv_heads, tokens))
    )


def decoded(q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, way: str = "triton", **how: Any) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        out = posenc.attention(q, k, v, scheme.to(q.device), is_causal=True, backend=way, return_lse=True, **how)
    assert isinstance(out, tuple)
    return out


@pytest.mark.usefixtures("small")
def test_a_cache_is_read_where_it_lies(on: torch.device) -> None:
    """Keys are parts of larger buffers, with heads or tokens side by side, and NaN is in what is beyond them."""
    q, k, v = step_of(TOKENS, 2, on)
    scheme = Shaw(16, 5)
    plain = decoded(q, k, v, scheme)
    beyond = torch.full((2, 2, 128, 16), torch.nan, device=on)
    for place in (lambda x: x, lambda x: x.transpose(1, 2).contiguous().transpose(1, 2)):
        held = [place(torch.cat((x, beyond), 2))[:, :, :TOKENS] for x in (k, v)]
        assert not held[0].is_contiguous()
        for one, other in zip(decoded(q, *held, scheme), plain, strict=True):
            assert torch.equal(one, other)


# --- without a GPU ----------------------------------------------------------------------------------------------------


class Launches:
    """In the kernels' place: which were started, and with what."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.given: list[tuple[str, tuple[int, ...], dict[str, Any]]] = []
        patch.setattr(backend, "is_interpreted", lambda: True)  # so that tensors of the CPU are taken
        patch.setattr(backend, "missing", lambda: None)
        patch.setattr(operator, "kernel_of", lambda name: self.of(name))

    def of(self, name: str) -> Any:
        launches = self

        class Started:
            def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
                return lambda **given: launches.given.append((name, grid, given))

        return Started()

    @property
    def names(self) -> list[str]:
        return [name for name, *_ in self.given]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    if INTERPRETED:
        pytest.skip("the kernels are interpreted in this process")
    return Launches(monkeypatch)


def test_a_step_is_one_launch_or_two(launches: Launches) -> None:
    """One where a program has all keys of a head; and nothing is copied to the device, or filled before."""
    for tokens, names in ((100, ["decode"]), (1000, ["decode", "decode_merge"])):
        launches.given.clear()
        decoded(*step_of(tokens, 1, torch.device("cpu")), ALiBi(6))
        assert launches.names == names
        assert launches.given[0][2]["tiles"] is None
    _, grid, given = launches.given[0]
    assert grid == (2, 2, 8)  # rows of the batch, heads of keys, and parts of 1,000 keys, of at least 128 each
    assert given["out"].shape == (8, 2, 6, 1, 16)


def test_rows_of_several_lengths_are_one_copy(launches: Launches) -> None:
    """Of a tensor that says where the tiles of each row are, and what they are."""
    positions = padded("lin", 40).with_layout()
    q, k, v = (torch.randn(3, h, n, 16) for h, n in ((6, 2), (2, 40), (2, 40)))
    decoded(q, k, v, ALiBi(6), query_positions=positions[-2:], key_positions=positions)
    ((_, _, given),) = launches.given
    numbers, step = given["tiles"].x.tolist(), len(operator.TILE)
    found = []
    for row in range(3):
        for n in range(numbers[row], numbers[row + 1]):
            start, stop, first, last, least, most, *_, apart = numbers[n * step : (n + 1) * step]
            pairs = itertools.product(range(start, stop), range(first, last))
            found += [(row, i, j, j - i + apart) for i, j in pairs if least <= j - i <= most]
    document, coords = positions.document.expand(3, -1), positions.coords.expand(3, -1)
    expected = [
        (row, i, j, int(coords[row, j] - coords[row, 38 + i]))
        for row, i, j in itertools.product(range(3), range(2), range(40))
        if document[row, j] == document[row, 38 + i] != -1 and j <= 38 + i
    ]
    assert sorted(found) == sorted(expected)


STEPS: dict[str, Callable[[], Scheme]] = {
    "ALiBi": lambda: ALiBi(12),
    "Shaw": lambda: Shaw(64, 16),
    "FoX": lambda: clocked(12),
    "FIRE": lambda: FIRE(12),
}


@pytest.mark.parametrize("name", STEPS)
def test_on_a_gpu_auto_takes_it_for_few_queries(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "missing", lambda: None)
    scheme = STEPS[name]()
    q, k = torch.empty(1, 12, 1, 64, dtype=torch.bfloat16), torch.empty(1, 3, 300, 64, dtype=torch.bfloat16)
    encoding = scheme(Positions.arange(1, start=299), Positions.arange(300))
    if name == "FoX":
        encoding = encoding.with_features({"clock": torch.zeros(1, 12, 1)}, {"clock": torch.zeros(1, 12, 300)})
    with torch.no_grad():
        *_, call = Request(q, k, k, encoding, options=Options(is_causal=True)).checked()
        there = replace(call, query=q.as_subclass(Elsewhere))
        assert choose.choose(there) == (backend.TRITON, choose.SPLIT)
        monkeypatch.setattr(backend, "missing", lambda: "Triton is not installed")
        assert choose.choose(there)[0].name in ("reference", "chunked")


# --- they compile -----------------------------------------------------------------------------------------------------


COMPILED: dict[str, tuple[Callable[[], Scheme], int]] = {  # and queries
    "line, of ragged rows": (lambda: ALiBi(16), 8),
    "Shaw": (lambda: Shaw(64, 16), 1),
    "clock": (lambda: clocked(16), 1),
    "FIRE": (lambda: FIRE(16), 1),
}
ROOM = 166_912  # bytes that a block may share on an A100


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.parametrize("name", COMPILED)
def test_they_compile_without_spills(
    name: str, launches: Launches, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (make, queries), tokens = COMPILED[name], 4096
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # the default until Triton 3.9, which warns without it
    mask = torch.ones(2, tokens, dtype=torch.bool)
    mask[0, :77] = queries == 1
    positions = Positions.padded(mask).with_layout()
    encoding = make()(positions[tokens - queries :], positions)
    if name == "clock":
        clock = torch.zeros(2, 16, tokens)
        encoding = encoding.with_features({"clock": clock[..., :queries]}, {"clock": clock})
    q, k = (torch.zeros(2, h, n, 64, dtype=torch.bfloat16) for h, n in ((16, queries), (4, tokens)))
    with torch.no_grad():
        posenc.attention(q, k, k, encoding, is_causal=True, backend="triton", key_norms=k.norm(dim=-1))
    assert launches.names == ["decode", "decode_merge"]
    for kernel, _, given in launches.given:
        figures = ceilings.figures_of(ceilings.compiled(kernel, given, 90), given)
        assert figures.spills == 0
        assert figures.shared <= ROOM


# --- keys that are not read -------------------------------------------------------------------------------------------


def steep(kind: str, heads: int) -> Scheme:
    """A term that falls by 2 from key to key."""
    scheme = clocked(heads) if kind == "a clock" else learned_slope(heads)
    if kind == "a line":
        with torch.no_grad():
            for parameter in scheme.parameters():
                parameter.fill_(math.log(2.0))
    return scheme


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")  # NumPy's, in the interpreter
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", ["a line", "a clock"])
def test_keys_that_cannot_count_are_not_read(kind: str, on: torch.device) -> None:
    """By the bound of `posenc.backends.blockwise`, from the norms of all keys: NaN in the first of 100 keys and values
    is not met, while one of them with a large norm is computed."""
    tokens, scheme = 100, steep(kind, 2).to(on)
    q, k, v = step_of(tokens, 2, on, 2, 1)
    encoding = scheme(Positions.arange(2, start=tokens - 2, device=on), Positions.arange(tokens, device=on))
    if kind == "a clock":
        clock = -2.0 * torch.arange(tokens, device=on).expand(2, 2, -1)
        encoding = encoding.with_features({"clock": clock[..., -2:]}, {"clock": clock})
    norms = F.pad(k.norm(dim=-1), (0, 7), value=torch.nan)[..., :-7]  # as in a cache with room for more

    def run(k: Tensor, v: Tensor, norms: Tensor | None = None, **how: Any) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            out = posenc.attention(
                q, k, v, encoding, is_causal=True, backend="triton", key_norms=norms, return_lse=True, **how
            )
        assert isinstance(out, tuple)
        return out

    whole = run(k, v)
    poisoned = [x.clone() for x in (k, v)]
    for x in poisoned:
        x[:, :, :32] = torch.nan
    for one, other in zip(run(*poisoned, norms), whole, strict=True):
        # What is left out has less than 2^-32 of the weight, and sums of weights are rounded.
        torch.testing.assert_close(one, other, rtol=8 * U, atol=8 * U * float(v.abs().max()))
    for how in ({"norms": None}, {"norms": norms, "skip_below": 0.0}):
        assert run(*poisoned, **how)[0].isnan().all()
    loud = k.clone()
    loud[:, :, 20] = 1200 * q[:, ::2, -1] / q[:, ::2, -1].square().sum(-1, keepdim=True)  # a score of 300
    expected = run(loud, v)
    assert (expected[1] - whole[1])[:, ::2, -1].min() > 1  # it counts
    for one, other in zip(run(loud, v, loud.norm(dim=-1)), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=8 * U, atol=8 * U * float(v.abs().max()))
