"""Scalings of rotary frequencies, misread in the ways that codes and configurations misread them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posenc import (
    DynamicNTK,
    Llama3,
    LongRoPE,
    NTKAware,
    PositionInterpolation,
    Proportional,
    Resonance,
    RIFLEx,
    RoPE,
    Scheme,
    SoftClipping,
    YaRN,
)
from posenc.rotation import scalings
from tests.errors.wrong_calls import INF, NAN, NO_WORDS, Row, each, flags, numbers, sizes
from tests.mutants import Mutant, lines
from tests.schemes import test_scalings

RIGHT_GAMMA = YaRN._gamma
RIGHT_YARN = YaRN.__call__
RIGHT_LONG = LongRoPE.__call__
RIGHT_BLEND = scalings.blend
RIGHT_MAGNITUDE = YaRN._magnitude

RIGHT_LLAMA, RIGHT_SHARE = Llama3.__call__, Proportional.__call__


def frequencies() -> None:
    for case in test_scalings.CASES:
        test_scalings.test_frequencies_are_the_oracles(*case)


def by_length() -> None:
    for case in test_scalings.CASES:
        test_scalings.test_frequencies_by_length_are_the_oracles_below_at_and_above_the_threshold(*case)


def magnitudes() -> None:
    (mark,) = test_scalings.test_the_factor_of_cos_and_sin.pytestmark  # type: ignore[attr-defined]
    for scaling, factor in mark.args[1]:
        test_scalings.test_the_factor_of_cos_and_sin(scaling, factor)
    test_scalings.test_the_factor_of_longrope()


def decoding() -> None:
    for scaling in test_scalings.BY_LENGTH.values():
        test_scalings.test_decoding_from_a_cache_is_the_full_pass_at_every_length(scaling)


def dynamic_magnitudes() -> None:
    test_scalings.test_dynamic_yarn_lengthens_each_row_by_its_own_factor()


def shrinking(self: YaRN, theta: Tensor, lengths: Tensor | None = None) -> Any:
    """s = n/L, whatever the model was fine-tuned for."""
    return RIGHT_YARN(replace(self, factor=1.0), theta, lengths) if self.dynamic else RIGHT_YARN(self, theta)


def of_factor(self: YaRN, log_factor: Any) -> Any:
    return RIGHT_MAGNITUDE(self, log_factor.amax().expand_as(log_factor) if self.dynamic else log_factor)


def of(right: Callable[..., Any], **changed: Any) -> Callable[..., Any]:
    """The method of the scaling with other arguments."""
    return lambda self, *args: right(replace(self, **changed), *args)


def with_lengths(change: Callable[[Tensor], Tensor], right: Callable[..., Any]) -> Callable[..., Any]:
    """Of other lengths, where it is called with any."""
    return lambda self, theta, lengths=None: right(self, theta, *(() if lengths is None else (change(lengths),)))


def of_base(self: NTKAware, theta: Tensor) -> tuple[Tensor, float]:
    """The base times s, and not s^(d/(d-2))."""
    k = torch.arange(theta.numel(), dtype=theta.dtype)
    return theta * self.factor ** (-k / theta.numel()), 1.0


def partial_rotation(self: Proportional, theta: Tensor) -> tuple[Tensor, float]:
    """The share of the channels in the exponent too."""
    turning = int(self.share * theta.numel())
    k = torch.arange(theta.numel(), dtype=theta.dtype)
    base = theta[0] / theta[1]
    return torch.where(k < turning, base ** (-k * theta.numel() / max(turning, 1)), 0.0), 1.0


SWITCHED = property(lambda self: 1.0)
MUTANTS = (
    Mutant("ignores truncate", YaRN, "_gamma", of(RIGHT_GAMMA, truncate=True), frequencies),
    Mutant("is dynamic below its factor", YaRN, "__call__", shrinking, by_length),
    Mutant("has one factor of cos and sin for all rows", YaRN, "_magnitude", of_factor, dynamic_magnitudes),
    Mutant(
        "swaps the parts", scalings, "blend", lambda theta, others, kept: RIGHT_BLEND(others, theta, kept), frequencies
    ),
    Mutant("drops attention_factor", YaRN, "__call__", of(RIGHT_YARN, attention_factor=None), magnitudes),
    Mutant("does not lengthen", YaRN, "magnitude", SWITCHED, magnitudes),
    Mutant("stretches by a base of s alone", NTKAware, "__call__", of_base, frequencies),
    Mutant("has Llama's bounds swapped", Llama3, "__call__", of(RIGHT_LLAMA, high_freq_factor=8.0), frequencies),
    Mutant("is long from L on", LongRoPE, "__call__", with_lengths(lambda n: n + 1, RIGHT_LONG), by_length),
    Mutant("has one factor for both lists", LongRoPE, "magnitudes", property(lambda self: (1.25, 1.25)), magnitudes),
    Mutant("lets a cache keep turned keys", Scheme, "needs_raw_keys", property(lambda self: False), decoding),
    Mutant("rotates a part, not a proportion", Proportional, "__call__", partial_rotation, frequencies),
    *lines(
        frequencies,
        ("tapers from beside 1", SoftClipping, "__call__", "cumsum(-1) - 1", "cumsum(-1)"),
        ("clips those that turn once", SoftClipping, "__call__", "< 2 * math.pi", "< 4 * math.pi"),
        ("rounds periods up", Resonance, "__call__", ".round()", ".ceil()"),
        ("rounds no period", RIFLEx, "__call__", ".round()", ""),
        ("turns a whole period", RIFLEx, "__call__", "self.share * ", ""),
    ),
)

# -- what they refuse --------------------------------------------------------------------------------------------------

FROM_1 = (
    ("4", "'4'"), (True, "True"), (NAN, "nan"), (INF, "inf"), (torch.tensor(2.0), "torch.float32 ()"),
    (0, "0"), (0.25, "0.25"), (-4, "-4"),
)  # fmt: skip


def factors(call: Callable[..., Any], good: dict[str, Any]) -> list[Row]:
    return each(call, good, "factor", FROM_1, "a finite number of at least 1")


STRETCH = {"factor": 4, "original_length": 64}
LISTS = {"short_factor": [1.0, 2.0], "long_factor": [2.0, 3.0], "original_length": 64, "factor": 4.0}
THETA = torch.tensor([1.0, 0.1], dtype=torch.float64)
NEEDED = "lengths must be given: the frequencies of {} depend on the length of each row"
ONE_PAIR = "{} needs at least two pairs of channels, got 1"

OF_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
GIVEN: tuple[tuple[Any, str], ...] = (
    ("yarn", "scaling must be 'default', 'llama3', a dictionary such as …, or a scaling such as …, got 'yarn'"),
    ({}, "scaling['rope_type'] must be one of default, linear, dynamic, …, got None"),
    ({"rope_type": "yan", "factor": 2.0}, "scaling['rope_type'] must be one of default, …, got 'yan'"),
    (
        {"rope_type": "axial"},
        "scaling['rope_type'] must be of a text, got 'axial', by which models of images rotate by row and column: …",
    ),
    ({**OF_YARN, "type": "linear"}, "scaling['type'] contradicts rope_type 'yarn', got 'linear'"),
    (
        {**OF_YARN, "beta_fsat": 3},
        "scaling has the key 'beta_fsat' = 3, which rope_type 'yarn' does not read (did you mean 'beta_fast'?)",
    ),
    (
        {"rope_type": "yarn", "factr": 4.0},
        "scaling has the key 'factr' = 4.0, which rope_type 'yarn' does not read (did you mean 'factor'?)",
    ),
    ({**OF_YARN, "ramp": "ratio"}, "scaling has the key 'ramp' = 'ratio', which rope_type 'yarn' does not read"),
    (
        {**OF_YARN, "mscale": 1.0},
        "scaling['mscale'] is only read if both mscale and mscale_all_dim are above 0, got 1.0",
    ),
    ({**OF_YARN, "factor": None}, "scaling['factor'] must be a finite number above 0, got None"),
    (
        {**OF_YARN, "partial_rotary_factor": "half"},
        "scaling['partial_rotary_factor'] must be a finite number above 0, got 'half'",
    ),
    ({**OF_YARN, 3: 4}, "scaling has the key 3 = 4, which rope_type 'yarn' does not read"),
    ({"rope_type": "linear"}, "scaling['factor'] must be a finite number above 0, got None"),
    ({**OF_YARN, "factor": 0.5}, "factor must be a finite number of at least 1, got 0.5"),
    ({**OF_YARN, "rope_theta": 500.0}, "scaling['rope_theta'] must be the base, 100, got 500.0: pass it as base="),
    (
        {**OF_YARN, "partial_rotary_factor": 0.5},
        "scaling['partial_rotary_factor'] must be the share of rotated channels, 8 of 8, got 0.5: pass rotary_dim=4",
    ),
    (
        {"full_attention": OF_YARN, "sliding_attention": {"rope_type": "default"}},
        "scaling must be of one type of layers, got full_attention, sliding_attention: pass scaling['full_attention']",
    ),
)

SWAPPED = "factor must not be above original_length, …, got factor=128 and original_length=4: swap them"

REFUSED: dict[str, list[Row]] = {
    "PositionInterpolation": factors(PositionInterpolation, {}),
    "NTKAware": [
        Row(lambda: NTKAware(128, 4), SWAPPED),
        *factors(NTKAware, {}),
        *sizes(NTKAware, {"factor": 2}, "original_length"),
        Row(lambda: NTKAware(2)(THETA[:1]), ONE_PAIR.format("NTKAware")),
    ],
    "DynamicNTK": [
        Row(lambda: DynamicNTK(128, 4), SWAPPED),
        *factors(DynamicNTK, STRETCH),
        *sizes(DynamicNTK, STRETCH, "original_length"),
        Row(lambda: DynamicNTK(2, 64)(THETA), NEEDED.format("DynamicNTK")),
        Row(lambda: DynamicNTK(2, 64)(THETA[:1], THETA[:1, None]), ONE_PAIR.format("DynamicNTK")),
    ],
    "YaRN": [
        Row(lambda: YaRN(128, 4), SWAPPED),
        *factors(YaRN, STRETCH),
        *sizes(YaRN, STRETCH, "original_length"),
        *numbers(YaRN, STRETCH, "beta_fast", 0),
        *numbers(YaRN, STRETCH, "beta_slow", 0),
        *flags(YaRN, STRETCH, "truncate", "dynamic"),
        Row(
            lambda: YaRN(1, 64, dynamic=True, mscale_all_dim=1),
            "mscale_all_dim must be None with dynamic=True, got 1",
        ),
        Row(lambda: YaRN(1, 64, dynamic=True)(THETA), NEEDED.format("YaRN")),
        *each(YaRN, STRETCH, "ramp", NO_WORDS, "'index' or 'ratio'"),
        *each(YaRN, STRETCH, "attention_factor", [("1", "'1'"), (0, "0"), (INF, "inf")], "a finite number above 0"),
        *(
            row
            for name in ("mscale", "mscale_all_dim")
            for row in each(YaRN, STRETCH, name, [("1", "'1'"), (-1, "-1")], "a finite number of at least 0")
        ),
        Row(lambda: YaRN(4, 64, 1.0, 32.0), "beta_slow must be below beta_fast, got 32 and 1"),
        Row(lambda: YaRN(4, 64)(THETA[:1]), ONE_PAIR.format("YaRN")),
    ],
    "YaRN.ends": [Row(lambda: YaRN(4, 64).ends(THETA[:1]), ONE_PAIR.format("YaRN"))],
    "Llama3": [
        Row(lambda: Llama3(128, 4), SWAPPED),
        *factors(Llama3, STRETCH),
        *sizes(Llama3, STRETCH, "original_length"),
        *numbers(Llama3, STRETCH, "low_freq_factor", 0),
        *numbers(Llama3, STRETCH, "high_freq_factor", 0),
        Row(lambda: Llama3(8, 64, 4.0, 1.0), "low_freq_factor must not be above high_freq_factor, got 4 and 1"),
    ],
    "LongRoPE": [
        *factors(LongRoPE, LISTS),
        *sizes(LongRoPE, LISTS, "original_length"),
        Row(lambda: LongRoPE(**{**LISTS, "original_length": 1}), "original_length must be …at least 2, got 1"),
        *each(LongRoPE, LISTS, "short_factor", [("12", "'12'"), ([], "[]"), (2.0, "2.0")], "a number for each pair"),
        Row(lambda: LongRoPE([1.0, 0.0], [1.0, 1.0], 64, 4), "short_factor[1] must be …number above 0, got 0.0"),
        Row(lambda: LongRoPE([1.0], [1.0, 1.0], 64, 4), "long_factor must have 1 numbers like short_factor, got 2"),
        Row(lambda: LongRoPE([1.0], [1.0], 64), "factor or attention_factor must be given, got None for both"),
        Row(lambda: LongRoPE(**LISTS, attention_factor="1"), "attention_factor must be a finite …above 0, got '1'"),
        Row(
            lambda: LongRoPE(**LISTS, attention_factor=(1.0, 2.0, 3.0)),
            "attention_factor must be a number, or one for each list, got (1.0, 2.0, 3.0)",
        ),
        Row(lambda: LongRoPE(**LISTS)(THETA), NEEDED.format("LongRoPE")),
        Row(
            partial(LongRoPE(**LISTS), THETA[:1], THETA[:1, None]),
            "short_factor and long_factor must have 1 numbers, one for each pair, got 2",
        ),
    ],
    "SoftClipping": [
        Row(SoftClipping, "either original_length or pairs must be given, got None and None"),
        Row(lambda: SoftClipping(64, 20), "either original_length or pairs must be given, got 64 and 20"),
        *sizes(SoftClipping, {}, "original_length"),
        *sizes(SoftClipping, {}, "pairs"),
        Row(lambda: SoftClipping(64, scaling=2.0), "scaling must be a scaling, a function of theta or None, got 2.0"),
        Row(
            lambda: SoftClipping(64, scaling=DynamicNTK(2, 64))(THETA),
            NEEDED.format("DynamicNTK"),
        ),
    ],
    "Resonance": [
        Row(lambda: Resonance(YaRN), "scaling must be a scaling, a function of theta or None, got the class YaRN"),
    ],
    "RIFLEx": [
        Row(lambda: RIFLEx(64), "either pair or repeats_at must be given, got None and None"),
        Row(lambda: RIFLEx(64, 3, 48), "either pair or repeats_at must be given, got 3 and 48"),
        Row(lambda: RIFLEx(64, pair=-1), "pair must be a whole number of at least 0, got -1"),
        Row(lambda: RIFLEx(64, pair=2)(THETA), "pair must be within 0..1, got 2"),
        Row(lambda: RoPE(4, scaling=RIFLEx(64, pair=2)), "pair must be within 0..1, got 2"),
        Row(lambda: RIFLEx(64, repeats_at=0), "repeats_at must be a finite number above 0, got 0"),
        *sizes(RIFLEx, {"pair": 1}, "length"),
        *numbers(RIFLEx, {"length": 64, "pair": 1}, "share", 0),
    ],
    "Proportional": [
        *each(
            Proportional, {}, "share", [("1", "'1'"), (1.5, "1.5"), (-0.1, "-0.1"), (NAN, "nan"), (True, "True")],
            "a number within [0, 1]",
        ),
        *factors(Proportional, {"share": 0.5}),
    ],
}  # fmt: skip
