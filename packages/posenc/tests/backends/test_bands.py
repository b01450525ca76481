"""Distant pairs that are rotated differently: how a call falls into bands, and what is refused."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import posenc
from posenc import DualChunk, Positions, ReRoPE, RoPE, Scheme
from posenc.backends import bands
from posenc.backends.call import Call
from posenc.backends.request import Options, Request
from posenc.encoding.encoding import Encoding
from posenc.encoding.rotation import Band, Rotation
from tests import user_schemes
from tests.backends.operation_counts import READING, operations
from tests.backends.parity_cases import PLACES
from tests.rows import in_one_test

HEADS, KV_HEADS, HEAD_DIM, TOKENS = 4, 2, 6, 150
NO_SINGLE_ROTATION = (
    "the encoding rotates distant pairs differently, so queries and keys have no single rotation: pass them unrotated "
    "to attention, and cache unrotated keys (see Scheme.needs_raw_keys)"
)
WHOLE_ROWS = (
    "a score term that needs whole rows of scores cannot be composed with a scheme that rotates distant pairs "
    "differently"
)


def drawn(queries: int = TOKENS, keys: int = TOKENS) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    sizes = ((HEADS, queries), (KV_HEADS, keys), (KV_HEADS, keys))
    query, key, value = (torch.randn(2, h, n, HEAD_DIM, generator=generator, dtype=torch.float64) for h, n in sizes)
    return query, key, value


def called(scheme: Scheme, place: str, monkeypatch: pytest.MonkeyPatch, **how: object) -> Call:
    """The call that attention makes of it."""
    seen: list[Call] = []

    def keep(call: Call, backend: str) -> Callable[[Call], tuple[Tensor, Tensor | None]]:
        seen.append(call)
        return lambda call: (call.value[:, :, :1].expand(-1, HEADS // KV_HEADS, len(call.query_positions), -1), None)

    x, y = PLACES[place].positions(TOKENS)
    with monkeypatch.context() as patch:
        patch.setattr(bands, "runner", keep)
        encoding = scheme(x, y, dtype=torch.float64)
        posenc.attention(*drawn(len(x), len(y)), encoding, **how)  # type: ignore[arg-type]
    return seen[0]


EVEN = ("text", "offset", "cache", "decoding", "padded left and right", "packed", "position ids", "a gap")
UNEVEN = ("a prefix", "permuted", "fractional", "coordinates backwards", "other keys")
SCHEMES = {"distances": ReRoPE(HEAD_DIM, 40), "chunks": DualChunk(HEAD_DIM, 40, 15)}
SCHEMES["chunks"].looks_back = None  # bands by chunks need no causal mask, whatever the scheme says


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("place", [*EVEN, *UNEVEN])
@pytest.mark.parametrize("kind", SCHEMES)
def test_each_pair_is_in_one_band_and_no_text_needs_a_mask(
    kind: str, place: str, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = called(SCHEMES[kind], place, monkeypatch, is_causal=causal)
    parts = [part for _, part in bands.calls(call)]
    assert [part.attn_mask is None for part in parts] == [place in EVEN] * len(call.bands) + [place in EVEN]
    every = torch.ones(2, 1, call.query.size(2), call.key.size(2), dtype=torch.long)
    count = sum(every if (seen := part.visible()) is None else every * seen for part in parts)
    seen = call.visible()
    assert torch.equal(torch.as_tensor(count), every if seen is None else every * seen)
    apart, ends = call.apart()[:, None], [*(band.reach for band in call.bands), torch.inf]
    for part, start, end in zip(parts, [-torch.inf, *ends], ends, strict=False):
        in_band = part.visible()
        assert in_band is not None
        assert not (in_band & ((apart < start) | (apart >= end))).any()


def test_a_band_that_a_window_hides_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for window, expected in ((40, 1), (41, 2)):
        call = called(SCHEMES["distances"], "text", monkeypatch, is_causal=True, window=window)
        assert len(bands.calls(call)) == expected


@pytest.mark.parametrize("chunk", [48, 512], ids=lambda chunk: f"chunks of {chunk}")
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_selecting_bands_reads_nothing_and_is_the_same_for_any_number_of_chunks(device: str, chunk: int) -> None:
    """Operations are those that count chunks, for documents and for orders: the layouts follow without values."""
    q = torch.empty(1, 1, 2048, HEAD_DIM, device=device)
    *_, call = Request(q, q, q, DualChunk(HEAD_DIM, chunk, 8), options=Options(is_causal=True)).checked()
    names = operations(lambda: bands.selections(call))
    assert not READING.intersection(names)
    assert len(names) <= 10


@pytest.mark.parametrize("backend", ["chunked", "native"])
def test_layers_of_a_pass_share_what_selects_the_bands(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what the backend keeps for each band, but none of a layer's numbers."""
    made: list[Call] = []
    right = bands.selections
    monkeypatch.setattr(bands, "selections", lambda call: made.append(call) or right(call))
    query, key, value = drawn()
    encoding = SCHEMES["chunks"](Positions.arange(TOKENS), dtype=torch.float64)
    found = [
        posenc.attention(factor * query, factor * key, value, encoding, is_causal=True, backend=backend)
        for factor in (1, 2, 3)
    ]
    assert len(made) == 1
    (plan,) = encoding.plans.values()
    assert plan.store.keys() == {"band 0", "band 1", "band 2"}
    for factor, out in zip((1, 2, 3), found, strict=True):
        truth = posenc.attention(factor * query, factor * key, value, encoding, is_causal=True, backend="reference")
        torch.testing.assert_close(out, truth)


