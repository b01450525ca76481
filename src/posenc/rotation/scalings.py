"""Scalings: how the frequencies of a rotary scheme are stretched, so that a model reads more than it was trained on.

A scaling is a value, given to a scheme as ``RoPE(head_dim, base, scaling=YaRN(4.0, 4096))``. It is called with the
frequencies theta (pairs,), theta_k = base^(-2k/d) with d = 2 pairs, and gives theta' and the factor of cos and sin:

    PositionInterpolation   theta_k / s                                          every pair alike
    NTKAware                theta_k s^(-2k/(d-2))                                the base becomes base s^(d/(d-2))
    DynamicNTK              NTKAware with s = f n/L - (f - 1) for n > L          the length n of each row counts
    YaRN                    fast pairs stay, slow ones are divided by s          cos and sin times 0.1 ln s + 1
    Llama3                  the same, with other bounds and no factor            Llama 3.1 and later
    LongRoPE                theta_k / lambda_k, a list for n <= L, one for n > L cos and sin times sqrt(1 + ln s/ln L)
    Proportional            theta_k for the first share of the pairs, else 0     p-RoPE

where s is the factor of lengths and L the length that the model was trained on. Where ``needs_lengths`` is true it is
called with the length of every row too, (rows, 1), and theta' is (rows, pairs): a row never depends on its neighbours,
and a cache keeps keys unrotated. Any function ``theta -> (theta', factor)`` is a scaling as well.

Shapes: theta float64 (pairs,), lengths float64 (rows, 1), theta' float64 (pairs,) or (rows, pairs), in radians per
position. Nothing is learned. Two scalings with the same arguments are equal.
Errors: ValueError for a factor below 1 (a scale of 0.25 in other codes is the factor 4 here), and as each class says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc.arguments import check_choice, check_flag, is_number, number, shown, whole

Scaling: TypeAlias = Callable[..., tuple[Tensor, Any]]
"""(theta[, lengths]) -> (theta', factor): one of these classes, or any function."""


class _Scaling:
    """What the scalings share: how they are written, and how their arguments are checked."""

    needs_lengths: ClassVar[bool] = False

    def __repr__(self) -> str:
        said = []
        for f in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, f.name)
            is_told = f.name in ("factor", "original_length") and value not in (None, 1.0)  # as Llama3's defaults
            if is_told or f.default is MISSING or value != f.default:
                said.append(f"{f.name}={_listed(value) if isinstance(value, tuple) else repr(value)}")
        return f"{type(self).__name__}({', '.join(said)})"

    def _set(self, **values: Any) -> None:
        """Keeps the checked values of a frozen dataclass."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _pairs(self, theta: Tensor) -> int:
        """How many pairs there are. ValueError for one: it does not say by what factor pairs follow one another."""
        if theta.numel() < 2:
            raise ValueError(f"{type(self).__name__} needs two pairs of channels at least, got {theta.numel()}")
        return theta.numel()

    def _lengths(self, lengths: Tensor | None) -> Tensor:
        if lengths is None:
            raise ValueError(
                f"lengths must be given: the frequencies of {type(self).__name__} depend on the length of each row"
            )
        return lengths


def _listed(values: tuple[float, ...]) -> str:
    """A list as far as it fits into a line."""
    if len(values) <= 8:
        return repr(list(values))
    return f"[{values[0]!r}, {values[1]!r}, ..., {values[-1]!r}] of {len(values)}"


def _at_least(least: int, name: str, value: Any) -> float:
    """The finite number from ``least`` on."""
    if value is not None and is_number(value) and least <= value < math.inf:
        return number(name, value)
    raise ValueError(f"{name} must be a finite number of at least {least}, got {shown(value)}")


@dataclass(frozen=True, repr=False)
class PositionInterpolation(_Scaling):
    """theta_k / s: every position counts as the s-th part of itself.

    ``factor`` = s, the wanted length by the trained one. Linear scaling; the model has to be fine-tuned for it.
    Source: Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation",
    equation 4.
    """

    factor: float

    def __post_init__(self) -> None:
        self._set(factor=_at_least(1, "factor", self.factor))

    def __call__(self, theta: Float64[Tensor, " pairs"]) -> tuple[Float64[Tensor, " pairs"], float]:
        """theta' and 1."""
        return theta / self.factor, 1.0


def _ntk(theta: Tensor, stretch: Any) -> Tensor:
    """theta_k stretch^(-2k/(d-2)): the first pair stays, the last is divided by the stretch."""
    k = torch.arange(theta.numel(), dtype=theta.dtype, device=theta.device)
    return theta * torch.pow(stretch, -k / (theta.numel() - 1))


