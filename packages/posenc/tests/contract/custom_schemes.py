"""Custom schemes, written against the contract as a user would write them.

They are here to try the contract, not to be used: parameters are of order 1 and in double precision, arguments are not
checked, and the formulas stand in `oracles.py`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc import ALiBi, Positions, RoPE, Scheme
from posenc.encoding.encoding import Context
from posenc.encoding.terms import Row

DOUBLE = torch.float64


def weight(*shape: int) -> nn.Parameter:
    """Numbers of order 1, so that none hides behind a small beginning."""
    return nn.Parameter(torch.randn(*shape, dtype=DOUBLE))


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
        (score_term,) = self.bias.score(x, y)
        bias = score_term.at(y.coords[:, None] - x.coords[:, :, None]).to(scores).movedim(0, 1).expand_as(scores)
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
