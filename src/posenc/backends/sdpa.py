"""PyTorch's scaled_dot_product_attention, fed a mask: its fused kernel wherever a scheme is an additive bias.

A mask that requires grad, of a learned bias in training, PyTorch computes unfused.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.backends.call import Backend, Call
from posenc.encoding import Block, RowScore, Score
from posenc.positions import same_run


def _refuses(call: Call) -> str | None:
    if len(call.values) > 0:
        return "the value door needs the attention weights, which the fused kernel does not give"
    if any(isinstance(term, RowScore) for term in call.scores):
        return "a score term needs whole rows of scores, which the fused kernel does not give"
    if any(isinstance(term, Score) and not term.additive for term in call.scores):
        return "a score term is not additive, and the fused kernel only adds a mask"
    if call.return_lse:
        return "the fused kernel does not return the log-sum-exp"
    return None


def _by_distance(term: Score | RowScore) -> bool:
    return isinstance(term, Score) and term.by_distance is not None


def _bias(call: Call) -> Tensor | None:
    """The sum of all additive terms and of a float ``attn_mask``, (1 or B, 1 or H, M or 1, N), or None."""
    bias: Tensor | None = None
    if call.attn_mask is not None and call.attn_mask.dtype != torch.bool:
        bias = call.attn_mask.to(call.dtype)
    zero = torch.zeros((), dtype=call.dtype, device=call.query.device)
    for term in call.unfolded:
        assert isinstance(term, Score)
        if call.query.size(2) == 1 and term.by_distance is not None and term.fold is None and call.ahead is not None:
            added = _row(call, call.ahead, term)
        else:
            block = call.content_free_block() if term.content_free else call.block()
            added = term.bind(block)(zero, *block.indices)
        bias = added if bias is None else bias + added
    return bias


def _row(call: Call, ahead: int, term: Score) -> Tensor:
    """What a term by distance gives one query, (1 or B, H, 1, N): decoding is to cost no more than reading a cache."""
    assert term.by_distance is not None
    block = Block(call.query, call.key, call.query_positions, call.key_positions, call.scale)
    keys = call.key.size(2)
    far = 0  # keys that are so far back that they all get the same
    if term.constant_past is not None and keys - 1 <= ahead:
        far = max(0, min(ahead - term.constant_past, keys - 1))
    given = term.by_distance(block, torch.arange(far - ahead, keys - ahead, device=call.query.device))
    row = torch.zeros((), dtype=call.dtype, device=call.query.device)
    if given.vectors is not None:
        row = call.query.to(call.dtype) @ given.vectors.mT
    if given.bias is not None:
        row = row + given.bias[None, :, None]
    return torch.cat((row[..., :1].expand(*row.shape[:-1], far), row), -1) if far else row


def _run(call: Call) -> tuple[Tensor, Tensor | None]:
    query, key = call.inner()
    width = call.value.size(-1)
    # Fused kernels want all three as wide, and a folded term brings channels.
    widest = max(query.size(-1), width)
    query, key, value = (
        x if x.size(-1) == widest else F.pad(x, (0, widest - x.size(-1))) for x in (query, key, call.value)
    )
    grouped = query.size(1) != key.size(1)
    plain = len(call.unfolded) == 0 and call.attn_mask is None
    # The kernel hides keys before it scales: -inf times a scale of 0 or below would be no hiding.
    if plain and call.is_causal and call.scale > 0 and same_run(call.query_positions, call.key_positions):
        out = F.scaled_dot_product_attention(
            query, key, value, None, call.dropout_p, is_causal=True, scale=call.scale, enable_gqa=grouped
        )
        return out[..., :width], None

    seen, bias = call.visible(), _bias(call)
    if bias is None:
        mask, blind = seen, None if seen is None else ~seen.any(-1, keepdim=True)
    else:
        mask = bias if seen is None else bias.masked_fill(~seen, -torch.inf)
        # What goes by distance is finite: where nothing hides a key, no row is blind.
        finite = seen is None and call.attn_mask is None and all(_by_distance(term) for term in call.unfolded)
        blind = None if finite else (mask == -torch.inf).all(-1, keepdim=True)
    if blind is not None and mask is not None:
        # The kernel's answer for a row that sees nothing is not promised to be zero, nor its gradient. Let such a row
        # see everything, then drop it: where() hands zeros back to the kernel's backward.
        mask = mask | blind if mask.dtype == torch.bool else mask.masked_fill(blind, 0.0)
        mask = mask.expand(*mask.shape[:2], query.size(2), key.size(2))
    out = F.scaled_dot_product_attention(query, key, value, mask, call.dropout_p, scale=call.scale, enable_gqa=grouped)
    out = out[..., :width]
    return out if blind is None else out.masked_fill(blind, 0.0), None


SDPA = Backend("sdpa", refuses=_refuses, run=_run)