@dataclass(frozen=True, repr=False)
class NTKAware(_Scaling):
    """theta_k s^(-2k/(d-2)): RoPE of the base base s^(d/(d-2)).

    ``factor`` = s. The fastest pair stays as it is and the slowest is divided by s, so that near tokens are told
    apart as before. ValueError for a single pair, which is both.
    Source: bloc97 2023, as Peng et al. 2023, "YaRN", have it in section 3.1, definition 1.
    """

    factor: float

    def __post_init__(self) -> None:
        self._set(factor=_at_least(1, "factor", self.factor))

    def __call__(self, theta: Float64[Tensor, " pairs"]) -> tuple[Float64[Tensor, " pairs"], float]:
        """theta' and 1."""
        self._pairs(theta)
        return _ntk(theta, self.factor), 1.0


@dataclass(frozen=True, repr=False)
class DynamicNTK(_Scaling):
    """NTK-aware scaling that grows with the text: by f n/L - (f - 1) for a row of n > L tokens, not at all for n <= L.

    ``factor`` = f, ``original_length`` = L. With f = 1 a row of n > L tokens is scaled by n/L, so a factor of 1 is the
    identity up to L alone. n is the row's own length: neither the batch's longest nor the longest seen so far, which
    transformers' models take. So all keys turn when the text grows, and a cache keeps them unrotated.
    ValueError for a single pair.
    Source: emozilla 2023, with the factor that transformers gave it; Peng et al. 2023, "YaRN", section 3.3.
    """

    needs_lengths: ClassVar[bool] = True
    factor: float
    original_length: int

    def __post_init__(self) -> None:
        self._set(
            factor=_at_least(1, "factor", self.factor),
            original_length=whole("original_length", self.original_length),
        )

    def __call__(
        self, theta: Float64[Tensor, " pairs"], lengths: Float64[Tensor, "rows 1"] | None = None
    ) -> tuple[Float64[Tensor, "rows pairs"], float]:
        """theta' of every row, and 1."""
        lengths = self._lengths(lengths)
        self._pairs(theta)
        stretch = self.factor * lengths / self.original_length - (self.factor - 1)
        return _ntk(theta, stretch.clamp(min=1)), 1.0


def _blend(theta: Tensor, factor: float, kept: Tensor) -> Tensor:
    """kept theta + (1 - kept) theta / factor."""
    return kept * theta + (1 - kept) * theta / factor


def _turns(theta: Tensor, length: int) -> Tensor:
    """How often each pair turns in a text of that length: L/wavelength = L theta/(2 pi)."""
    return length * theta / (2 * math.pi)


