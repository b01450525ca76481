"""The kinds of score and value terms, as data.

A scheme's score door is a tuple of terms, applied from left to right to the score s_ij = scale q_i . k_j:

    Bias            s_ij + b_h(r)                 a number per head and distance            ALiBi, T5, Swin
    RelativeDot     s_ij + scale q_i . a_h(r)     query or key times a vector per distance  Shaw, DeBERTa
    AddedVector     s_ij + scale u_i . k_j        a vector added to one side of the product Transformer-XL's u
    CumulativeBias  s_ij + F_i - F_j              a number per head and token               FoX
    ChannelDecay    scale q_i . (k_j exp(P_i - P_j))  a number per head, token and channel  Wall
    Function        f(s_ij; c_h(r), ...)          any function of one score                 DA-Transformer, FIRE
    Row             f(s_i.; visible)              any function of a row of scores           CoPE, stick-breaking

and its value door a tuple of `Value`, o_i + sum_j a_ij w(r). ``lowering/forms.py`` derives from these what
backends run: dense, by distance or in a compiled kernel. Backends recognize kinds of terms, not schemes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Distance:
    """How a term depends on the distance r = p_j - p_i, key minus query.

    - ``axis``: the axis of the ``axes`` coordinates that r is along; None: all of them, and r is (..., axes);
      "segment": r is between segments instead (0: the same), with a constant tail.
    - ``integral``: the entries are in a table, so coordinates must be int64.
    - ``tail``: beyond distance ``past``, on both sides, the term is "constant", or "linear" (only for a `Bias`, with a
      slope that is not learned); None: unknown.
    - ``reach``: distances of at least this, along each axis, have no entry and raise a PositionError that names
      ``scheme``.
    - ``num_heads``: the number of heads of the entries; None: any, all the same.
    """

    scheme: str
    axis: int | Literal["segment"] | None = 0
    axes: int = 1
    integral: bool = False
    tail: Literal["constant", "linear"] | None = None
    past: int = 0
    reach: tuple[int, ...] | None = None
    num_heads: int | None = None

    def clamped(self, r: Tensor) -> Tensor:
        """Distances clamped to those with an entry. ``reach`` was checked before, so only masked pairs are clamped."""
        if self.reach is None:
            return r
        if self.axis is not None:
            return r.clamp(1 - self.reach[0], self.reach[0] - 1)
        each = [x.clamp(1 - n, n - 1) for x, n in zip(r.unbind(-1), self.reach, strict=True)]
        return torch.stack(each, -1)


class Term:
    """What is true of a term of a score or of the output, unless its kind says otherwise."""

    scheme: str  # for errors
    distance: Distance | None = None  # what it depends on the distance by
    num_heads: int | None = None  # the number of heads it is for, unless its distance says so; None: any

    @property
    def is_planar(self) -> bool:
        """Whether it depends on both of two coordinates, on one of them, or on segments."""
        return self.distance is not None and (self.distance.axis != 0 or self.distance.axes > 1)


class ScoreTerm(Term):
    """A score term. A kind is a frozen dataclass of this class, and overrides what is not true of it.

    What a term computes is its form (``posenc.lowering.forms.FORMS``), and which kinds a backend supports its table.
    """

    adds: bool = True  # it only adds to the score
    masks: bool = False  # some of the numbers are -inf
    reads_rows: bool = False  # it needs whole rows of scores
    gives_weights: bool = False  # the scores are logarithms of weights then, which must not be normalized
    feature: str | None = None  # the feature of a layer that it needs
    formula: str | None = None  # the function of the score that it is, for kernels that cannot call Python
    fades: bool = False  # it may lower scores of distant keys, whatever queries and keys hold

    @property
    def falls(self) -> bool:
        """Whether it goes on fading, however far keys are."""
        return False

    @property
    def is_content_free(self) -> bool:
        """Whether it adds a term that depends only on positions."""
        return False

    @property
    def reads_vectors(self) -> bool:
        """Whether it reads queries or keys separately, not only their product."""
        return False

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Its tensors of queries and keys, (batch or 1, heads or 1, tokens or 1, ...)."""
        return ()

    def mapped(self, change: Change) -> ScoreTerm:
        """The same term with ``change(side, x)`` in place of each of `tensors`: sliced, padded or cast."""
        return self

    def limits(self, r: Tensor, query_norm: Norm, key_norm: Norm, scale: float) -> Limits | None:
        """The numbers it adds at distances r, (heads or 1, distances), and by how much its scores of two keys differ
        otherwise at most, for queries and keys of these norms, (heads or 1, 1); None: unknown."""
        return None


