"""Awkward schemes, written against the contract as a user would write them.

They are here to try the contract, not to be used: parameters are of order 1 and in double precision, arguments are not
checked, and the formulas stand in `oracles.py`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc import Positions, RoPE, Scheme
from posenc.encoding.encoding import Context, Encoding
from posenc.encoding.pieces import Bias, Clock, Distance, Meeting, Row

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


class RoPEWithSinks(RoPE):
    """A RoPE, and the sinks of the layer that has it."""

    def __init__(self, num_heads: int, head_dim: int, base: float) -> None:
        super().__init__(head_dim, base=base)
        self.sinks = weight(num_heads)


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
