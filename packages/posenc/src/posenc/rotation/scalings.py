"""Scalings of rotary frequencies, which extend the context of a model beyond its training length.

Pass a scaling to a scheme: ``RoPE(head_dim, base, scaling=YaRN(4.0, 4096))``. It is called with the frequencies theta
(pairs,), theta_k = base^(-2k/d) with d = 2 pairs, and returns theta' and a factor of cos and sin:

    PositionInterpolation   theta_k / s                                          the same for every pair
    NTKAware                theta_k s^(-2k/(d-2))                                the base becomes base s^(d/(d-2))
    DynamicNTK              NTKAware with s = f n/L - (f - 1) for n > L          depends on the length n of each row
    YaRN                    high frequencies stay, low ones are divided by s     cos and sin times 0.1 ln s + 1
    Llama3                  the same, with other limits and no factor            Llama 3.1 and later
    LongRoPE                theta_k / lambda_k, a list for n <= L, one for n > L cos and sin times sqrt(1 + ln s/ln L)
    Proportional            theta_k for the first share of the pairs, else 0     p-RoPE
    SoftClipping            theta_k for fast pairs, and less and less down to 0  CoPE, clipped RoPE
    Resonance               2 pi / round(2 pi / theta_k)                         periods of whole numbers of tokens
    RIFLEx                  theta_k but for one pair, which has 0.9 2 pi / L'    longer videos, on the axis of time

where s is the factor of lengths, L the training length and L' that of the text or video; NTKAware may also be by parts,
and YaRN dynamic. If ``needs_lengths`` is true, the scaling is also called with the length of every row, (rows, 1), and
theta' is (rows, pairs): rows are independent of one another, and a cache keeps unrotated keys. Any function ``theta ->
(theta', factor)`` is a scaling too.

Shapes: theta float64 (pairs,), lengths float64 (rows, 1), theta' float64 (pairs,) or (rows, pairs), in radians per
position. Nothing is learned. Two scalings with the same arguments are equal.
Errors: ValueError for a factor below 1 (a scale of 0.25 in other code is the factor 4 here), and as each class states.
"""

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc.arguments import check_choice, check_flag, is_number, number, shown, whole


def ntk(theta: Tensor, stretch: Any) -> Tensor:
    """theta_k stretch^(-2k/(d-2)): the first pair is unchanged, the last is divided by ``stretch``."""
    k = torch.arange(theta.numel(), dtype=theta.dtype, device=theta.device)
    return theta * torch.pow(stretch, -k / (theta.numel() - 1))


def blend(theta: Tensor, others: Tensor, gamma: Tensor) -> Tensor:
    """kept theta + (1 - kept) others."""
    return gamma * theta + (1 - gamma) * others


def turns(theta: Tensor, length: int) -> Tensor:
    """The number of full rotations of each pair over the length: L/wavelength = L theta/(2 pi)."""
    return length * theta / (2 * math.pi)


def ends(theta: Tensor, length: int, fast: float, slow: float, truncate: bool = True) -> tuple[Tensor, Tensor]:
    """The indices of the pairs that turn ``fast`` and ``slow`` times over the length: low and high of `YaRN`.

    The base is computed from the first two pairs.
    """
    per_index = torch.log(theta[0] / theta[1])  # 2 ln base / d
    low, high = (math.log(length / (2 * math.pi * n)) / per_index for n in (fast, slow))
    if truncate:
        low, high = low.floor(), high.ceil()
    return low.clamp(min=0), high.clamp(max=2 * theta.numel() - 1)


def mscale(log_factor: Any, m: float) -> Any:
    """0.1 m ln s + 1, as in YaRN and DeepSeek's code, for ln s, a number or a tensor."""
    return 0.1 * m * log_factor + 1


