"""Attention as a function, and what goes wrong with it."""

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc_check import Attention
from tests.check.mutants import Mutant


def slopes_of_heads(heads: int = 3) -> list[float]:
    """A slope for each head."""
    return [2.0 ** -(head + 1) for head in range(heads)]


def scored(made: list[float], query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """q·k / √d - m_h |p_i - p_j|"""
    distance = (query_positions[:, None, :, None] - key_positions[:, None, None, :]).abs()
    return query @ key.mT / query.size(-1) ** 0.5 - torch.tensor(made, dtype=query.dtype)[:, None, None] * distance


def seen(query_document: Tensor | None, key_document: Tensor | None, query_order: Tensor, key_order: Tensor) -> Tensor:
    """(rows, 1, queries, keys)"""
    earlier = key_order[:, None, None, :] <= query_order[:, None, :, None]
    if query_document is None or key_document is None:
        return earlier
    key_document = key_document[:, None, None, :]
    return earlier & (query_document[:, None, :, None] == key_document) & (key_document != -1)


def weighed(scores: Tensor, value: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """What a query that sees nothing gets is zeros."""
    scores = scores.masked_fill(~visible, -torch.inf)
    return torch.where(visible.any(-1, keepdim=True), scores.softmax(-1), 0.0) @ value, scores.logsumexp(-1)


def attend_to_the_past(made: list[float], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention without positions: queries are the last of the keys."""
    ahead = key.size(2) - query.size(2)
    mask = torch.ones(query.size(2), key.size(2)).tril(ahead).bool()
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


# -- bugs -------------------------------------------------------------------------------------------------------------


def attend_to_earlier_documents(
    made: list[float],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    query_order: Tensor,
    key_order: Tensor,
    query_document: Tensor,
    key_document: Tensor,
) -> Tensor:
    """No document sees a later one."""
    visible = seen(None, None, query_order, key_order)
    visible = visible & (key_document[:, None, None, :] <= query_document[:, None, :, None])
    return weighed(scored(made, query, key, query_positions, key_positions), value, visible)[0]


PAST = Attention(build=slopes_of_heads, call=attend_to_the_past, causal=True)


def with_call(call: object) -> Attention:
    return Attention(build=slopes_of_heads, call=call, causal=True)  # type: ignore[arg-type]


CORRECT = (PAST,)
MUTANTS = (Mutant("earlier documents seen", with_call(attend_to_earlier_documents), 11, 4),)
