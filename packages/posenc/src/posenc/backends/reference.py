"""The reference backend: dense and slow, up to float64. All other backends are tested against it."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from posenc.backends.call import Backend, Call, cleared, in_sight
from posenc.lowering.forms import bucket, dense


def dense_logits(call: Call) -> Float[Tensor, "batch heads queries keys"]:
    """scale * q_i . k_j after all terms of the score door, before mask and softmax.

    Half-precision inputs are computed in float32. With bands, each pair has the score of its band.
    """
    if call.bands:
        scores = dense_logits(replace(call, bands=()))
        apart = call.apart()[:, None]
        for band in call.bands:
            of_band = dense_logits(replace(call, query=band.query, key=band.key, bands=()))
            scores = torch.where(apart >= band.reach, of_band, scores)
        return scores
    block = call.block()
    query, key = block.query, block.key
    grouped = query.unflatten(1, (key.size(1), query.size(1) // key.size(1)))
    scores = torch.einsum("bgrid,bgjd->bgrij", grouped, key).flatten(1, 2) * call.scale
    for term in call.score_terms:
        scores = dense(term, scores, block, call.visibility, call.bool_attn_mask)
    return scores


def _run(call: Call) -> tuple[Tensor, Tensor | None]:
    call = cleared(in_sight(call))
    scores = dense_logits(call)
    if call.attn_mask is not None and call.attn_mask.dtype != torch.bool:
        scores = scores + call.attn_mask.to(scores.dtype)
    seen = call.visible()
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    # A row without finite scores would give 0/0. Its scores are replaced before the softmax, so that its gradient is
    # zero instead of NaN too.
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
    dropped = torch.dropout(weights, call.dropout_p, train=True) if call.dropout_p else weights

    value = call.value.to(call.dtype)
    heads, kv_heads = weights.size(1), value.size(1)
    grouped = dropped.unflatten(1, (kv_heads, heads // kv_heads))
    out = torch.einsum("bgrij,bgjd->bgrid", grouped, value).flatten(1, 2)
    for term in call.values:
        vectors, index = bucket(term, call.block())
        table = vectors.to(call.dtype)
        mass = weights.new_zeros(*weights.shape[:3], table.size(-2))
        out = out + mass.scatter_add(-1, index[:, None].expand(weights.shape), dropped) @ table
    lse = scores.masked_fill(blind, 0.0).logsumexp(-1).masked_fill(blind[..., 0], -torch.inf)
    return out.to(call.query.dtype), lse if call.return_lse else None


REFERENCE = Backend("reference", _run)