def by_index(theta: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """1 - clip((k - low) / (high - low), 0, 1): from 1 for pairs up to low to 0 for those from high on.

    Where low is not below high, it is 1 up to low and 0 beyond.
    """
    k = torch.arange(theta.numel(), dtype=theta.dtype, device=theta.device)
    return 1 - ((k - low) / torch.where(low < high, high - low, 0.001)).clamp(0, 1)


Scaling: TypeAlias = Callable[..., tuple[Tensor, Any]]
"""(theta[, lengths]) -> (theta', factor): one of these classes, or any function."""


class _Scaling:
    """Base class of the scalings: their repr and checks."""

    needs_lengths: ClassVar[bool] = False

    def __repr__(self) -> str:
        arguments = []
        for f in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, f.name)
            is_always = f.name in ("factor", "original_length") and value not in (None, 1.0)  # even Llama3's defaults
            if is_always or f.default is MISSING or value != f.default:
                arguments.append(f"{f.name}={_listed(value) if isinstance(value, tuple) else repr(value)}")
        return f"{type(self).__name__}({', '.join(arguments)})"

    def _set(self, **values: Any) -> None:
        """Sets the checked values on a frozen dataclass."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _pairs(self, theta: Tensor) -> None:
        """ValueError for a single pair, which does not determine the base."""
        if theta.numel() < 2:
            raise ValueError(f"{type(self).__name__} needs at least two pairs of channels, got {theta.numel()}")

    def _lengths(self, lengths: Tensor | None) -> Tensor:
        if lengths is None:
            raise ValueError(
                f"lengths must be given: the frequencies of {type(self).__name__} depend on the length of each row"
            )
        return lengths


def _listed(values: tuple[float, ...]) -> str:
    if len(values) <= 8:
        return repr(list(values))
    digest = zlib.crc32(repr(values).encode())  # two that differ are written differently
    return f"[{values[0]!r}, {values[1]!r}, ..., {values[-1]!r}] of {len(values)}, crc32 {digest:08x}"


def _stretch(factor: Any, original_length: Any) -> dict[str, Any]:
    """Both, checked. ValueError where each is in the other's place: for a factor above a length below 128. (Above a
    longer one it may be: Mistral Large 4 stretches 512 by 2048.)"""
    found = {"factor": number("factor", factor, least=1), "original_length": whole("original_length", original_length)}
    if found["factor"] > found["original_length"] < 128:
        got = f"factor={shown(factor)} and original_length={shown(original_length)}: swap them"
        raise ValueError(f"factor must not be above original_length, the trained length in tokens, got {got}")
    return found


@dataclass(frozen=True, repr=False)
class PositionInterpolation(_Scaling):
    """theta_k / s: divides every position by s.

    ``factor`` = s, the new length divided by the training length. Also called linear scaling; it requires fine-tuning.
    Source: Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation",
    equation 4.
    """

    factor: float

    def __post_init__(self) -> None:
        self._set(factor=number("factor", self.factor, least=1))

    def __call__(self, theta: Float64[Tensor, " pairs"]) -> tuple[Float64[Tensor, " pairs"], float]:
        return theta / self.factor, 1.0


@dataclass(frozen=True, repr=False)
class NTKAware(_Scaling):
    """theta_k s^(-2k/(d-2)): RoPE with base s^(d/(d-2)) times the original base.

    ``factor`` = s. The highest frequency is unchanged and the lowest is divided by s, so near tokens are distinguished
    as before. Raises ValueError for a single pair.

    With ``original_length`` = L it is NTK by parts, as in code before YaRN. With the ramp "index" of `YaRN`, for h from
    1.25 to 0.75 rotations over L and for g from 16 to 2:

        theta'_k = g theta_k + (1 - g) (h theta_k s^(-2k/(d-2)) + (1 - h) theta_k / s)

    The paper's NTK by parts has other bounds and only two kinds: ``YaRN(s, L, ramp="ratio", attention_factor=1.0)``.
    Source: bloc97 2023, as in Peng et al. 2023, "YaRN", section 3.1, definition 1; by parts: its authors'
    ``LlamaPartNTKScaledRotaryEmbedding.py`` (github.com/jquesnelle/yarn).
    """

    factor: float
    original_length: int | None = None

    def __post_init__(self) -> None:
        if self.original_length is not None:
            self._set(**_stretch(self.factor, self.original_length))
        self._set(factor=number("factor", self.factor, least=1))

    def __call__(self, theta: Float64[Tensor, " pairs"]) -> tuple[Float64[Tensor, " pairs"], float]:
        self._pairs(theta)
        found = ntk(theta, self.factor)
        if self.original_length is not None:
            turning = ((16.0, 2.0), (1.25, 0.75))
            g, h = (by_index(theta, *ends(theta, self.original_length, *n)) for n in turning)
            found = blend(theta, blend(found, theta / self.factor, h), g)
        return found, 1.0


@dataclass(frozen=True, repr=False)
class DynamicNTK(_Scaling):
    """NTK-aware scaling by f n/L - (f - 1) for a row of n > L tokens, and none for n <= L.

    ``factor`` = f, ``original_length`` = L. With f = 1 a row of n > L tokens is scaled by n/L. n is the row's own
    length; transformers uses the longest of the batch, or the longest so far. The rotation of all keys changes as the
    text grows, so a cache keeps them unrotated. Raises ValueError for a single pair.
    Source: emozilla 2023, with the factor of transformers; Peng et al. 2023, "YaRN", section 3.3.
    """

    needs_lengths: ClassVar[bool] = True
    factor: float
    original_length: int

    def __post_init__(self) -> None:
        self._set(**_stretch(self.factor, self.original_length))

    def __call__(
        self, theta: Float64[Tensor, " pairs"], lengths: Float64[Tensor, "rows 1"] | None = None
    ) -> tuple[Float64[Tensor, "rows pairs"], float]:
        lengths = self._lengths(lengths)
        self._pairs(theta)
        stretch = self.factor * lengths / self.original_length - (self.factor - 1)
        return ntk(theta, stretch.clamp(min=1)), 1.0


@dataclass(frozen=True, repr=False)
class YaRN(_Scaling):
    """YaRN: keeps high frequencies, divides low frequencies by s, and interpolates between them.

    Formula, with ``factor`` = s, ``original_length`` = L and r_k = L theta_k/(2 pi), the rotations over the length:

        theta'_k = gamma_k theta_k + (1 - gamma_k) theta_k / s
        gamma_k  = clip((r_k - beta_slow) / (beta_fast - beta_slow), 0, 1)           ramp "ratio", as in the paper
        gamma_k  = 1 - clip((k - low) / (high - low), 0, 1)                          ramp "index", as in all code
        low, high = max(dim(beta_fast), 0), min(dim(beta_slow), d - 1)
        dim(n)   = the fractional index k with n rotations: d ln(L/(2 pi n)) / (2 ln base)

    ``truncate`` rounds the first dim down and the second up (gpt-oss does not). The base is computed from
    theta_1/theta_0 = base^(-2/d), so "index" raises ValueError for a single pair. If low is not below high, pairs up to
    low are kept and the others divided by s (transformers does the opposite where low is above high).

    cos and sin of queries and keys are multiplied by 0.1 ln s + 1, so scores are multiplied by its square.
    ``attention_factor`` replaces this number. With ``mscale`` m and ``mscale_all_dim`` a it is (0.1 m ln s + 1) / (0.1
    a ln s + 1), with the defaults m = 1 and a = 0, as in DeepSeek's code. DeepSeek's models have m = a and also
    multiply their softmax scale by (0.1 a ln s + 1)^2, which this class does not do (`MLA` does). transformers ignores
    one if the other is missing. With ``dynamic``, s = max(``factor``, n/L) for a row of n tokens, usually with a factor
    of 1, and a cache keeps keys unrotated, as for `DynamicNTK`.
    Errors: ValueError for beta_slow not below beta_fast, and for ``dynamic`` with mscale_all_dim, since a softmax scale
    cannot differ from row to row.
    Source: Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models", section 3.2,
    definition 2, and section 3.4, and the code of the authors, transformers and DeepSeek-V3.
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
    dynamic: bool = False

    def __post_init__(self) -> None:
        check_flag("dynamic", self.dynamic)
        check_choice("ramp", self.ramp, ("index", "ratio"))
        check_flag("truncate", self.truncate)
        fast, slow = (number(name, getattr(self, name), above=0) for name in ("beta_fast", "beta_slow"))
        if slow >= fast:
            raise ValueError(f"beta_slow must be below beta_fast, got {slow:g} and {fast:g}")
        given = {n: number(n, v, least=0) for n in ("mscale", "mscale_all_dim") if (v := getattr(self, n)) is not None}
        if self.dynamic and self.mscale_all_dim is not None:
            raise ValueError(f"mscale_all_dim must be None with dynamic=True, got {self.mscale_all_dim}")
        if self.attention_factor is not None:
            given["attention_factor"] = number("attention_factor", self.attention_factor, above=0)
        self._set(**_stretch(self.factor, self.original_length), beta_fast=fast, beta_slow=slow, **given)

    @property
    def needs_lengths(self) -> bool:  # type: ignore[override]  # a class variable of the others
        """Whether it is dynamic."""
        return self.dynamic

    @property
    def magnitude(self) -> float:
        """The factor of cos and sin; with ``dynamic``, the least one."""
        return float(self._magnitude(math.log(self.factor)))

    def _magnitude(self, log_factor: Any) -> Any:
        """The factor of cos and sin for ln s, a number or a tensor."""
        if self.attention_factor is not None:
            return self.attention_factor
        of_each, of_all = 1.0 if self.mscale is None else self.mscale, self.mscale_all_dim or 0.0
        return mscale(log_factor, of_each) / mscale(log_factor, of_all)

    @property
    def score_factor(self) -> float:
        """DeepSeek's factor of the softmax scale, (0.1 a ln s + 1)^2; 1 without ``mscale_all_dim``."""
        return float(mscale(math.log(self.factor), self.mscale_all_dim or 0.0)) ** 2

    def _gamma(self, theta: Float64[Tensor, " pairs"]) -> Float64[Tensor, " pairs"]:
        if self.ramp == "ratio":
            over = turns(theta, self.original_length) - self.beta_slow
            return (over / (self.beta_fast - self.beta_slow)).clamp(0, 1)
        return by_index(theta, *self.ends(theta))

    def ends(self, theta: Float64[Tensor, " pairs"]) -> tuple[Float64[Tensor, ""], Float64[Tensor, ""]]:
        """low and high of the ramp "index"."""
        self._pairs(theta)
        return ends(theta, self.original_length, self.beta_fast, self.beta_slow, self.truncate)

    def __call__(
        self, theta: Float64[Tensor, " pairs"], lengths: Float64[Tensor, "rows 1"] | None = None
    ) -> tuple[Float64[Tensor, "*rows pairs"], float | Float64[Tensor, "rows 1 1"]]:
        gamma = self._gamma(theta)
        if not self.dynamic:
            return blend(theta, theta / self.factor, gamma), self.magnitude
        s = (self._lengths(lengths) / self.original_length).clamp(min=self.factor)
        return blend(theta, theta / s, gamma), self._magnitude(s.log()[..., None])


