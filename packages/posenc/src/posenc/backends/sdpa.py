"""PyTorch's scaled_dot_product_attention with an additive mask, for schemes that are additive biases.

PyTorch does not use a fused kernel for a mask that requires grad, such as a learned bias in training.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc import compat
from posenc.backends.blockwise import derived_once
from posenc.backends.call import Backend, Call, Direct, Unless, cleared, if_any, in_sight, never
from posenc.encoding.terms import (
    AddedVector,
    Bias,
    ChannelDecay,
    CumulativeBias,
    Function,
    RelativeDot,
    Row,
    ScoreTerm,
    Term,
    Value,
)
from posenc.lowering.forms import added, fold
from posenc.positions.tiles import same_run, sees_all

KINDS: dict[type[Term], tuple[Unless, ...]] = {
    Bias: (),
    RelativeDot: (),
    AddedVector: (),
    CumulativeBias: (),
    ChannelDecay: (),
    Function: (
        Unless(
            "a score term is not additive, and the fused kernel only adds a mask",
            lambda term, call: not term.adds,
        ),
    ),
    Row: never("a score term needs whole rows of scores, which the fused kernel does not provide"),
    Value: never("vectors added to values need the attention weights, which the fused kernel does not return"),
}


def _wants_lse(call: Call) -> str | None:
    return "the fused kernel does not return the log-sum-exp" if call.return_lse else None


def _wants_wide_mask(call: Call) -> str | None:
    is_half = call.query.dtype != call.dtype
    if is_half and call.query.device.type != "cpu" and (call.score_terms or _is_float(call.attn_mask)):
        return f"the fused kernel supports a float32 mask with {call.query.dtype} only on the CPU"
    return None


def _is_float(mask: Tensor | None) -> bool:
    return mask is not None and mask.dtype != torch.bool


@compat.no_grad  # like other choices, made once for all layers, also those that checkpointing runs again
def is_plain(call: Call) -> bool:
    """Whether the kernel needs no mask: no terms remain after folding, and attention is full or causal."""
    if call.attn_mask is not None or _fold_terms(call)[2]:
        return False
    return is_triangle(call) or sees_all(call.query_positions, call.key_positions, call.visibility)


def is_triangle(call: Call) -> bool:
    """Whether attention is causal, without a window, and queries and keys are known to be the same text."""
    seen = call.visibility
    has_window = seen.left is not None or seen.right is not None
    return seen.is_causal and not has_window and same_run(call.query_positions, call.key_positions)


def _fold_terms(call: Call) -> tuple[Tensor, Tensor, tuple[ScoreTerm, ...]]:
    """Query and key with folded terms, and the remaining terms. For a few queries only what is added to them is
    folded, since changing all keys of a cache would cost more.

    On the CPU the sum of a token and a vector is not rounded to half precision: scores would be off by a share of
    their size. On a GPU no fused kernel has the mask of such a call in float32.
    """
    score_terms = call.score_terms
    others: list[ScoreTerm] = []
    if call.has_few_queries:
        others = [term for term in score_terms if not _is_added_to_query(term)]
        score_terms = tuple(filter(_is_added_to_query, score_terms))
    if not score_terms:
        return call.query, call.key, tuple(others)
    adds = call.query.device.type == "cpu" and any(isinstance(term, AddedVector) for term in score_terms)
    query, key, left = fold(score_terms, call.block() if adds else call)
    return query, key, (*left, *others)


def _is_added_to_query(term: ScoreTerm) -> bool:
    return isinstance(term, AddedVector) and term.key is None


def _bias(call: Call, left: tuple[ScoreTerm, ...]) -> Tensor | None:
    """The sum of the remaining terms and a float ``attn_mask``, (1 or B, 1 or H, M or 1, N), or None."""
    bias = call.attn_mask.to(call.dtype) if call.attn_mask is not None and _is_float(call.attn_mask) else None
    for term in left:
        # Do not cast a whole cache for a term that does not read it.
        more = added(term, call if term.is_content_free else call.block())
        bias = more if bias is None else bias + more
    return bias


def _run(call: Call) -> tuple[Tensor, Tensor | None]:
    call = cleared(in_sight(call))
    query, key, left = _fold_terms(call)
    width = call.value.size(-1)
    # Fused kernels need equal widths, and folded terms add channels.
    widest = max(query.size(-1), width)
    query, key, value = (
        x if x.size(-1) == widest else F.pad(x, (0, widest - x.size(-1)))
        for x in (query, key, call.value.to(query.dtype))
    )
    grouped = False
    if query.size(1) != key.size(1):  # a branch, since with symbolic sizes the comparison is not a bool
        grouped = True
    plain = len(left) == 0 and call.attn_mask is None
    # The kernel masks before it scales: -inf times a scale of 0 or below would not mask.
    if plain and call.scale > 0 and is_triangle(call):
        out = F.scaled_dot_product_attention(
            query, key, value, None, call.dropout_p, is_causal=True, scale=call.scale, enable_gqa=grouped
        )
        return _finish(out, call), None

    visible, bias = call.visible(), _bias(call, left)
    if bias is None:
        mask, blind = visible, None if visible is None else ~visible.any(-1, keepdim=True)
    else:
        mask = bias if visible is None else bias.masked_fill(~visible, -torch.inf)
        # Without masking, no row is fully masked.
        masks = any(not isinstance(term, Bias) or term.masks for term in left)
        finite = visible is None and call.attn_mask is None and not masks
        blind = None if finite else (mask == -torch.inf).all(-1, keepdim=True)
    blind = if_any(blind)
    if blind is not None and mask is not None:
        # The kernel does not guarantee zeros for a fully masked row, nor for its gradient. Unmask such a row, then set
        # its output to zero, so that the kernel's backward gets a zero gradient.
        mask = mask | blind if mask.dtype == torch.bool else mask.masked_fill(blind, 0.0)
    if mask is not None:
        mask = mask.expand(*mask.shape[:2], query.size(2), key.size(2))
    out = F.scaled_dot_product_attention(query, key, value, mask, call.dropout_p, scale=call.scale, enable_gqa=grouped)
    out = _finish(out, call)
    return out if blind is None else out.masked_fill(blind, 0.0), None


def _direct(call: Call) -> Direct | None:
    """For causal or full attention without a mask, of equal widths."""
    is_causal, is_grouped = is_triangle(call), call.query.size(1) != call.key.size(1)
    is_full = sees_all(call.query_positions, call.key_positions, call.visibility)
    if call.score_terms or call.attn_mask is not None or call.rotation is not None or not (is_full or is_causal):
        return None
    if call.scale <= 0 or call.query.size(-1) != call.value.size(-1) or call.dropout_p or call.return_lse:
        return None

    scale = call.scale  # and not the call, which has a layer's tensors

    def run(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, None]:
        out = F.scaled_dot_product_attention(
            query, key, value, None, 0.0, is_causal=is_causal, scale=scale, enable_gqa=is_grouped
        )
        return derived_once(out), None

    return run


def _finish(out: Tensor, call: Call) -> Tensor:
    """The output in the query's dtype, without padded channels: no view where there are none, of which FSDP warns."""
    out, width = derived_once(out), call.value.size(-1)
    return (out if out.size(-1) == width else out[..., :width]).to(call.query.dtype)


SDPA = Backend("sdpa", _run, KINDS, last=(_wants_lse, _wants_wide_mask), direct_for=_direct)
