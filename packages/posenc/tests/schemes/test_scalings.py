"""Scalings are their scalar loops', hold their laws, depend on a row's own length alone, and decode from a cache."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import (
    MLA,
    DualChunk,
    DynamicNTK,
    LeRoPE,
    Llama3,
    LongRoPE,
    NTKAware,
    PositionInterpolation,
    Positions,
    Proportional,
    QueryScale,
    Resonance,
    RIFLEx,
    RoPE,
    Scheme,
    SoftClipping,
    YaRN,
)
from posenc.models import Decoder, KVCache
from posenc.rotary import Rotary
from posenc.rotation.phases import frequencies
from posenc.schemes.entry import Shape
from tests.oracles import rope, scalings, yarn
from tests.rounding import of_angles, of_sums

Scaling = Callable[..., tuple[Tensor, Any]]
CASES = [(8, 10_000.0, 64), (12, 313.0, 100), (64, 150_000.0, 4096), (128, 500_000.0, 8192), (96, 10_000.0, 2048)]
# A power of the base is off by its exponent's rounding times log(base); 16 is for scalings that take another power.
POWER = 16 * (1 + math.log(500_000)) * 2.0**-52
DIMS = pytest.mark.parametrize(("dim", "base", "trained"), CASES)


def lists(dim: int) -> tuple[list[float], list[float]]:
    """Two lists for the pairs of ``dim`` channels, neither of which is the other's multiple."""
    return [1 + 0.01 * k for k in range(dim // 2)], [1 + 0.5 * k**1.5 for k in range(dim // 2)]


def found(scaling: Scaling, dim: int, base: float, length: int | None = None) -> Tensor:
    """theta of one row."""
    theta = frequencies(dim, base)
    if length is None:
        return scaling(theta)[0]
    (row,) = scaling(theta, torch.tensor([[length]], dtype=torch.float64))[0]
    return row


def same(one: Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(one, torch.tensor(expected, dtype=torch.float64), rtol=POWER, atol=0)


def close(one: Tensor, expected: list[float]) -> None:
    """Also of numbers that are nearly 0: of 1 + cos(pi t) a rounding remains."""
    torch.testing.assert_close(one, torch.tensor(expected, dtype=torch.float64), rtol=POWER, atol=POWER)


# -- the formulas ------------------------------------------------------------------------------------------------------


@DIMS
def test_frequencies_are_the_oracles(dim: int, base: float, trained: int) -> None:
    for s in (1.0, 1.7, 8.0, 40.0):
        same(found(PositionInterpolation(s), dim, base), scalings.linear(dim, base, s))
        same(found(NTKAware(s), dim, base), scalings.ntk(dim, base, s))
        same(found(NTKAware(s, trained), dim, base), scalings.by_parts(dim, base, s, trained))
        same(found(Llama3(s, trained), dim, base), scalings.llama3(dim, base, s, trained))
        for low, high in ((0.5, 9.0), (1.0, 1.0)):
            same(found(Llama3(s, trained, low, high), dim, base), scalings.llama3(dim, base, s, trained, low, high))
        for fast, slow in ((32.0, 1.0), (20.0, 0.5)):
            for truncate in (True, False):
                of_index = yarn.frequencies(dim, base, s, trained, fast, slow, truncate)
                same(found(YaRN(s, trained, fast, slow, truncate=truncate), dim, base), of_index)
            of_ratio = scalings.ratio(dim, base, s, trained, fast, slow)
            same(found(YaRN(s, trained, fast, slow, ramp="ratio"), dim, base), of_ratio)
    for share in (0.0, 0.25, 0.3, 0.5, 0.7, 1.0):
        same(found(Proportional(share), dim, base), scalings.proportional(dim, base, share))
    theta = scalings.linear(dim, base, 1.0)
    for scaling, before in ((None, theta), (YaRN(4.0, trained), yarn.frequencies(dim, base, 4.0, trained))):
        same(found(Resonance(scaling), dim, base), scalings.resonance(before))
        for length in (6, trained // 3, trained, 10**9):
            close(found(SoftClipping(length, scaling=scaling), dim, base), scalings.clipped(before, length))
        for pairs in (1, 2, 5, 99):
            close(found(SoftClipping(pairs=pairs, scaling=scaling), dim, base), scalings.clipped(before, None, pairs))
    for repeats_at in (6.0, 34.53, trained / 3, 10.0**9):  # 34.53 is nearer to 6.28 than to 62.8, and to 63 than to 6
        k, expected = scalings.riflex(dim, base, 2 * trained, repeats_at)
        same(found(RIFLEx(2 * trained, repeats_at=repeats_at), dim, base), expected)
        same(found(RIFLEx(2 * trained, pair=k), dim, base), expected)


@DIMS
def test_frequencies_by_length_are_the_oracles_below_at_and_above_the_threshold(
    dim: int, base: float, trained: int
) -> None:
    short, long = lists(dim)
    of_lists = LongRoPE(short, long, trained, factor=4)
    for length in (1, trained - 1, trained, trained + 1, 4 * trained):
        for s in (1.0, 2.0, 6.5):
            of_length = scalings.dynamic(dim, base, s, trained, length)
            same(found(DynamicNTK(s, trained), dim, base, length), of_length)
            stretched = max(s, length / trained)
            of_yarn = yarn.frequencies(dim, base, stretched, trained)
            same(found(YaRN(s, trained, dynamic=True), dim, base, length), of_yarn)
        of_list = scalings.longrope(dim, base, short, long, trained, length)
        same(found(of_lists, dim, base, length), of_list)


def test_dynamic_yarn_lengthens_each_row_by_its_own_factor() -> None:
    theta, lengths = frequencies(16, 50.0), torch.tensor([[3.0], [8.0], [10.0], [40.0]], dtype=torch.float64)
    _, longer = YaRN(1, 8, dynamic=True)(theta, lengths)
    assert longer.shape == (4, 1, 1)
    same(longer.flatten(), [yarn.magnitude(n / 8) for n in (3, 8, 10, 40)])
    _, tuned = YaRN(2, 8, dynamic=True, mscale=0.5)(theta, lengths)
    same(tuned.flatten(), [0.05 * math.log(max(2, n / 8)) + 1 for n in (3, 8, 10, 40)])
    assert YaRN(1, 8, dynamic=True, attention_factor=1.5)(theta, lengths)[1] == 1.5


def test_where_the_ramp_has_no_width() -> None:
    """Pairs up to low stay: all where the slowest turns often enough, the first where the fastest never turns once."""
    # Two operations on either side.
    torch.testing.assert_close(found(YaRN(4, 10**9), 8, 10.0), frequencies(8, 10.0), rtol=4 * 2.0**-52, atol=0)
    theta = frequencies(8, 10_000.0)
    torch.testing.assert_close(found(YaRN(4, 6), 8, 10_000.0), torch.cat((theta[:1], theta[1:] / 4)))


@pytest.mark.parametrize(
    ("scaling", "factor"),
    [
        (YaRN(8, 64), 0.1 * math.log(8) + 1),
        (YaRN(1, 64), 1.0),
        (YaRN(40, 64, attention_factor=1.0), 1.0),
        (YaRN(40, 64, mscale=1.0, mscale_all_dim=1.0), 1.0),
        (YaRN(40, 64, attention_factor=1.5, mscale=0.707), 1.5),
        (YaRN(40, 64, mscale=0.707, mscale_all_dim=0.5), (0.0707 * math.log(40) + 1) / (0.05 * math.log(40) + 1)),
        # As in DeepSeek's own code one alone counts: transformers passes over it.
        (YaRN(40, 64, mscale=0.707), 0.0707 * math.log(40) + 1),
        (YaRN(40, 64, mscale_all_dim=0.5), (0.1 * math.log(40) + 1) / (0.05 * math.log(40) + 1)),
        (YaRN(40, 64, mscale=0.0), 1.0),
        (Llama3(), 1.0),
        (PositionInterpolation(4), 1.0),
        (NTKAware(4), 1.0),
        (Proportional(0.5), 1.0),
        (SoftClipping(64), 1.0),
        (Resonance(YaRN(8, 64)), 0.1 * math.log(8) + 1),
        (RIFLEx(64, pair=1), 1.0),
    ],
    ids=repr,
)
def test_the_factor_of_cos_and_sin(scaling: Scaling, factor: float) -> None:
    assert scaling(frequencies(8, 10_000.0))[1] == pytest.approx(factor, rel=1e-15)


def test_the_factor_of_longrope() -> None:
    short, long = lists(8)
    lengths = torch.tensor([[64.0], [65.0]], dtype=torch.float64)
    for arguments, expected in (
        ({"factor": 32}, scalings.longrope_magnitude(32, 64)),
        ({"factor": 1}, 1.0),
        ({"factor": 32, "attention_factor": 1.25}, 1.25),
    ):
        assert LongRoPE(short, long, 64, **arguments)(frequencies(8, 10_000.0), lengths)[1] == pytest.approx(expected)
    each = LongRoPE(short, long, 64, attention_factor=(1.25, 1.5))(frequencies(8, 10_000.0), lengths)[1]
    assert each.flatten().tolist() == [1.25, 1.5]


# -- the laws ----------------------------------------------------------------------------------------------------------


def outputs(scheme: posenc.Scheme, rows: int = 2, tokens: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(rows, 3, tokens, 8, dtype=torch.float64, generator=generator) for _ in range(3))
    out = posenc.attention(q, k, v, scheme, is_causal=True)
    assert isinstance(out, Tensor)
    return out


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_queries_and_keys_are_turned_and_lengthened_as_the_oracle_has_it(layout: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k = (torch.randn(1, 2, 5, 10, dtype=torch.float64, generator=generator) for _ in range(2))
    positions = Positions.arange(5, start=70)
    scheme = RoPE(10, 50.0, layout, rotary_dim=8, scaling=YaRN(8, 64))
    turned = scheme(positions, dtype=torch.float64).rotate(q, k)
    for x, found_x in zip((q, k), turned, strict=True):
        expected = yarn.rotate_all(
            x, positions.coords.tolist(), factor=8, original_length=64, base=50.0, layout=layout, rotary_dim=8
        )
        bound = 4 * of_angles(torch.float64, 75, x)  # two products on either side
        torch.testing.assert_close(found_x, expected, rtol=0, atol=bound)


# -- by length, row by row ---------------------------------------------------------------------------------------------

TRAINED = 6
BY_LENGTH = {
    "dynamic": DynamicNTK(2, TRAINED),
    "dynamic yarn": YaRN(1, TRAINED, dynamic=True),
    "longrope": LongRoPE(*lists(8), TRAINED, factor=4),
    "resonance of dynamic yarn": Resonance(YaRN(1, TRAINED, dynamic=True)),
    "clipping of dynamic": SoftClipping(pairs=2, scaling=DynamicNTK(2, TRAINED)),
    "longrope, two factors": LongRoPE(*lists(8), TRAINED, attention_factor=(1.1, 1.3)),
}
OVER = pytest.mark.parametrize("scaling", BY_LENGTH.values(), ids=BY_LENGTH.keys())


@OVER
def test_a_row_is_turned_by_its_own_length(scaling: Scaling) -> None:
    """Rows of 1 .. 9 tokens, padded left or right beside one another, are each as the row is alone."""
    scheme, lengths = RoPE(8, 50.0, scaling=scaling), torch.arange(1, 10)
    for mask in (torch.arange(9) < lengths[:, None], torch.arange(9) >= 9 - lengths[:, None]):
        cos, sin = scheme(Positions.padded(mask), dtype=torch.float64).cos_sin()
        for row, length in enumerate(lengths.tolist()):
            alone = scheme(Positions.arange(length), dtype=torch.float64).cos_sin()
            torch.testing.assert_close((cos[row][mask[row]], sin[row][mask[row]]), (alone[0][0], alone[1][0]))


@OVER
def test_decoding_from_a_cache_is_the_full_pass_at_every_length(scaling: Scaling) -> None:
    check_decoding(RoPE(8, 50.0, scaling=scaling))


@pytest.mark.parametrize("form", ["chunkllama", "qwen2_5_1m"])
def test_queries_scaled_by_the_length_of_the_text_are_decoded_likewise(form: Any) -> None:
    """With cached keys that are rotated, or, of dual chunk attention, not."""
    scale = QueryScale(form, length=4)
    assert not (RoPE(8) + scale).needs_raw_keys
    check_decoding(RoPE(8) + scale)
    check_decoding(DualChunk(8, 3, 1) + scale)


@torch.no_grad()
def check_decoding(position: Scheme) -> None:
    """Of rows of different lengths, past the threshold one after the other. In one layer: what a deeper one reads was
    made when the text was shorter, and a cache cannot make it anew."""
    torch.manual_seed(0)
    model = Decoder(11, 16, 1, 2, position=position).double().eval()
    tokens = torch.randint(11, (3, 10))
    mask = torch.arange(10) >= torch.tensor([[0], [3], [5]])  # 10, 7 and 5 tokens
    positions, cache = Positions.padded(mask), KVCache()
    for start, stop in ((0, 6), (6, 7), (7, 9), (9, 10)):
        step = model(tokens[:, start:stop], positions[start:stop], cache=cache)
        full = model(tokens[:, :stop], positions[:stop])
        bound = of_sums(torch.float64, 6 * 16 + 64 + 10, full, score=16)  # projections, hidden units, keys
        torch.testing.assert_close(step[:, -1], full[:, -1], rtol=0, atol=bound)
        for row in range(3):
            here = mask[row, :stop]
            alone = model(tokens[row, :stop][here][None])
            torch.testing.assert_close(step[row, -1], alone[0, -1], rtol=0, atol=bound)


# -- as values ---------------------------------------------------------------------------------------------------------


def test_a_repr_says_what_it_is() -> None:
    assert repr(YaRN(4, 64)) == "YaRN(factor=4.0, original_length=64)"
    assert repr(YaRN(4, 64, truncate=False, attention_factor=1)) == (
        "YaRN(factor=4.0, original_length=64, truncate=False, attention_factor=1.0)"
    )
    assert repr(Llama3()) == "Llama3(factor=8.0, original_length=8192)"
    assert repr(Proportional(0.5)) == "Proportional(share=0.5)"
    assert repr(LongRoPE([1.0] * 9, [2] * 9, 64, 4)) == (
        "LongRoPE(short_factor=[1.0, 1.0, ..., 1.0] of 9, crc32 7731acfc, "
        "long_factor=[2.0, 2.0, ..., 2.0] of 9, crc32 be4df9e6, original_length=64, "
        "factor=4.0)"
    )
    middle = LongRoPE(
        [*[1.0] * 4, 3.0, *[1.0] * 4], [2] * 9, 64, 4
    )  # by their repr, patched models know their scalings
    assert repr(middle) != repr(LongRoPE([1.0] * 9, [2] * 9, 64, 4))


LENGTH = {"original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("given", "scaling"),
    [
        ("default", None),
        ("llama3", Llama3()),
        ({"rope_type": "default", "rope_theta": 50.0}, None),
        ({"rope_type": "linear", "factor": 4}, PositionInterpolation(4)),
        ({"type": "dynamic", "factor": 4, **LENGTH}, DynamicNTK(4, 64)),
        ({"rope_type": "yarn", "type": "yarn", "factor": 4, **LENGTH, "beta_fast": None}, YaRN(4, 64)),
        ({"rope_type": "yarn", "factor": 4, **LENGTH, "truncate": None}, YaRN(4, 64, truncate=False)),
        ({"rope_type": "yarn", "factor": 4, **LENGTH, "finetuned": True}, YaRN(4, 64)),
        (
            {"rope_type": "yarn", "factor": 4, **LENGTH, "mscale": 0.7, "mscale_all_dim": 1.0},
            YaRN(4, 64, mscale=0.7, mscale_all_dim=1.0),
        ),
        (
            {"rope_type": "llama3", "factor": 4, "low_freq_factor": 1.0, "high_freq_factor": 8.0, **LENGTH},
            Llama3(4, 64, 1.0, 8.0),
        ),
        (
            dict(zip(("short_factor", "long_factor"), lists(8), strict=True), rope_type="longrope", factor=4, **LENGTH),
            LongRoPE(*lists(8), 64, factor=4),
        ),
        ({"rope_type": "proportional", "partial_rotary_factor": 0.5}, Proportional(0.5)),
    ],
)
def test_the_dictionary_of_transformers_is_a_scaling(given: Any, scaling: Any) -> None:
    kept = copy.deepcopy(given)
    for scheme in (RoPE(8, 50.0, scaling=given), LeRoPE(8, 50.0, scaling=given), MLA(12, 8, 50.0, scaling=given)):
        assert scheme.scaling == scaling
    assert given == kept
    assert RoPE(16, 50.0, rotary_dim=4, scaling={"rope_type": "linear", "factor": 2, "partial_rotary_factor": 0.25})


def test_a_function_of_ones_own_is_a_scaling() -> None:
    halved = RoPE(8, scaling=lambda theta: (theta / 2, 1.0))
    torch.testing.assert_close(outputs(halved), outputs(RoPE(8, scaling=PositionInterpolation(2))))


@pytest.mark.parametrize("entry", [e for e in posenc.catalog() if issubclass(e.scheme, Rotary)], ids=lambda e: e.name)
def test_every_rotary_scheme_heeds_a_scaling_that_is_set_later(entry: Any) -> None:
    """Those with frequencies of their own too."""
    scheme = entry.build(Shape(48, 2, 24, 64))
    assert scheme.frequencies()[0][..., 0] != 0
    scheme.scaling = lambda theta: (theta * 0, 1.0)
    assert scheme.frequencies()[0][..., 0] == 0


def test_rope_of_two_channels_says_what_it_lacks() -> None:
    for scaling in (NTKAware(2), DynamicNTK(2, 4), YaRN(2, 4)):
        with pytest.raises(ValueError, match=f"{type(scaling).__name__} needs at least two pairs of channels, got 1"):
            RoPE(2, scaling=scaling)(Positions.arange(3))
    assert rope.frequencies(2) == found(YaRN(2, 4, ramp="ratio", beta_fast=0.5, beta_slow=0.25), 2, 50.0).tolist()