def test_it_is_said_how_each_band_is_run() -> None:
    query, key, value = drawn()
    text = Positions.arange(TOKENS)
    told = posenc.explain(query, key, value, SCHEMES["chunks"](text, dtype=torch.float64), is_causal=True)
    assert [name for name, _ in told.bands] == [
        "near pairs",
        "pairs 1 chunks of 25 or more apart",
        "pairs 2 chunks of 25 or more apart",
    ]
    assert "each band is a separate call, its pairs selected by positions" in str(told)
    assert all(f"{name}: {each}" in str(told) for name, each in told.bands)
    prefix, _ = PLACES["a prefix"].positions(TOKENS)
    told = posenc.explain(query, key, value, SCHEMES["distances"](prefix, dtype=torch.float64), is_causal=True)
    assert "selected by a mask" in str(told)
    few = posenc.explain(*(x[:, :, :9] for x in (query, key, value)), SCHEMES["distances"], is_causal=True)
    assert few.backend == "reference"
    assert few.refusals["sdpa"] == "near pairs: the fused kernel does not return the log-sum-exp"


# --- what is refused --------------------------------------------------------------------------------------------------


def as_it_is(x: Tensor) -> Tensor:
    return x


def wider(x: Tensor) -> Tensor:
    return torch.cat((x, x), -1)


WIDENING = Rotation(as_it_is, as_it_is, bands=(Band(2, wider, wider),))
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: ReRoPE(HEAD_DIM)(Positions.arange(3), dtype=torch.float64).rotate_key(drawn(3, 3)[1]), NO_SINGLE_ROTATION),
    (lambda: ReRoPE(HEAD_DIM)(Positions.arange(3)).rotate(drawn(3, 3)[0], drawn(3, 3)[1]), NO_SINGLE_ROTATION),
    (lambda: ReRoPE(HEAD_DIM)(Positions.arange(3)).cos_sin(), NO_SINGLE_ROTATION),
    (lambda: (ReRoPE(HEAD_DIM) + user_schemes.TrialCoPE(6, HEAD_DIM))(Positions.arange(3)), WHOLE_ROWS),
    (
        lambda: ReRoPE(HEAD_DIM) + RoPE(HEAD_DIM),
        "ReRoPE and RoPE rotate the same channels, so every token would be rotated twice: use one of them, or ",
    ),
    (
        lambda: Encoding(
            *[Positions.arange(3)] * 2,
            rotations=(Rotation(as_it_is, as_it_is, bands=(Band(2, as_it_is, as_it_is),)),) * 2,
        ),
        "only one scheme can rotate distant pairs differently, got two that do",
    ),
    (
        lambda: Rotation(as_it_is, as_it_is, bands=(Band(2, as_it_is, as_it_is), Band(2, as_it_is, as_it_is))),
        "reach must be a whole number of at least 3, got 2",
    ),
    (lambda: Rotation(as_it_is, as_it_is, bands=(3,)), "bands must be a Band, got 3"),
    (lambda: Rotation(as_it_is, as_it_is, chunk=0), "chunk must be a whole number of at least 1, got 0"),
    (lambda: Rotation(as_it_is, as_it_is, chunk=4), "chunk must be None without bands, got 4"),
    (
        lambda: Encoding(*[Positions.arange(3)] * 2, rotations=(WIDENING,)).rotate_bands(*drawn(3, 3)[:2]),
        f"bands must give queries and keys the width that they have for near pairs, {HEAD_DIM}, got [",
    ),
    (
        lambda: posenc.attention(*drawn(), SCHEMES["distances"], is_causal=True, backend="sdpa"),
        "backend 'sdpa' cannot run this: the fused kernel does not return the log-sum-exp, which is needed to "
        "merge near and distant pairs, which are rotated differently; these can: ",
    ),
    (
        lambda: posenc.attention(*drawn(), SCHEMES["distances"], is_causal=True, backend="fast"),
        "backend must be 'auto', ",
    ),
]


@in_one_test(REFUSED)
def test_what_cannot_be_is_refused_by_name(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        call()
