"""The kinds of score and value terms, as data: what a scheme says of a pair of tokens, once.

A scheme's score door is a tuple of pieces, applied from left to right to the score s_ij = scale q_i . k_j:

    Bias       s_ij + b_h(r)                     a number per head and distance            ALiBi, T5, Swin
    Meeting    s_ij + scale q_i . a_h(r)         the query, or the key, meets a vector     Shaw, Transformer-XL, DeBERTa
    Fold       s_ij + scale u_i . k_j            a vector added to one side of the product Transformer-XL's u
    Clock      s_ij + F_i - F_j                  a number per head and token               FoX
    Function   f(s_ij; c_h(r), ...)              any function of one score                 DA-Transformer, FIRE, softcap
    Row        f(s_i.; visible)                  any function of a row of scores           CoPE, stick-breaking

and its value door a tuple of `Value`, o_i + sum_j a_ij w(r). Everything that a backend runs, dense, by distance or in a
compiled kernel, is derived from these in `forms.py` and `folding.py`; a backend recognises kinds and never schemes.
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
    """How a pair finds its entry: by r = p_j - p_i, key less query.

    ``axis`` of ``axes`` is the coordinate that counts; None: all of them, and r is (..., axes). ``integral`` entries
    stand in a table, so coordinates must be int64. ``tail`` says how the entry goes on from distance ``past`` on, to
    either side: it is "constant", or runs in a straight line ("linear", of a `Bias` alone, whose slope is not learned).
    ``reach``: along each axis, distances of that or more have no entry, and are a PositionError in the name of
    ``scheme``. ``looks_back``: the entries are made for keys behind the query alone, and these words say which form is
    made for both sides.
    ``num_heads``: how many heads the entries are for; None: any number of them, alike.
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

    ``at`` takes distances of any shape (..., or (..., axes) where they have several) and gives (heads or 1, ...).
    ``hides``: some of the numbers are -inf.
    """

    at: Callable[[Tensor], Tensor]
    distance: Distance
    hides: bool = False


@dataclass(frozen=True)
class Meeting:
    """Adds the product of the query with a vector per distance: s_ij + scale (q_i + shift) . vectors(r).

    ``vectors`` takes distances (...) and gives (heads or 1, ..., head_dim). ``shift`` (heads, head_dim) is added to the
    query for this term alone. With ``side="key"`` the key k_j meets the vector. With ``feature`` a named per-token
    feature of the query, (batch, heads, tokens, width), takes the query's place, and nothing is scaled. With
    ``through`` = W it is W_h vectors(r) that is met, vectors(r) (heads or 1, ..., width): few queries go through W
    instead. ``theta``: vectors(r) is the sinusoid of -r, (sin(-r theta), cos(-r theta)), so few queries are turned by
    theta instead, and met with the vectors of few distances.
    """

    vectors: Callable[[Tensor], Tensor]
    distance: Distance
    side: Literal["query", "key"] = "query"
    shift: Float[Tensor, "heads head_dim"] | None = None
    feature: str | None = None
    through: Float[Tensor, "heads head_dim width"] | None = None
    theta: Float64[Tensor, " pairs"] | None = None

    def at(self, r: Tensor) -> Tensor:
        """What is met at distances (...), (heads or 1, ..., head_dim)."""
        vectors = self.vectors(r)
        if self.through is None:
            return vectors
        return torch.einsum("h...c,hdc->h...d", vectors, self.through.to(vectors.dtype))

    def __post_init__(self) -> None:
        _check_tail(self.distance)
        if self.feature is not None and (self.side == "key" or self.shift is not None):
            raise ValueError("a Meeting of a feature is the query's, and takes no side='key' and no shift")


@dataclass(frozen=True)
class Fold:
    """Adds the product of one side with a vector of its own: s_ij + scale u_i . k_j with ``query`` = u, or
    s_ij + scale q_i . w_j with ``key`` = w. Either is (batch or 1, heads or 1, tokens or 1, head_dim)."""

    scheme: str
    query: Tensor | None = None
    key: Tensor | None = None


@dataclass(frozen=True)
class Clock:
    """Adds the difference of two readings of a clock: s_ij + F_i - F_j, with F the named feature of queries and keys,
    (batch, heads, tokens)."""

    feature: str


def _none(*_: Tensor) -> tuple[Tensor, ...]:
    """No coefficients."""
    return ()


@dataclass(frozen=True)
class BrokenLine:
    """A number of both coordinates that is a broken line of x = away(r) share(p_i): l_h x + m_h, one line of several.

    ``away`` takes whole distances r = p_j - p_i, and gives numbers from 0 on that do not rise with r; ``share`` takes
    coordinates of queries, and gives a number above 0 for each. Both keep the shape, in double precision. ``lines()``
    gives breaks (n,), which rise from 0 on, and (heads, n + 1, 2), the l and m of every line: line 0 holds for x = 0,
    line k for breaks[k - 1] < x <= breaks[k], the last for all that is greater. Breaks may be equal, or infinite. Where
    two lines meet they give the same number: so breaks have no gradient.
    """

    away: Callable[[Tensor], Tensor]
    share: Callable[[Tensor], Tensor]
    lines: Callable[[], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Function:
    """Any function of one score: s_ij becomes apply(s_ij, *c), elementwise.

    ``apply`` is a function of a module, not a closure, and reads nothing but its arguments, so that it can be named.
    The coefficients c are functions of the distance, each (heads or 1, ...) for distances (...). With ``distance`` None
    they are functions of the coordinates of query and key, which broadcast. ``adds``: apply(s, *c) = s + apply(0, *c).
    ``derivative``, a function of a module too, takes the gradient of apply(s, *c) back to s and to each c, all in the
    shape of s: derivative(gradient, s, *c) -> (gradient, ...). Without it autograd does, more slowly. ``formula``
    says which function it is, for kernels that cannot call Python: "relu times" is ReLU(s) c, "cap" is c tanh(s / c).
    ``broken``: where coordinates are whole numbers, apply(s, *c) is s plus this broken line. ``scheme`` is whose it is,
    for errors, and ``num_heads`` how many heads it is for, where there is no distance that says so.
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
        """Whether its coefficients are functions of both coordinates, not of their distance."""
        return self.distance is None and self.coefficients is not _none


