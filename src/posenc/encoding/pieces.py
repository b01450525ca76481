"""The kinds of score and value terms, as data.

A scheme's score door is a tuple of pieces, applied from left to right to the score s_ij = scale q_i . k_j:

    Bias       s_ij + b_h(r)                     a number per head and distance            ALiBi, T5, Swin
    Meeting    s_ij + scale q_i . a_h(r)         query or key times a vector per distance  Shaw, Transformer-XL, DeBERTa
    Fold       s_ij + scale u_i . k_j            a vector added to one side of the product Transformer-XL's u
    Clock      s_ij + F_i - F_j                  a number per head and token               FoX
    Function   f(s_ij; c_h(r), ...)              any function of one score                 DA-Transformer, FIRE, softcap
    Row        f(s_i.; visible)                  any function of a row of scores           CoPE, stick-breaking

and its value door a tuple of `Value`, o_i + sum_j a_ij w(r). `forms.py` and `folding.py` derive from these what
backends run: dense, by distance or in a compiled kernel. Backends recognize kinds of terms, not schemes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float, Float64
from torch import Tensor


@dataclass(frozen=True)
class Distance:
    """How a term depends on the distance r = p_j - p_i, key minus query.

    - ``axis``: the axis of the ``axes`` coordinates that r is along; None: all of them, and r is (..., axes).
    - ``integral``: the entries are in a table, so coordinates must be int64.
    - ``tail``: beyond distance ``past``, on both sides, the term is "constant", or "linear" (only for a `Bias`, with a
      slope that is not learned); None: unknown.
    - ``reach``: distances of at least this, along each axis, have no entry and raise a PositionError that names
      ``scheme``.
    - ``looks_back``: entries are only for keys up to the query; the string names the form for both sides.
    - ``num_heads``: the number of heads of the entries; None: any, all the same.
    """

    scheme: str
    axis: int | None = 0
    axes: int = 1
    integral: bool = False
    tail: Literal["constant", "linear"] | None = None
    past: int = 0
    reach: tuple[int, ...] | None = None
    looks_back: str | None = None
    num_heads: int | None = None


@dataclass(frozen=True)
class Bias:
    """Adds a number per head and distance: s_ij + at(r)[h].

    ``at`` takes distances of any shape (..., or (..., axes) with several axes) and returns (heads or 1, ...).
    ``hides``: some of the numbers are -inf.
    """

    at: Callable[[Tensor], Tensor]
    distance: Distance
    hides: bool = False


@dataclass(frozen=True)
class Meeting:
    """Adds the product of the query with a vector per distance: s_ij + scale (q_i + shift) . vectors(r).

    ``vectors`` takes distances (...) and returns (heads or 1, ..., head_dim). ``shift`` (heads, head_dim) is added to
    the query in this term only. With ``side="key"`` the key k_j takes the query's place, and with ``feature`` a named
    feature of the query, (batch, heads, tokens, width), without scaling. With ``through`` = W the vectors are W_h
    vectors(r), with vectors(r) (heads or 1, ..., width); for few queries, W is applied to them instead. With ``theta``,
    vectors(r) is the sinusoid of -r, (sin(-r theta), cos(-r theta)); few queries are then rotated by theta instead, and
    multiplied with the vectors of few distances.
    """

    vectors: Callable[[Tensor], Tensor]
    distance: Distance
    side: Literal["query", "key"] = "query"
    shift: Float[Tensor, "heads head_dim"] | None = None
    feature: str | None = None
    through: Float[Tensor, "heads head_dim width"] | None = None
    theta: Float64[Tensor, " pairs"] | None = None

    def at(self, r: Tensor) -> Tensor:
        """The vectors at distances (...), (heads or 1, ..., head_dim)."""
        vectors = self.vectors(r)
        if self.through is None:
            return vectors
        return torch.einsum("h...c,hdc->h...d", vectors, self.through.to(vectors.dtype))

    def __post_init__(self) -> None:
        _check_tail(self.distance)
        if self.feature is not None and (self.side == "key" or self.shift is not None):
            raise ValueError("a Meeting with a feature must have side='query' and no shift")


@dataclass(frozen=True)
class Fold:
    """Adds the product of a vector with the key or the query: s_ij + scale u_i . k_j with ``query`` = u, or
    s_ij + scale q_i . w_j with ``key`` = w. Either is (batch or 1, heads or 1, tokens or 1, head_dim)."""

    scheme: str
    query: Tensor | None = None
    key: Tensor | None = None


@dataclass(frozen=True)
class Clock:
    """Adds the difference of a cumulative feature: s_ij + F_i - F_j, with F the named feature of queries and keys,
    (batch, heads, tokens)."""

    feature: str


def _none(*_: Tensor) -> tuple[Tensor, ...]:
    """No coefficients."""
    return ()


@dataclass(frozen=True)
class BrokenLine:
    """A piecewise linear function l_h x + m_h of x = away(r) share(p_i).

    ``away`` takes integer distances r = p_j - p_i and returns numbers of at least 0 that do not increase with r;
    ``share`` takes query coordinates and returns positive numbers. Both keep the shape and return float64. ``lines()``
    returns breaks (n,), sorted and at least 0, and (heads, n + 1, 2), l and m of every piece: piece 0 is for x = 0,
    piece k for breaks[k - 1] < x <= breaks[k], the last one for all larger x. Breaks may be equal or infinite. The
    function is continuous, so breaks have no gradient.
    """

    away: Callable[[Tensor], Tensor]
    share: Callable[[Tensor], Tensor]
    lines: Callable[[], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Function:
    """Any elementwise function of the score: s_ij becomes apply(s_ij, *c).

    - ``apply`` is a module-level function, not a closure, and depends only on its arguments, so that it can be named.
    - ``coefficients`` takes distances (...) and returns the c, each (heads or 1, ...). With ``distance`` None it takes
      the coordinates of query and key, which broadcast.
    - ``adds``: apply(s, *c) = s + apply(0, *c).
    - ``derivative``, also a module-level function, returns the gradients of s and of each c, all in the shape of s:
      derivative(gradient, s, *c) -> (gradient, ...). None: autograd, which is slower.
    - ``formula`` names the function for kernels that cannot call Python: "relu times" is ReLU(s) c, "cap" is c tanh(s /
      c).
    - ``broken``: for integer coordinates, apply(s, *c) is s plus this piecewise linear function.
    - ``scheme`` and ``num_heads``, for errors, if there is no ``distance``.
    """

    apply: Callable[..., Tensor]
    coefficients: Callable[..., tuple[Tensor, ...]] = field(default=_none)
    distance: Distance | None = None
    adds: bool = False
    derivative: Callable[..., tuple[Tensor, ...]] | None = None
    formula: Literal["relu times", "cap"] | None = None
    broken: BrokenLine | None = None
    scheme: str = "the scheme"
    num_heads: int | None = None

    @property
    def reads_coordinates(self) -> bool:
        """Whether the coefficients depend on both coordinates instead of their distance."""
        return self.distance is None and self.coefficients is not _none


@dataclass(frozen=True)
class Row:
    """Any function of a row of scores: apply(scores, visible, query, key, query_positions, key_positions) -> scores.

    Scores are (batch, heads, queries, keys) with all keys of the call; ``visible`` (None: all) broadcasts to them.

    - ``gives_weights``: the result is the logarithm of the weights, which `attention` then does not normalize. It must
      be the last piece, without a float mask.
    - ``reads_vectors``: it reads query or key, not only their scores.
    """

    apply: Callable[..., Tensor]
    gives_weights: bool = False
    reads_vectors: bool = True


@dataclass(frozen=True)
class Value:
    """Adds to the output the attention-weighted mean of a vector per distance: o_i + sum_j a_ij vectors(r).

    ``vectors`` takes distances (...) and returns (heads or 1, ..., value_dim).
    """

    vectors: Callable[[Tensor], Tensor]
    distance: Distance

    def __post_init__(self) -> None:
        _check_tail(self.distance)


def _check_tail(distance: Distance) -> None:
    if distance.tail == "linear":
        raise ValueError(
            f"{distance.scheme}: tail must be 'constant' or None for vectors, got 'linear', which is only for a Bias"
        )


Piece: TypeAlias = Bias | Meeting | Fold | Clock | Function | Row


def adds(piece: Piece) -> bool:
    """Whether it only adds to the score."""
    return not isinstance(piece, Row) and (not isinstance(piece, Function) or piece.adds)


def is_content_free(piece: Piece) -> bool:
    """Whether it adds a term that depends only on positions."""
    return isinstance(piece, Bias) or (isinstance(piece, Function) and piece.adds)


def reads_vectors(piece: Piece) -> bool:
    """Whether it reads queries or keys separately, not only their product."""
    if isinstance(piece, Row):
        return piece.reads_vectors
    return isinstance(piece, Fold) or (isinstance(piece, Meeting) and piece.feature is None)


def check_sequence(pieces: tuple[Piece, ...]) -> None:
    """ValueError for pieces in an order that gives wrong scores."""
    hiding = next((n for n, piece in enumerate(pieces) if isinstance(piece, Bias) and piece.hides), None)
    if hiding is not None and any(isinstance(p, Function) and not p.adds for p in pieces[hiding:]):
        raise ValueError(
            "a function of the score comes after a bias that masks keys with -inf, which it would map to a finite "
            "score: compose the scheme of the function before that of the bias"
        )
    if gives_weights(pieces[:-1]):
        raise ValueError(
            "a score term comes after one that returns logarithms of weights, which are not normalized again: compose "
            "the scheme that returns weights last"
        )


def gives_weights(pieces: tuple[Piece, ...]) -> bool:
    """Whether the final scores are logarithms of weights, which must not be normalized."""
    return any(isinstance(piece, Row) and piece.gives_weights for piece in pieces)
