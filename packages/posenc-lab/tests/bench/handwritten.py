"""Attention as one would write it by hand, right and wrong, for `posenc bench --mine`."""

from typing import Any

import torch
from torch import Tensor, nn


def dense(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    scores = query @ key.mT / query.size(3) ** 0.5 + bias
    return scores.masked_fill(back(query) < 0, -torch.inf).softmax(-1) @ value


def back(query: Tensor) -> Tensor:
    """How far before each query each key lies."""
    line = torch.arange(query.size(2))
    return line[:, None] - line


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return dense(query, key, value)


def alibi(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    slopes = torch.tensor([2.0 ** (-8 * (head + 1) / query.size(1)) for head in range(query.size(1))])
    return dense(query, key, value, (-slopes[:, None, None] * back(query)).to(query.dtype))


def distance_aware(query: Tensor, key: Tensor, value: Tensor, *, scheme: Any) -> Tensor:
    scores = (query @ key.mT / query.size(3) ** 0.5).relu()
    factor = (1 + scheme.v.exp()) / (1 + (scheme.v - scheme.w * back(query)[..., None]).exp())
    return (scores * factor.movedim(-1, 0)).masked_fill(back(query) < 0, -torch.inf).softmax(-1) @ value


class Module(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, scheme: Any) -> Tensor:
        near = back(query).clamp(0, scheme.max_positions - 1)
        vectors = scheme.weight[scheme.max_positions - 1 - near]
        return dense(query, key, value, (query[..., None, :] * vectors).sum(-1) / query.size(3) ** 0.5)


module = Module()

# -- wrong ------------------------------------------------------------------------------------------------------------


def without_mask(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT / query.size(3) ** 0.5).softmax(-1) @ value


def without_gradient(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return dense(query, key.detach() + 0 * key, value)


def not_a_number(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return dense(query, key, value).index_fill(2, torch.tensor([5]), torch.nan)


def in_place(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query *= 2
    return dense(query / 2, key, value)


def joined(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return dense(query, key, value).transpose(1, 2).flatten(2)


def widened(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return dense(query, key, value).double()


def with_weights(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return dense(query, key, value), query @ key.mT


def fails(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    raise RuntimeError("no kernel")