@dataclass(frozen=True)
class Row:
    """Any function of a row of scores: apply(scores, visible, query, key, query_positions, key_positions) -> scores.

    Scores are (batch, heads, queries, keys) with all keys of the call; ``visible`` (None: all) broadcasts to them.
    ``gives_weights``: they become the logarithms of the weights themselves, which `attention` then does not divide by
    their sum, so that a row may have a weight of less than 1. It comes last, then, and no float mask is added.
    ``reads_vectors``: it looks at query or key, and not at their scores alone.
    """

    apply: Callable[..., Tensor]
    gives_weights: bool = False
    reads_vectors: bool = True


@dataclass(frozen=True)
class Value:
    """Adds to the output the attention-weighted mean of a vector per distance: o_i + sum_j a_ij vectors(r).

    ``vectors`` takes distances (...) and gives (heads or 1, ..., value_dim).
    """

    vectors: Callable[[Tensor], Tensor]
    distance: Distance

    def __post_init__(self) -> None:
        _check_tail(self.distance)


def _check_tail(distance: Distance) -> None:
    if distance.tail == "linear":
        raise ValueError(
            f"{distance.scheme}: a tail may be linear for a Bias alone, and is constant or None for vectors"
        )


Piece: TypeAlias = Bias | Meeting | Fold | Clock | Function | Row


def adds(piece: Piece) -> bool:
    """Whether it only adds to the score."""
    return not isinstance(piece, Row) and (not isinstance(piece, Function) or piece.adds)


def is_content_free(piece: Piece) -> bool:
    """Whether what it adds depends on positions alone."""
    return isinstance(piece, Bias) or (isinstance(piece, Function) and piece.adds)


def reads_vectors(piece: Piece) -> bool:
    """Whether it looks at queries or keys by themselves, and not at their product alone."""
    if isinstance(piece, Row):
        return piece.reads_vectors
    return isinstance(piece, Fold) or (isinstance(piece, Meeting) and piece.feature is None)


def check_sequence(pieces: tuple[Piece, ...]) -> None:
    """ValueError where a piece stands after one that it would spoil."""
    hiding = next((n for n, piece in enumerate(pieces) if isinstance(piece, Bias) and piece.hides), None)
    if hiding is not None and any(isinstance(p, Function) and not p.adds for p in pieces[hiding:]):
        raise ValueError(
            "a function of the score stands after a bias that hides keys by -inf, of which it would make a score "
            "that counts: put the scheme of the function before that of the bias"
        )
    if gives_weights(pieces[:-1]):
        raise ValueError(
            "a score term stands after one that gives the logarithms of weights, which are not normalised again, and "
            "would change them: put the scheme that gives weights last"
        )


def gives_weights(pieces: tuple[Piece, ...]) -> bool:
    """Whether scores are the logarithms of weights in the end, which are not to be normalised."""
    return any(isinstance(piece, Row) and piece.gives_weights for piece in pieces)
