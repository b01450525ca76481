"""Awkward schemes, written against the contract as a user would write them.

They are here to try the contract, not to be used: parameters are of order 1 and in double precision, arguments are not
checked, and the formulas stand in `oracles.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc import Positions, RoPE, Scheme
from posenc.encoding.encoding import Context, Encoding
from posenc.encoding.pieces import Bias, Clock, Distance, Fold, Function, Meeting, Row, Value
from posenc.encoding.rotation import Rotation
from posenc.rotation.phases import frequencies, phases

DOUBLE = torch.float64


def weight(*shape: int) -> nn.Parameter:
    """Numbers of order 1, so that none hides behind a small beginning."""
    return nn.Parameter(torch.randn(*shape, dtype=DOUBLE))


class ALiBi(Scheme):
    """One line of all heads; the context says which of them a shard holds."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        power = 2 ** int(math.log2(num_heads))
        twice = [2 ** (-8 * (h + 1) / (2 * power)) for h in range(2 * power)]
        self.slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)] + twice[::2][: num_heads - power]

    def score(self, query_positions: Positions, key_positions: Positions, context: Context | None = None) -> tuple:
        return (Bias(self._at, Distance("ALiBi", tail="linear")),)

    def _at(self, r: Tensor) -> Tensor:
        return torch.tensordot(torch.tensor(self.slopes, dtype=DOUBLE), r.to(DOUBLE), 0)


class Shaw(Scheme):
    """A table of vectors per clipped distance, in the keys and in the values."""

    def __init__(self, head_dim: int, value_dim: int, max_distance: int) -> None:
        super().__init__()
        self.keys, self.values = weight(2 * max_distance + 1, head_dim), weight(2 * max_distance + 1, value_dim)
        self.k = max_distance

    def score(self, query_positions: Positions, key_positions: Positions, context: Context | None = None) -> tuple:
        return (Meeting(lambda r: self.keys[self._row(r)][None], self._distance),)

    def value(self, query_positions: Positions, key_positions: Positions, context: Context | None = None) -> tuple:
        return (Value(lambda r: self.values[self._row(r)][None], self._distance),)

    @property
    def _distance(self) -> Distance:
        return Distance("Shaw", integral=True, tail="constant", past=self.k)

    def _row(self, r: Tensor) -> Tensor:
        return r.clamp(-self.k, self.k) + self.k


class TransformerXL(Scheme):
    """u meets the key; the query and v meet a projected sinusoid of the distance."""

    def __init__(self, num_heads: int, head_dim: int, dim: int, base: float) -> None:
        super().__init__()
        self.projection, self.u, self.v = (
            weight(num_heads, head_dim, dim),
            weight(num_heads, head_dim),
            weight(num_heads, head_dim),
        )
        self.base = base

    def score(self, query_positions: Positions, key_positions: Positions, context: Context | None = None) -> tuple:
        u = Fold("TransformerXL", query=self.u[None, :, None])
        return u, Meeting(self._sinusoid, Distance("TransformerXL"), shift=self.v)

    def _sinusoid(self, r: Tensor) -> Tensor:
        angle = phases(-r, frequencies(self.projection.size(-1), self.base))
        return torch.einsum("...c,hdc->h...d", torch.cat((angle.sin(), angle.cos()), -1), self.projection)