@dataclass(frozen=True, repr=False)
class YaRN(_Scaling):
    """Pairs that turn often in the trained text stay, those that turn less than once are divided by s.

    Formula, with ``factor`` = s, ``original_length`` = L, r_k = L theta_k/(2 pi) turns and gamma_k the share kept:

        theta'_k = gamma_k theta_k + (1 - gamma_k) theta_k / s
        gamma_k  = clip((r_k - beta_slow) / (beta_fast - beta_slow), 0, 1)           ramp "ratio", the paper's
        gamma_k  = 1 - clip((k - low) / (high - low), 0, 1)                          ramp "index", all codes'
        low, high = max(dim(beta_fast), 0), min(dim(beta_slow), d - 1)
        dim(n)   = the index k, not whole, that turns n times: d ln(L/(2 pi n)) / (2 ln base)

    ``truncate`` takes the floor of the first dim and the ceiling of the second (gpt-oss does not). The base is read off
    theta_1/theta_0 = base^(-2/d), so one pair alone is a ValueError for "index". Where low is not below high, pairs up
    to low stay and the others are divided.

    cos and sin, of queries and keys alike, are multiplied by 0.1 ln s + 1, so scores by its square. An
    ``attention_factor`` replaces that number. With ``mscale`` m and ``mscale_all_dim`` a it is
    (0.1 m ln s + 1) / (0.1 a ln s + 1), with m = 1 and a = 0 where one is left out: so DeepSeek's own code, whose
    models have m = a and multiply their softmax scale by (0.1 a ln s + 1)^2 besides; that is not done here.
    transformers overlooks the one where the other is left out.
    Errors: ValueError for beta_slow not below beta_fast.
    Source: Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models", section 3.2,
    definition 2, and section 3.4; read in the authors' code, in transformers', and in DeepSeek-V3's.
    """

    factor: float
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    ramp: Literal["index", "ratio"] = "index"
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None

    def __post_init__(self) -> None:
        check_choice("ramp", self.ramp, ("index", "ratio"))
        check_flag("truncate", self.truncate)
        fast, slow = (number(name, getattr(self, name), above=0) for name in ("beta_fast", "beta_slow"))
        if slow >= fast:
            raise ValueError(f"beta_slow must be below beta_fast, got {slow:g} and {fast:g}")
        given = {n: _at_least(0, n, v) for n in ("mscale", "mscale_all_dim") if (v := getattr(self, n)) is not None}
        if self.attention_factor is not None:
            given["attention_factor"] = number("attention_factor", self.attention_factor, above=0)
        self._set(
            factor=_at_least(1, "factor", self.factor),
            original_length=whole("original_length", self.original_length),
            beta_fast=fast,
            beta_slow=slow,
            **given,
        )

    @property
    def magnitude(self) -> float:
        """The factor of cos and sin."""
        if self.attention_factor is not None:
            return self.attention_factor
        of_each, of_all = 1.0 if self.mscale is None else self.mscale, self.mscale_all_dim or 0.0
        grown = 0.1 * math.log(self.factor)
        return (of_each * grown + 1) / (of_all * grown + 1)

    def _kept(self, theta: Float64[Tensor, " pairs"]) -> Float64[Tensor, " pairs"]:
        """gamma of every pair."""
        if self.ramp == "ratio":
            turns = _turns(theta, self.original_length)
            return ((turns - self.beta_slow) / (self.beta_fast - self.beta_slow)).clamp(0, 1)
        pairs = self._pairs(theta)
        k = torch.arange(pairs, dtype=theta.dtype, device=theta.device)
        per_index = torch.log(theta[0] / theta[1])  # 2 ln base / d
        low, high = (
            math.log(self.original_length / (2 * math.pi * turns)) / per_index
            for turns in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            low, high = low.floor(), high.ceil()
        low, high = low.clamp(min=0), high.clamp(max=2 * pairs - 1)
        width = torch.where(low < high, high - low, 0.001)
        return 1 - ((k - low) / width).clamp(0, 1)

    def __call__(self, theta: Float64[Tensor, " pairs"]) -> tuple[Float64[Tensor, " pairs"], float]:
        """theta' and the factor of cos and sin."""
        return _blend(theta, self.factor, self._kept(theta)), self.magnitude


@dataclass(frozen=True, repr=False)
class Llama3(_Scaling):
    """The scaling of Llama 3.1: YaRN's ramp over the ratio, from 1 to 4 turns, and no factor of cos and sin.

    Formula, with r_k = L theta_k/(2 pi): theta'_k = gamma_k theta_k + (1 - gamma_k) theta_k / s, and
    gamma_k = clip((r_k - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1), a step where both are equal,
    as in Llama 4 Scout.
    Errors: ValueError for low_freq_factor above high_freq_factor.
    Source: `apply_scaling` of meta-llama/llama-models, whose numbers are the defaults here.
    """

    factor: float = 8.0
    original_length: int = 8192
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def __post_init__(self) -> None:
        low, high = (number(n, getattr(self, n), above=0) for n in ("low_freq_factor", "high_freq_factor"))
        if low > high:
            raise ValueError(f"low_freq_factor must not be above high_freq_factor, got {low:g} and {high:g}")
        self._set(
            factor=_at_least(1, "factor", self.factor),
            original_length=whole("original_length", self.original_length),
            low_freq_factor=low,
            high_freq_factor=high,
        )

    def __call__(self, theta: Float64[Tensor, " pairs"]) -> tuple[Float64[Tensor, " pairs"], float]:
        """theta' and 1."""
        low, high = self.low_freq_factor, self.high_freq_factor
        over = _turns(theta, self.original_length) - low
        kept = (over / (high - low)).clamp(0, 1) if low < high else (over >= 0).to(theta.dtype)
        return _blend(theta, self.factor, kept), 1.0


@dataclass(frozen=True, repr=False)
class LongRoPE(_Scaling):
    """theta_k / lambda_k, with searched numbers lambda: a list for texts up to L and one for longer texts.

    ``short_factor`` and ``long_factor`` have one number for every pair. A row of more than ``original_length`` = L
    tokens takes the long list, whatever the other rows are and however many tokens the cache could hold. So all keys
    turn when the text grows past L, and a cache keeps them unrotated. cos and sin are multiplied by
    sqrt(1 + ln s/ln L) with ``factor`` = s, the wanted length by L, under either list; an ``attention_factor`` replaces
    that number; a pair of them is for the short list and for the long one (Phi-3.5-MoE). A model whose configuration
    has no factor means max_position_embeddings by original_max_position_embeddings. The paper's first tokens, which
    are not scaled at all, are in none of the published models and not here.
    Errors: ValueError for lists of another length than there are pairs, for numbers that are not above 0, and where
    neither factor nor attention_factor is given.
    Source: Ding et al. 2024, "LongRoPE", section 3 (lambda) and 4; the attention factor is Phi-3's code's.
    """

    needs_lengths: ClassVar[bool] = True
    short_factor: Sequence[float]
    long_factor: Sequence[float]
    original_length: int
    factor: float | None = None
    attention_factor: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        lists = {name: _numbers(name, getattr(self, name)) for name in ("short_factor", "long_factor")}
        short, long = map(len, lists.values())
        if short != long:
            raise ValueError(f"long_factor must have {short} numbers like short_factor, got {long}")
        if self.factor is None and self.attention_factor is None:
            raise ValueError("factor or attention_factor must be given, got None for both")
        given: dict[str, Any] = {}
        if self.factor is not None:
            given["factor"] = _at_least(1, "factor", self.factor)
        if self.attention_factor is not None:
            each = self.attention_factor
            if isinstance(each, tuple | list):
                if len(each) != 2:
                    raise ValueError(f"attention_factor must be a number, or one for each list, got {shown(each)}")
                given["attention_factor"] = tuple(number("attention_factor", one, above=0) for one in each)
            else:
                given["attention_factor"] = number("attention_factor", each, above=0)
        self._set(original_length=whole("original_length", self.original_length, least=2), **lists, **given)

    @property
    def magnitudes(self) -> tuple[float, float]:
        """The factor of cos and sin under the short list, and that under the long one."""
        if isinstance(self.attention_factor, Sequence):
            return self.attention_factor[0], self.attention_factor[1]
        if self.attention_factor is not None:
            return self.attention_factor, self.attention_factor
        assert self.factor is not None
        of_both = math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))
        return of_both, of_both

    def __call__(
        self, theta: Float64[Tensor, " pairs"], lengths: Float64[Tensor, "rows 1"] | None = None
    ) -> tuple[Float64[Tensor, "rows pairs"], float | Float64[Tensor, "rows 1 1"]]:
        """theta' of every row, and the factor of cos and sin: a number, or one for each row."""
        lengths = self._lengths(lengths)
        if theta.numel() != len(self.short_factor):
            raise ValueError(
                f"short_factor and long_factor must have {theta.numel()} numbers, one for each pair, "
                f"got {len(self.short_factor)}"
            )
        # Filled number by number: a list would be copied to a GPU in every call, and the GPU waited for.
        short, long = (
            torch.cat([theta.new_full((1,), each) for each in factors])
            for factors in (self.short_factor, self.long_factor)
        )
        is_long = lengths > self.original_length
        of_short, of_long = self.magnitudes
        factor = (
            of_short if of_short == of_long else torch.where(is_long, theta.new_full((), of_long), of_short)[..., None]
        )
        return theta / torch.where(is_long, long, short), factor


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise ValueError(f"{name} must be a number for each pair, got {shown(values)}")
    return tuple(number(f"{name}[{n}]", value, above=0) for n, value in enumerate(values))