Change: TypeAlias = Callable[[Literal["query", "key"], Tensor], Tensor]
Norm: TypeAlias = float | Tensor
Limits: TypeAlias = tuple[Tensor | float, Tensor | float]


ScoreTerms: TypeAlias = tuple[ScoreTerm, ...]  # of a scheme, applied from left to right


@dataclass(frozen=True)
class Bias(ScoreTerm):
    """Adds a number per head and distance: s_ij + at(r)[h].

    ``at`` takes distances of any shape (..., or (..., axes) with several axes) and returns (heads or 1, ...).
    ``masks``: some of the numbers are -inf.
    """

    at: Callable[[Tensor], Tensor]
    distance: Distance = field()  # without the default of a term
    masks: bool = False

    is_content_free = True
    fades = True

    @property
    def falls(self) -> bool:
        return self.distance.tail != "constant"

    def limits(self, r: Tensor, query_norm: Norm, key_norm: Norm, scale: float) -> Limits | None:
        if self.is_planar or self.distance.axis != 0:
            return None
        return self.at(self.distance.clamped(r)).detach().double().cpu(), 0.0


@dataclass(frozen=True)
class RelativeDot(ScoreTerm):
    """Adds the product of the query with a vector per distance: s_ij + scale (q_i + shift) . vectors(r).

    ``vectors`` takes distances (...) and returns (heads or 1, ..., head_dim). ``shift`` (heads, head_dim) is added to
    the query in this term only. With ``side="key"`` the key k_j takes the query's place, and with ``feature`` a named
    feature of the query, (batch, heads, tokens, width), without scaling. With ``through`` = W the vectors are W_h
    vectors(r), with vectors(r) (heads or 1, ..., width); for few queries, W is applied to them instead. With ``base``,
    vectors(r) is the sinusoid of -r, (sin(-r theta), cos(-r theta)), theta_k = base^(-2k/width); few queries are then
    rotated by theta instead, and multiplied with the vectors of few distances.
    """

    vectors: Callable[[Tensor], Tensor]
    distance: Distance = field()
    side: Literal["query", "key"] = "query"
    shift: Float[Tensor, "heads head_dim"] | None = None
    feature: str | None = None
    through: Float[Tensor, "heads head_dim width"] | None = None
    base: float | None = None

    def at(self, r: Tensor) -> Tensor:
        """The vectors at distances (...), (heads or 1, ..., head_dim)."""
        vectors = self.vectors(r)
        if self.through is None:
            return vectors
        return torch.einsum("h...c,hdc->h...d", vectors, self.through.to(vectors.dtype))

    def __post_init__(self) -> None:
        _check_tail(self.distance)
        if self.feature is not None and (self.side == "key" or self.shift is not None):
            raise ValueError("a RelativeDot with a feature must have side='query' and no shift")

    @property
    def reads_vectors(self) -> bool:
        return self.feature is None

    def limits(self, r: Tensor, query_norm: Norm, key_norm: Norm, scale: float) -> Limits | None:
        if self.distance.axis != 0 or self.feature is not None:
            return None
        longest = self.at(self.distance.clamped(r)).detach().norm(dim=-1).amax(-1, keepdim=True).double().cpu()
        more = 0.0 if self.shift is None else self.shift.detach().norm(dim=-1, keepdim=True).double().cpu()
        met = query_norm if self.side == "query" else key_norm
        return 0.0, 2 * scale * (met + more) * longest