class DeBERTa(Scheme):
    """One table of distances, projected by the layer's own projections of queries and of keys: the scheme of a layer is
    handed its modules, and shares their weights. The scale 1/sqrt(3 d) is the model's."""

    def __init__(self, table: nn.Parameter, query: nn.Linear, key: nn.Linear, head_dim: int) -> None:
        super().__init__()
        self.vectors, self.of_query, self.of_key, self.head_dim = table, query, key, head_dim

    def score(self, query_positions: Positions, key_positions: Positions, context: Context | None = None) -> tuple:
        k = self.vectors.size(0) // 2
        distance = Distance("DeBERTa", integral=True, tail="constant", past=k)
        queries, keys = (
            project(self.vectors).unflatten(-1, (-1, self.head_dim)).transpose(0, 1)
            for project in (self.of_query, self.of_key)
        )
        keys = keys.repeat_interleave(queries.size(0) // keys.size(0), 0)

        def rows(table: Tensor, r: Tensor) -> Tensor:
            return table[:, (k - r).clamp(0, 2 * k - 1)]

        content_to_position = Meeting(lambda r: rows(keys, r), distance)
        position_to_content = Meeting(lambda r: rows(queries, r), distance, side="key")
        return content_to_position, position_to_content


class Swin(Scheme):
    """A table of both differences, for every head."""

    def __init__(self, height: int, width: int, num_heads: int) -> None:
        super().__init__()
        self.vectors, self.sides = weight((2 * height - 1) * (2 * width - 1), num_heads), (height, width)

    def score(self, query_positions: Positions, key_positions: Positions, context: Context | None = None) -> tuple:
        return (Bias(self._at, Distance("Swin", axis=None, integral=True, reach=self.sides)),)

    def _at(self, r: Tensor) -> Tensor:
        height, width = self.sides
        index = (r[..., 0] + height - 1) * (2 * width - 1) + r[..., 1] + width - 1
        return self.vectors[index].movedim(-1, 0)


class Swin2(Scheme):
    """A bias that a small network makes of log-spaced differences, and cosine attention, whose scale a head learns."""

    def __init__(self, num_heads: int, sides: tuple[int, int], hidden: int) -> None:
        super().__init__()
        self.w1, self.b1, self.w2 = weight(hidden, 2), weight(hidden), weight(num_heads, hidden)
        self.tau, self.sides = nn.Parameter(torch.linspace(0.2, 6, num_heads, dtype=DOUBLE)), sides

    @property
    def scale(self) -> float:
        return 1.0

    def rotation(self, positions: Positions, dtype: torch.dtype = DOUBLE, context: Context | None = None) -> Rotation:
        scale = self.tau.clamp(max=math.log(100)).exp()[:, None, None]
        return Rotation(lambda x: F.normalize(x, dim=-1) * scale, lambda x: F.normalize(x, dim=-1))

    def score(self, query_positions: Positions, key_positions: Positions, context: Context | None = None) -> tuple:
        return (Bias(self._at, Distance("Swin2", axis=None)),)

    def _at(self, r: Tensor) -> Tensor:
        x = 8 * r.to(DOUBLE) / torch.tensor([n - 1 for n in self.sides], dtype=DOUBLE)
        x = x.sign() * (x.abs() + 1).log2() / 3
        hidden = F.linear(x, self.w1, self.b1).relu()
        return 16 * F.linear(hidden, self.w2).sigmoid().movedim(-1, 0)


class Relative2D(Scheme):
    """A table of vectors for the row and one for the column: two meetings, each of which goes by one of two axes."""

    def __init__(self, sides: tuple[int, int], head_dim: int, num_heads: int) -> None:
        super().__init__()
        self.rows, self.columns = (weight(num_heads, 2 * side - 1, head_dim) for side in sides)
        self.sides = sides

    def score(self, query_positions: Positions, key_positions: Positions, context: Context | None = None) -> tuple:
        return self._along(0, self.rows), self._along(1, self.columns)

    def _along(self, axis: int, vectors: Tensor) -> Meeting:
        side = self.sides[axis]
        distance = Distance("Relative2D", axis, axes=2, integral=True, reach=(side,))
        return Meeting(lambda r: vectors[:, r + side - 1], distance)


class FoX(Scheme):
    """A clock that the layer makes: the running sum of the logarithms of its forget gates."""

    def score(self, query_positions: Positions, key_positions: Positions, context: Context | None = None) -> tuple:
        return (Clock("forgotten"),)


def forgotten(gates: Tensor, last: Tensor | None = None) -> dict[str, Tensor]:
    """The feature of `FoX`, (batch, heads, tokens); it goes on from ``last``, that of the token before."""
    total = F.logsigmoid(gates).cumsum(-1)
    return {"forgotten": total if last is None else total + last[..., None]}


class Inkling(Scheme):
    """A feature of the query meets a vector per distance back, and nothing from the extent on."""

    def __init__(self, extent: int, width: int) -> None:
        super().__init__()
        self.vectors = weight(extent, width)

    def score(self, query_positions: Positions, key_positions: Positions, context: Context | None = None) -> tuple:
        extent = self.vectors.size(0)
        return (Meeting(self._at, Distance("Inkling", integral=True, tail="constant", past=extent), feature="r"),)

    def _at(self, r: Tensor) -> Tensor:
        back, extent = -r, self.vectors.size(0)
        inside = (back >= 0) & (back < extent)
        return (self.vectors[back.clamp(0, extent - 1)] * inside[..., None])[None]


class MLA(RoPE):
    """Keys and values of all heads come from one latent vector; a slice of one head's width is rotated and shared.

    It is a RoPE of that slice; the up-projections are the model's, and stand here to be trained with it.
    """

    def __init__(self, num_heads: int, plain: int, rotated: int, latent: int, value_dim: int) -> None:
        super().__init__(rotated, base=313.0)
        self.up_key, self.up_value = weight(num_heads, plain, latent), weight(num_heads, value_dim, latent)

    @property
    def softmax_scale(self) -> float:
        return (self.up_key.size(1) + self.head_dim) ** -0.5

    def expanded(self, encoding: Encoding, query: Tensor, latent: Tensor, shared: Tensor) -> tuple[Tensor, ...]:
        """Query, key and value of every head, as in training."""
        heads, plain, _ = self.up_key.shape
        turned = encoding.rotate_key(shared).expand(-1, heads, -1, -1)
        key = torch.cat((latent @ self.up_key.mT, turned), -1)
        return self._query(encoding, query[..., :plain], query), key, latent @ self.up_value.mT

    def absorbed(self, encoding: Encoding, query: Tensor, latent: Tensor, shared: Tensor) -> tuple[Tensor, ...]:
        """Query, and the key and value of one head that all share, as when decoding from a cache."""
        plain = self.up_key.size(1)
        key = torch.cat((latent, encoding.rotate_key(shared)), -1)
        return self._query(encoding, query[..., :plain] @ self.up_key, query), key, latent

    def _query(self, encoding: Encoding, content: Tensor, query: Tensor) -> Tensor:
        return torch.cat((content, encoding.rotate_query(query[..., self.up_key.size(1) :])), -1)


class PoPE(Scheme):
    """The length of a channel is a softplus, its phase the position: maps that are not linear and widen d to 2d."""

    def __init__(self, kv_heads: int, head_dim: int, base: float) -> None:
        super().__init__()
        self.delta, self.base = nn.Parameter(-6 * torch.rand(kv_heads, head_dim, dtype=DOUBLE)), base

    @property
    def scale(self) -> float:
        return self.delta.size(-1) ** -0.5

    def rotation(self, positions: Positions, dtype: torch.dtype = DOUBLE, context: Context | None = None) -> Rotation:
        dim = self.delta.size(-1)
        angle = phases(positions.scalar("PoPE"), frequencies(2 * dim, self.base))[:, None]

        def wide(x: Tensor, angle: Tensor) -> Tensor:
            return torch.cat((F.softplus(x) * angle.cos(), F.softplus(x) * angle.sin()), -1).to(x.dtype)

        phase = self.delta.clamp(-2 * math.pi, 0)[:, None]
        return Rotation(lambda q: wide(q, angle), lambda k: wide(k, angle + phase))


class RoPEWithSinks(RoPE):
    """A RoPE, and the sinks of the layer that has it."""

    def __init__(self, num_heads: int, head_dim: int, base: float) -> None:
        super().__init__(head_dim, base=base)
        self.sinks = weight(num_heads)


class CoPE(Scheme):
    """A position is how many tokens of the row count."""

    def __init__(self, num_positions: int, head_dim: int) -> None:
        super().__init__()
        self.embedding = weight(num_positions, head_dim)

    def score(self, query_positions: Positions, key_positions: Positions, context: Context | None = None) -> tuple:
        return (Row(self._counted),)

    def _counted(
        self, scores: Tensor, seen: Tensor | None, query: Tensor, key: Tensor, x: Positions, y: Positions
    ) -> Tensor:
        gates = scores.sigmoid() if seen is None else scores.sigmoid().masked_fill(~seen, 0.0)
        later = (y.order[:, None, :] >= y.order[:, :, None]).to(gates.dtype)  # [b, j, t]: t not before j
        count = torch.einsum("bhit,bjt->bhij", gates, later).clamp(max=self.embedding.size(0) - 1)
        low, part, met = count.floor().long(), count - count.floor(), query @ self.embedding.mT
        return scores + (1 - part) * met.gather(-1, low) + part * met.gather(-1, count.ceil().long())


class DAPE(Scheme):
    """A network of one hidden layer mixes the scores and ALiBi's biases of all heads, for each pair."""

    def __init__(self, num_heads: int, hidden: int) -> None:
        super().__init__()
        self.bias = ALiBi(num_heads)
        self.w1, self.b1 = weight(hidden, 2 * num_heads), weight(hidden)
        self.w2, self.b2 = weight(num_heads, hidden), weight(num_heads)

    def score(self, query_positions: Positions, key_positions: Positions, context: Context | None = None) -> tuple:
        if context is not None and context.heads is not None:
            raise ValueError("DAPE mixes the scores of all heads, so heads cannot be divided")
        return (Row(self._mixed),)

    def _mixed(
        self, scores: Tensor, seen: Tensor | None, query: Tensor, key: Tensor, x: Positions, y: Positions
    ) -> Tensor:
        (piece,) = self.bias.score(x, y)
        bias = piece.at(y.coords[:, None] - x.coords[:, :, None]).movedim(0, 1).expand_as(scores)
        both = torch.cat((scores, bias), 1).movedim(1, -1)
        mixed = F.linear(F.leaky_relu(F.linear(both, self.w1, self.b1)), self.w2, self.b2)
        return scores + bias + mixed.movedim(-1, 1)


class PaTH(Scheme):
    """Every token t rewrites the keys before it: k <- k - beta_t (k . w_t) w_t.

    A layer's w and beta are further channels of its key, which is cached, packed and divided with them; queries have
    zeros there. The query goes back along the order, and is rewritten in place of the keys: each map is symmetric.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim

    def widened(self, query: Tensor, key: Tensor, w: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        """What attention is given; its scale is that of head_dim."""
        none = query.new_zeros(*query.shape[:-1], self.head_dim + 1)
        steps = (F.normalize(w, dim=-1), 2 * beta.sigmoid()[..., None])
        return torch.cat((query, none), -1), torch.cat((key, *steps), -1)

    def score(self, query_positions: Positions, key_positions: Positions, context: Context | None = None) -> tuple:
        return (Row(self._rewritten),)

    def _rewritten(
        self, scores: Tensor, seen: Tensor | None, query: Tensor, key: Tensor, x: Positions, y: Positions
    ) -> Tensor:
        d = self.head_dim
        wide = key.repeat_interleave(query.size(1) // key.size(1), 1)
        order = y.order.expand(key.size(0), -1)
        latest = order.sort(dim=-1, descending=True, stable=True).indices[:, None, :, None]
        sorted_key = wide.gather(2, latest.expand_as(wide))
        there = torch.ones_like(scores, dtype=torch.bool) if seen is None else seen.expand_as(scores)
        there = there.gather(-1, latest.mT.expand_as(there))
        q, added = query[..., :d], []
        for n in range(key.size(2)):
            k, w, beta = sorted_key[:, :, n, None].split((d, d, 1), -1)
            added.append(((q - query[..., :d]) * k).sum(-1))
            q = q - there[..., n, None] * beta * (q * w).sum(-1, keepdim=True) * w
        by_order = d**-0.5 * torch.stack(added, -1)
        return scores + torch.zeros_like(scores).scatter(-1, latest.mT.expand_as(scores), by_order)


class StickBreaking(Scheme):
    """Each key, from the nearest on, takes its share of what is left of a stick of length 1.

    The row's scores are the logarithms of the shares. Their sum is below 1, so the softmax has to be taken back:
    `broken` does so by the log-sum-exp.
    """

    def score(self, query_positions: Positions, key_positions: Positions, context: Context | None = None) -> tuple:
        return (Row(self._shares),)

    @staticmethod
    def _shares(scores: Tensor, seen: Tensor | None, query: Tensor, key: Tensor, x: Positions, y: Positions) -> Tensor:
        left = F.logsigmoid(-scores)
        left = left if seen is None else left.masked_fill(~seen, 0.0)
        later = (y.order[:, None, :] > y.order[:, :, None]).to(scores.dtype)  # [b, j, t]: t after j
        return F.logsigmoid(scores) + torch.einsum("bhit,bjt->bhij", left, later)


def broken(out: Tensor, lse: Tensor) -> Tensor:
    """sum_j A_ij v_j of an output that was divided by sum_j A_ij."""
    return out * lse.exp()[..., None]


class SoftCap(Scheme):
    """cap tanh(s / cap). A function reads nothing but its arguments, so the cap goes along as a coefficient."""

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = nn.Parameter(torch.tensor(cap, dtype=DOUBLE))

    def score(self, query_positions: Positions, key_positions: Positions, context: Context | None = None) -> tuple:
        return (Function(capped, lambda r: (self.cap.expand(1, *r.shape),), Distance("SoftCap")),)


def capped(score: Tensor, cap: Tensor) -> Tensor:
    """cap tanh(s / cap)."""
    return cap * torch.tanh(score / cap)


class FIRE(Scheme):
    """A network of the distance over the query's position: a function of both coordinates."""

    def __init__(self, num_heads: int, hidden: int, length: float) -> None:
        super().__init__()
        self.w1, self.b1 = weight(hidden, 1), weight(hidden)
        self.w2, self.b2 = weight(num_heads, hidden), weight(num_heads)
        self.c, self.length = nn.Parameter(torch.tensor(0.7, dtype=DOUBLE)), length
        self.multiple = nn.Parameter(torch.tensor(1.1, dtype=DOUBLE))

    def score(self, query_positions: Positions, key_positions: Positions, context: Context | None = None) -> tuple:
        return (Function(torch.add, self._bias, adds=True),)

    def _bias(self, x: Tensor, y: Tensor) -> tuple[Tensor]:
        x, away = x.to(DOUBLE), (x - y).clamp(min=0).to(DOUBLE)
        far = torch.maximum(x, (self.multiple * self.length).abs())
        ratio = torch.log1p(self.c.abs() * away) / torch.log1p(self.c.abs() * far)
        hidden = F.linear(ratio[..., None], self.w1, self.b1).relu()
        return (F.linear(hidden, self.w2, self.b2).movedim(-1, 0),)


def interleaved(pairs: int, rows: int, columns: int) -> Sequence[int]:
    """M-RoPE's axis of every pair: time, but rows at 1::3 below 3 ``rows``, and columns at 2::3 below 3 ``columns``."""
    axis = [0] * pairs
    axis[1 : 3 * rows : 3] = [1] * len(range(1, 3 * rows, 3))
    axis[2 : 3 * columns : 3] = [2] * len(range(2, 3 * columns, 3))
    return axis