@dataclass(frozen=True, repr=False)
class Proportional(_Scaling):
    """p-RoPE: the first int(p d // 2) pairs, the fastest, turn as they do, the others not at all.

    ``share`` = p within [0, 1]; 1 is RoPE and 0 is NoPE. A ``factor`` divides what is left of theta. It is not partial
    rotation: all d channels make up pairs, (k, k + d/2) in the half layout, and d stands in the exponent of the
    frequencies, while `RoPE` with rotary_dim pairs the first rotary_dim channels and has rotary_dim in the exponent.
    Source: Barbero et al. 2024, "Round and Round We Go! What makes Rotary Positional Encodings useful?", section 6;
    rounding and factor are those of transformers' "proportional" (Gemma 4).
    """

    share: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not is_number(self.share) or not 0 <= self.share <= 1:
            raise ValueError(f"share must be a number within [0, 1], got {shown(self.share)}")
        self._set(share=float(self.share), factor=_at_least(1, "factor", self.factor))

    def __call__(self, theta: Float64[Tensor, " pairs"]) -> tuple[Float64[Tensor, " pairs"], float]:
        """theta' and 1."""
        turning = int(self.share * (2 * theta.numel()) // 2)
        return theta * (torch.arange(theta.numel(), device=theta.device) < turning) / self.factor, 1.0