@dataclass(frozen=True)
class AddedVector(ScoreTerm):
    """Adds the product of a vector with the key or the query: s_ij + scale u_i . k_j with ``query`` = u, or
    s_ij + scale q_i . w_j with ``key`` = w. Either is (batch or 1, heads or 1, tokens or 1, head_dim); u may be
    (heads, head_dim), the same for all tokens."""

    scheme: str
    query: Tensor | None = None
    key: Tensor | None = None

    reads_vectors = True

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(x for x in (self.query, self.key) if x is not None)

    @property
    def of_tokens(self) -> Tensor | None:
        """u, (batch or 1, heads or 1, tokens or 1, head_dim)."""
        return self.query[None, :, None] if self.query is not None and self.query.dim() == 2 else self.query

    def mapped(self, change: Change) -> AddedVector:
        query, key = self.of_tokens, self.key
        query = None if query is None else change("query", query)
        return replace(self, query=query, key=None if key is None else change("key", key))

    def limits(self, r: Tensor, query_norm: Norm, key_norm: Norm, scale: float) -> Limits | None:
        query = self.of_tokens
        if self.key is not None or query is None or query.size(2) != 1:
            return None
        u = query.detach()[0, :, 0].norm(dim=-1, keepdim=True).double().cpu()
        return 0.0, 2 * scale * u * key_norm


@dataclass(frozen=True)
class CumulativeBias(ScoreTerm):
    """Adds the difference of a cumulative feature: s_ij + F_i - F_j, with F the named feature of queries and keys,
    (batch, heads, tokens)."""

    feature: str = field()

    fades = falls = True


@dataclass(frozen=True)
class ChannelDecay(ScoreTerm):
    """Multiplies each channel of the product by the exponential of the difference of a cumulative feature, for keys up
    to the query: s_ij + scale sum_c q_ic k_jc (exp(P_ic - P_jc) - 1), with P the named feature of queries and keys,
    (batch, heads, tokens, head_dim), which does not increase with the order. Keys after the query are unchanged."""

    scheme: str
    feature: str = field()

    reads_vectors = True


def _none(*_: Tensor) -> tuple[Tensor, ...]:
    return ()