@dataclass(frozen=True, repr=False)
class Llama3(_Scaling):
    """The scaling of Llama 3.1: YaRN's "ratio" ramp from 1 to 4 rotations, without a factor of cos and sin.

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
        self._set(**_stretch(self.factor, self.original_length), low_freq_factor=low, high_freq_factor=high)

    def __call__(self, theta: Float64[Tensor, " pairs"]) -> tuple[Float64[Tensor, " pairs"], float]:
        low, high = self.low_freq_factor, self.high_freq_factor
        over = turns(theta, self.original_length) - low
        gamma = (over / (high - low)).clamp(0, 1) if low < high else (over >= 0).to(theta.dtype)
        return blend(theta, theta / self.factor, gamma), 1.0


@dataclass(frozen=True, repr=False)
class LongRoPE(_Scaling):
    """theta_k / lambda_k, with lambda found by search: one list for texts up to L and one for longer texts.

    ``short_factor`` and ``long_factor`` have one number per pair. A row of more than ``original_length`` = L tokens
    uses the long list, independently of other rows and of the cache size. The rotation of all keys changes when the
    text grows beyond L, so a cache keeps them unrotated. cos and sin are multiplied by sqrt(1 + ln s/ln L), where
    ``factor`` = s is the new length divided by L. ``attention_factor`` replaces this number, with one number or one for
    each list (Phi-3.5-MoE). If a model's configuration has no factor, it is max_position_embeddings /
    original_max_position_embeddings. The paper's unscaled first tokens are in no published model and not supported.
    Errors: ValueError for lists whose length is not the number of pairs, for numbers that are not above 0, and if
    neither factor nor attention_factor is given.
    Source: Ding et al. 2024, "LongRoPE", sections 3 (lambda) and 4; the attention factor follows Phi-3's code.
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
            given["factor"] = number("factor", self.factor, least=1)
        each = self.attention_factor
        if isinstance(each, (tuple, list)):
            if len(each) != 2:
                raise ValueError(f"attention_factor must be a number, or one for each list, got {shown(each)}")
            given["attention_factor"] = tuple(number("attention_factor", one, above=0) for one in each)
        elif each is not None:
            given["attention_factor"] = number("attention_factor", each, above=0)
        self._set(original_length=whole("original_length", self.original_length, least=2), **lists, **given)

    @property
    def magnitudes(self) -> tuple[float, float]:
        """The factors of cos and sin for the short and the long list."""
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
        lengths = self._lengths(lengths)
        if theta.numel() != len(self.short_factor):
            wanted = f"{theta.numel()} numbers, one for each pair, got {len(self.short_factor)}"
            raise ValueError(f"short_factor and long_factor must have {wanted}")
        # Filled number by number: a list would be copied to the GPU in every call, which synchronizes.
        lists = self.short_factor, self.long_factor
        short, long = (torch.cat([theta.new_full((1,), each) for each in factors]) for factors in lists)
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
    """p-RoPE: keeps the first int(p d // 2) pairs, of the highest frequencies, and sets the others to 0.

    ``share`` = p within [0, 1]; 1 is RoPE and 0 is NoPE. ``factor`` divides the remaining frequencies. This is not
    partial rotation: all d channels are paired, (k, k + d/2) in the half layout, and d is in the exponent of the
    frequencies, while `RoPE` with rotary_dim pairs the first rotary_dim channels and has rotary_dim in the exponent.
    Source: Barbero et al. 2024, "Round and Round We Go! What makes Rotary Positional Encodings useful?", section 6;
    rounding and factor are those of transformers' "proportional" (Gemma 4).
    """

    share: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not is_number(self.share) or not 0 <= self.share <= 1:
            raise ValueError(f"share must be a number within [0, 1], got {shown(self.share)}")
        self._set(share=float(self.share), factor=number("factor", self.factor, least=1))

    def __call__(self, theta: Float64[Tensor, " pairs"]) -> tuple[Float64[Tensor, " pairs"], float]:
        turning = int(self.share * (2 * theta.numel()) // 2)
        return theta * (torch.arange(theta.numel(), device=theta.device) < turning) / self.factor, 1.0


class _AfterAnother(_Scaling):
    """Base class of scalings that change what another scaling returns, whose factor they keep."""

    scaling: Scaling | None

    @property
    def needs_lengths(self) -> bool:  # type: ignore[override]  # a class variable of the others
        """Whether the other scaling needs them."""
        return bool(getattr(self.scaling, "needs_lengths", False))

    def _check_scaling(self) -> None:
        if self.scaling is not None and (isinstance(self.scaling, type) or not callable(self.scaling)):
            raise ValueError(f"scaling must be a scaling, a function of theta or None, got {shown(self.scaling)}")

    def _before(self, *theta_and_lengths: Tensor) -> tuple[Tensor, Any]:
        return (theta_and_lengths[0], 1.0) if self.scaling is None else self.scaling(*theta_and_lengths)


@dataclass(frozen=True, repr=False)
class SoftClipping(_AfterAnother):
    """CoPE, clipped RoPE: slows down the c slowest pairs, from the fastest of them, which is unchanged, down to 0.

    Formula: theta'_k = theta_k (1 + cos(pi t_k)) / 2, with t_k = 0, 1/(c-1), .., 1 for the last c pairs. If c is 1, the
    pair is unchanged. c is the number of pairs that turn less than once in ``original_length`` = L, so whose period
    2 pi/theta_k is above L, or it is ``pairs``, or all if these are more.

    It follows another ``scaling`` if there is one. The authors have c = 20 of the 64 pairs of Llama 3 with base
    500 000, whose length is 8192. (`CoPE` is contextual position encoding, another scheme.)
    Errors: ValueError unless exactly one of original_length and pairs is given.
    Source: Li et al. 2026, "CoPE: Clipped RoPE as A Scalable Free Lunch for Long Context LLMs" (arXiv 2602.05258), by
    the authors' code (hrlics/CoPE, modeling_cope.py); c by length as in pull request 1387 of mlx-lm. The equations of
    the paper were not read.
    """

    original_length: int | None = None
    pairs: int | None = None
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        given = {n: v for n in ("original_length", "pairs") if (v := getattr(self, n)) is not None}
        if len(given) != 1:
            got = f"{shown(self.original_length)} and {shown(self.pairs)}"
            raise ValueError(f"either original_length or pairs must be given, got {got}")
        self._set(**{name: whole(name, value) for name, value in given.items()})
        self._check_scaling()

    def __call__(self, *theta_and_lengths: Float64[Tensor, "..."]) -> tuple[Float64[Tensor, "*rows pairs"], Any]:
        theta, factor = self._before(*theta_and_lengths)
        if self.pairs is not None:
            is_slow = torch.arange(theta.size(-1), device=theta.device).expand_as(theta) >= theta.size(-1) - self.pairs
        else:
            assert self.original_length is not None
            is_slow = theta * self.original_length < 2 * math.pi
        nth = is_slow.to(theta.dtype).cumsum(-1) - 1
        t = nth / nth[..., -1:].clamp(min=1)
        return torch.where(is_slow, theta * (1 + torch.cos(math.pi * t)) / 2, theta), factor


@dataclass(frozen=True, repr=False)
class Resonance(_AfterAnother):
    """Resonance RoPE: 2 pi / round(2 pi / theta_k), so that each pair returns to the same angle after a whole number of
    tokens, and pairs whose period is below the training length have no angle that is new to the model.

    It follows another ``scaling`` if there is one: ``Resonance(YaRN(4.0, 4096))`` is Resonance YaRN. Halves are rounded
    to even, and a period is at least 1. The frequency 0 stays 0.
    Source: Wang et al. 2024, "Resonance RoPE: Improving Context Length Generalization of Large Language Models" (arXiv
    2403.00071), by the authors' code (sheryc/resonance_rope, rotary_resonance.py and
    LlamaYaRNScaledResonanceRotaryEmbedding.py).
    """

    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        self._check_scaling()

    def __call__(self, *theta_and_lengths: Float64[Tensor, "..."]) -> tuple[Float64[Tensor, "*rows pairs"], Any]:
        theta, factor = self._before(*theta_and_lengths)
        return 2 * math.pi / (2 * math.pi / theta).round().clamp(min=1), factor


@dataclass(frozen=True, repr=False)
class RIFLEx(_Scaling):
    """RIFLEx: slows down the one pair whose period is that of repetitions in videos longer than in training.

    Formula: theta'_k = ``share`` 2 pi/L' for one k, the intrinsic frequency, with ``length`` = L' frames of the video
    that is generated, so that it turns less than once; the other frequencies stay. k is ``pair``, counted from 0, or
    the pair whose period round(2 pi/theta_k) is the nearest to ``repeats_at``, the frame at which repetitions begin.
    Frames are those of the latent video. For HunyuanVideo, ``repeats_at`` is 48, which is the pair 3 of period 50.

    Use it on the axis of time: ``RoPE3D(128, (16, 56, 56), base=256.0, scaling=RIFLEx(66, pair=3))``. `NTKAware` and
    `PositionInterpolation` are for one axis in the same way.
    Errors: ValueError unless exactly one of pair and repeats_at is given, and for a pair that theta does not have.
    Source: Zhao et al. 2025, "RIFLEx: A Free Lunch for Length Extrapolation in Video Diffusion Transformers" (arXiv
    2502.15894), equations 4, 7 and 8 as numbered in the authors' code (thu-ml/RIFLEx, riflex_utils.py), which has the
    share 0.9 and counts pairs from 1. Their page (riflex-video.github.io) has the share 1.
    """

    length: int
    pair: int | None = None
    repeats_at: float | None = None
    share: float = 0.9

    def __post_init__(self) -> None:
        if (self.pair is None) == (self.repeats_at is None):
            got = f"{shown(self.pair)} and {shown(self.repeats_at)}"
            raise ValueError(f"either pair or repeats_at must be given, got {got}")
        if self.pair is not None:
            self._set(pair=whole("pair", self.pair, least=0))
        else:
            self._set(repeats_at=number("repeats_at", self.repeats_at, above=0))
        self._set(length=whole("length", self.length), share=number("share", self.share, above=0))

    def __call__(self, theta: Float64[Tensor, " pairs"]) -> tuple[Float64[Tensor, " pairs"], float]:
        k = torch.arange(theta.numel(), device=theta.device)
        if self.pair is not None:
            if self.pair >= theta.numel():
                raise ValueError(f"pair must be within 0..{theta.numel() - 1}, got {self.pair}")
            is_intrinsic = k == self.pair
        else:
            assert self.repeats_at is not None
            is_intrinsic = k == ((2 * math.pi / theta).round() - self.repeats_at).abs().argmin()
        return torch.where(is_intrinsic, self.share * 2 * math.pi / self.length, theta), 1.0
