"""Attention as a function, and what goes wrong with it."""

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.tools.check import Attention
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


def attend_by_distance(
    made: list[float],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    query_order: Tensor,
    key_order: Tensor,
    query_document: Tensor | None = None,
    key_document: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Causal attention with ALiBi."""
    visible = seen(query_document, key_document, query_order, key_order)
    out = weighed(scored(made, query, key, query_positions, key_positions), value, visible)
    return out if return_lse else out[0]


def attend_to_the_past(made: list[float], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention without positions: queries are the last of the keys."""
    ahead = key.size(2) - query.size(2)
    mask = torch.ones(query.size(2), key.size(2)).tril(ahead).bool()
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def attend_to_visible(
    made: list[float],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
) -> Tensor:
    """Attention with ALiBi to what it is told to see."""
    return weighed(scored(made, query, key, query_positions, key_positions), value, visible)[0]


# -- bugs -------------------------------------------------------------------------------------------------------------


def attend_from_the_upper_left(made: list[float], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Where queries are fewer, the first query sees the first key alone."""
    mask = torch.ones(query.size(2), key.size(2)).tril().bool()
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def attend_by_index(
    made: list[float],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    query_order: Tensor,
    key_order: Tensor,
) -> Tensor:
    """Causality by the index, whatever order it is told."""
    keys = torch.arange(key.size(2))[None]
    visible = seen(None, None, keys[:, -query.size(2) :], keys)
    return weighed(scored(made, query, key, query_positions, key_positions), value, visible)[0]


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


def attend_with_a_small_penalty(
    made: list[float],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    query_order: Tensor,
    key_order: Tensor,
    query_document: Tensor | None = None,
    key_document: Tensor | None = None,
) -> Tensor:
    """e^-30 is small, and not zero."""
    visible = seen(query_document, key_document, query_order, key_order)
    scores = scored(made, query, key, query_positions, key_positions) - 30.0 * ~visible
    return scores.softmax(-1) @ value


def attend_with_the_sum_of_raw_scores(
    made: list[float],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    query_order: Tensor,
    key_order: Tensor,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The log-sum-exp knows nothing of the bias."""
    visible = seen(None, None, query_order, key_order)
    out, _ = weighed(scored(made, query, key, query_positions, key_positions), value, visible)
    return (out, weighed(query @ key.mT / query.size(-1) ** 0.5, value, visible)[1]) if return_lse else out


DISTANCE = Attention(build=slopes_of_heads, call=attend_by_distance, causal=True, relative=True)
PAST = Attention(build=slopes_of_heads, call=attend_to_the_past, causal=True)
VISIBLE = Attention(build=slopes_of_heads, call=attend_to_visible, causal=True, relative=True)


def with_call(call: object) -> Attention:
    return Attention(build=slopes_of_heads, call=call, causal=True)  # type: ignore[arg-type]


CORRECT = (DISTANCE, PAST, VISIBLE)
MUTANTS = (
    Mutant("a mask from the upper left, in chunks", with_call(attend_from_the_upper_left), 8, 5),
    Mutant("a mask from the upper left", with_call(attend_from_the_upper_left), 9, 5),
    Mutant("causality by index", with_call(attend_by_index), 10, 3),
    Mutant("earlier documents seen", with_call(attend_to_earlier_documents), 11, 4),
    Mutant("documents weighed by e^-30", with_call(attend_with_a_small_penalty), 11, 4),
    Mutant("log-sum-exp without the bias", with_call(attend_with_the_sum_of_raw_scores), 12, 16),
)