@dataclass(frozen=True)
class BrokenLine:
    """A piecewise linear function l_h x + m_h of x = away(r) share(p_i).

    ``away`` takes integer distances r = p_j - p_i and returns numbers of at least 0 that do not increase with r;
    ``share`` takes query coordinates and returns positive numbers. Both keep the shape and return float64. ``lines()``
    returns breaks (n,), sorted and at least 0, and (heads, n + 1, 2), l and m of every term: term 0 is for x = 0,
    term k for breaks[k - 1] < x <= breaks[k], the last one for all larger x. Breaks may be equal or infinite. The
    function is continuous, so breaks have no gradient.
    """

    away: Callable[[Tensor], Tensor]
    share: Callable[[Tensor], Tensor]
    lines: Callable[[], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Function(ScoreTerm):
    """Any elementwise function of the score: s_ij becomes apply(s_ij, *c).

    - ``apply`` depends only on its arguments.
    - ``coefficients`` takes distances (...) and returns the c, each (heads or 1, ...). With ``distance`` None it takes
      the coordinates of query and key, which broadcast.
    - ``adds``: apply(s, *c) = s + apply(0, *c).
    - ``formula`` names the function for kernels that cannot call Python: "relu times" is ReLU(s) c, "cap" is c tanh(s /
      c).
    - ``broken``: for integer coordinates, apply(s, *c) is s plus this piecewise linear function.
    - ``scheme`` and ``num_heads``, for errors, if there is no ``distance``.
    """

    apply: Callable[..., Tensor]
    coefficients: Callable[..., tuple[Tensor, ...]] = field(default=_none)
    distance: Distance | None = None
    adds: bool = False
    formula: Literal["relu times", "cap"] | None = None
    broken: BrokenLine | None = None
    scheme: str = "the scheme"
    num_heads: int | None = None

    @property
    def is_content_free(self) -> bool:
        """Whether it only adds."""
        return self.adds

    @property
    def reads_coordinates(self) -> bool:
        """Whether the coefficients depend on both coordinates instead of their distance."""
        return self.distance is None and self.coefficients is not _none


def plus(score: Tensor, bias: Tensor) -> Tensor:
    """s + b: the ``apply`` of a bias that is a function of both coordinates."""
    return score + bias


@dataclass(frozen=True)
class Row(ScoreTerm):
    """Any function of a row of scores: apply(scores, visible, query, key, query_positions, key_positions) -> scores.

    Scores are (batch, heads, queries, keys) with all keys of the call; ``visible`` (None: all) broadcasts to them.

    - ``gives_weights``: the result is the logarithm of the weights, which `attention` then does not normalize. It must
      be the last term, without a float mask.
    - ``reads_vectors``: it reads query or key, not only their scores.
    """

    apply: Callable[..., Tensor]
    gives_weights: bool = False
    reads_vectors: bool = True

    adds = False
    reads_rows = True


@dataclass(frozen=True)
class Value(Term):
    """Adds to the output the attention-weighted mean of a vector per distance: o_i + sum_j a_ij vectors(r).

    ``vectors`` takes distances (...) and returns (heads or 1, ..., value_dim).
    """

    vectors: Callable[[Tensor], Tensor]
    distance: Distance = field()

    def __post_init__(self) -> None:
        _check_tail(self.distance)


def _check_tail(distance: Distance) -> None:
    if distance.tail == "linear":
        raise ValueError(
            f"{distance.scheme}: tail must be 'constant' or None for vectors, got 'linear', which is only for a Bias"
        )


def check_sequence(score_terms: tuple[ScoreTerm, ...]) -> None:
    """ValueError for terms in an order that gives wrong scores."""
    hiding = next((n for n, term in enumerate(score_terms) if term.masks), None)
    if hiding is not None and any(not p.adds and not p.reads_rows for p in score_terms[hiding:]):
        raise ValueError(
            "a function of the score comes after a bias that masks keys with -inf, which it would map to a finite "
            "score: compose the scheme of the function before that of the bias"
        )
    if gives_weights(score_terms[:-1]):
        raise ValueError(
            "a score term comes after one that returns logarithms of weights, which are not normalized again: compose "
            "the scheme that returns weights last"
        )


def gives_weights(score_terms: tuple[ScoreTerm, ...]) -> bool:
    """Whether the final scores are logarithms of weights, which must not be normalized."""
    return any(term.gives_weights for term in score_terms)


# -- how far keys count -----------------------------------------------------------------------------------------------


SKIP_BELOW = 2**-32  # a 256th of float32 rounding


def skipped_by_default(dtype: torch.dtype) -> float:
    """The default of ``skip_below``: a 256th of the rounding of the scores' dtype."""
    return 2**-61 if dtype == torch.float64 else SKIP_BELOW


def skip_threshold(skip_below: float, keys: int) -> float:
    """The threshold relative to a row's log-sum-exp below which scores may be skipped: if all ``keys`` have it, their
    weights sum to ``skip_below``. -inf if nothing may be skipped."""
    return math.log(skip_below) - math.log(keys) if skip_below > 0 else -math.inf


def differences(
    score_terms: Sequence[ScoreTerm], r: Tensor, query_norm: float | Tensor, key_norm: float | Tensor, scale: float
) -> tuple[Tensor, Tensor] | None:
    """For keys at distances r (distances,), of which the first is 0: the bias of each less that of the query's own key,
    (heads or 1, distances), and by how much their scores are greater otherwise at most, (heads or 1, 1). None: unknown.

    Norms may be (heads, 1). The score of a query's own key is at least b(0) - scale |q| |k|, and no score exceeds
    b(r) + scale |q| |k|.
    """
    spread = torch.as_tensor(2 * scale * query_norm * key_norm, dtype=torch.float64)
    bias = torch.zeros(1, len(r), dtype=torch.float64)
    for term in score_terms:
        limits = term.limits(r, query_norm, key_norm, scale)
        if limits is None:
            return None
        bias, spread = bias + limits[0], spread + limits[1]
    return bias - bias[:, :1], spread


def horizon(
    score_terms: Sequence[ScoreTerm], length: int, query_norm: float, key_norm: float, scale: float, skip_below: float
) -> Int[Tensor, " heads"]:
    """The smallest W such that keys at distance W and more have at most ``skip_below`` of a row's weight, for every
    head; ``length`` if there is none, or a term has no known bound.

    See `differences`.
    """
    found = differences(score_terms, -torch.arange(length), query_norm, key_norm, scale)
    if found is None:
        return torch.full((1,), length)
    bias, spread = found
    counts = ~(bias < skip_threshold(skip_below, length) - spread)
    last = torch.where(counts, torch.arange(length), 0).amax(-1)
    return last + 1
