"""Schemes that could bend the contract and are not in the library, written against it as a user would write them.

They are here to try the contract, not to be used: no initialisation, no checks, no documentation of their own. Between
them and the catalog, every kind of term is there.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from posenc import Positions
from posenc.encoding.encoding import Context
from posenc.encoding.terms import AddedVector, Bias, CumulativeBias, Distance, Function, RelativeDot, Row, ScoreTerm
from posenc.scheme import Scheme
from posenc.schemes.softcap import capped as capped_at


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, dtype=torch.float64))


class TrialCoPE(Scheme):
    """Counts along the row."""

    def __init__(self, num_positions: int, head_dim: int) -> None:
        super().__init__()
        self.embedding = weight(num_positions, head_dim)

    def score(
        self, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[Row, ...]:
        return (Row(self._counted),)

    def _counted(
        self, scores: Tensor, visible: Tensor | None, query: Tensor, key: Tensor, x: Positions, y: Positions
    ) -> Tensor:
        met = query @ self.embedding.mT.to(query.dtype)
        gates = scores.sigmoid()
        gates = gates if visible is None else gates.masked_fill(~visible, 0.0)
        later = (y.order[:, None, :] >= y.order[:, :, None]).to(gates.dtype)  # [b, j, t]: t not before j
        later = later.expand(len(gates), -1, -1)
        count = torch.einsum("bhit,bjt->bhij", gates, later).clamp(max=self.embedding.size(0) - 1)
        low, part = count.floor(), count - count.floor()
        return scores + (1 - part) * met.gather(-1, low.long()) + part * met.gather(-1, count.ceil().long())


class MixedHeads(Scheme):
    """Every head's scores are a sum of those of all heads (DAPE)."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.mix = weight(num_heads, num_heads)

    def score(
        self, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[Row, ...]:
        return (Row(lambda scores, *_: scores + torch.einsum("gh,bhij->bgij", self.mix.to(scores), scores)),)


class TermScheme(Scheme):
    """A score of terms that ``make`` makes of named parameters."""

    def __init__(self, make: Callable[..., tuple[ScoreTerm, ...]], **parameters: nn.Parameter) -> None:
        super().__init__()
        self.make, self.named = make, nn.ParameterDict(parameters)

    def score(
        self, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[Any, ...]:
        return self.make(**self.named)


def _clipped(table: Tensor, k: int) -> Callable[[Tensor], Tensor]:
    return lambda r: table[:, r.clamp(-k, k) + k]


def disentangled(head_dim: int, heads: int, k: int = 5, tail: Any = "constant") -> Scheme:
    """Queries and keys each meet vectors of the distance (DeBERTa); where there is no tail, up to ``k`` apart alone."""
    reach = None if tail else (k + 1,)

    def make(of_keys: Tensor, of_queries: Tensor) -> tuple[ScoreTerm, ...]:
        distance = Distance("Disentangled", integral=True, tail=tail, past=k, reach=reach)
        return (RelativeDot(_clipped(of_keys, k), distance), RelativeDot(_clipped(of_queries, k), distance, side="key"))

    return TermScheme(make, of_keys=weight(heads, 2 * k + 1, head_dim), of_queries=weight(1, 2 * k + 1, head_dim))


def clocked(heads: int) -> Scheme:
    """Every token has a reading of a clock, and the score falls by their difference (FoX); beside it a bias."""

    def make(table: Tensor) -> tuple[ScoreTerm, ...]:
        bias = Bias(_clipped(table, 3), Distance("Clocked", integral=True, tail="constant", past=3))
        return CumulativeBias("clock"), bias

    return TermScheme(make, table=weight(heads, 7))


def featured(head_dim: int, heads: int, k: int = 4) -> Scheme:
    """A feature of the query, of a width of its own, meets vectors of the distance, and the query others."""

    def make(of_feature: Tensor, of_query: Tensor) -> tuple[ScoreTerm, ...]:
        distance = Distance("Featured", integral=True, tail="constant", past=k)
        return RelativeDot(_clipped(of_feature, k), distance, feature="gist"), RelativeDot(
            _clipped(of_query, k), distance
        )

    return TermScheme(make, of_feature=weight(heads, 2 * k + 1, 3), of_query=weight(1, 2 * k + 1, head_dim))


def capped(score: Tensor) -> Tensor:
    """A soft cap of the score."""
    return 3 * (score / 3).tanh()


def softcap() -> Scheme:
    """A function of the score that looks at no position."""
    return TermScheme(lambda: (Function(capped),))


def squeezed(score: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """A function of the score with two coefficients."""
    return score.tanh() * c + d


def squeezing(heads: int, k: int = 6) -> Scheme:
    """A function of the score and of two numbers of the distance, after a bias."""

    def make(c: Tensor, d: Tensor, bias: Tensor) -> tuple[ScoreTerm, ...]:
        distance = Distance("Squeezing", integral=True, tail="constant", past=k)
        return (
            Bias(_clipped(bias, k), distance),
            Function(squeezed, lambda r: (_clipped(c, k)(r), _clipped(d, k)(r)), distance),
        )

    return TermScheme(make, c=weight(heads, 2 * k + 1), d=weight(1, 2 * k + 1), bias=weight(heads, 2 * k + 1))


def capping(heads: int, k: int = 6) -> Scheme:
    """A soft cap of each head and distance, which is learned, after a bias."""

    def make(c: Tensor, bias: Tensor) -> tuple[ScoreTerm, ...]:
        distance = Distance("Capping", integral=True, tail="constant", past=k)
        return (
            Bias(_clipped(bias, k), distance),
            Function(capped_at, lambda r: (_clipped(c.exp(), k)(r),), distance, formula="cap"),
        )

    return TermScheme(make, c=weight(heads, 2 * k + 1), bias=weight(heads, 2 * k + 1))


def plus(score: Tensor, c: Tensor) -> Tensor:
    """The score and a number."""
    return score + c


def interpolated(heads: int) -> Scheme:
    """A number of both coordinates (FIRE)."""

    def make(scale: Tensor) -> tuple[ScoreTerm, ...]:
        def of_both(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            share = (x - y).abs() / (x.abs() + y.abs() + 1)
            return (scale[:, None, None, None] * share.to(scale.dtype),)

        return (Function(plus, of_both, adds=True),)

    return TermScheme(make, scale=weight(heads))


def learned_slope(heads: int) -> Scheme:
    """A straight line of the distance with a learned slope, which its terms do not hide."""

    def make(slope: Tensor) -> tuple[ScoreTerm, ...]:
        distance = Distance("Slope", tail="linear")
        return (Bias(lambda r: torch.tensordot(-slope.exp(), r.abs().to(slope.dtype), 0), distance),)

    return TermScheme(make, slope=weight(heads))


def bent_line(heads: int) -> Scheme:
    """A fixed bias that is straight from 3 on, to the right steeper than to the left."""

    def make() -> tuple[ScoreTerm, ...]:
        def at(r: Tensor) -> Tensor:
            h = torch.arange(1, heads + 1, dtype=torch.float64, device=r.device) / heads
            near = (r.abs() < 3) * (r**2 % 5)
            return torch.tensordot(-h, (r.abs() + 0.5 * r.clamp(min=0) + near).double(), 0)

        return (Bias(at, Distance("Bent", integral=True, tail="linear", past=3)),)

    return TermScheme(make)


def of_each_key(head_dim: int) -> Scheme:
    """A vector of every key, of a content of its own."""
    return TermScheme(lambda u: (AddedVector("OfEachKey", query=u[None, :, None]),), u=weight(1, head_dim))
