"""Indexer: the keys that sparse attention lets each query attend to, chosen by scores of their own."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from posenc.arguments import check_flag, check_type, number, shown, whole
from posenc.positions.positions import Positions
from posenc.positions.tiles import Visibility, visible
from posenc.scheme import Scheme


class Indexer(nn.Module):
    """The indexer of sparse attention: for each query the ``top_k`` best of the keys that it sees.

    Formula, with queries, one shared key and weights of the indexer's own, after ``rotation`` at their positions:

        I_ij = scale sum over h of w_ih relu(q_ih . k_j)

    The result is a mask for all heads of the layer's attention, ``posenc.attention(..., attn_mask=indexer(...))``. Of
    equal scores the earlier key in the tensor is chosen. A query that sees at most ``top_k`` keys attends to all of
    them. Keys that a query does not see (later ones if causal, padding, other documents) are never chosen, and have no
    effect on its gradient, even if they are NaN. Where a query sees a key, and one of them is not finite, the score is
    NaN, which counts as the greatest.

    The layout and the channels of the rotation are those of the checkpoint, and often not those of the attention beside
    it. In layers with interleaved pairs on the last channels of a head, the indexer has, with n = qk_rope_head_dim:

        deepseek_v32, axk2       RoPE(d, rotary_dim=n)                        half pairs, the first channels
        glm_moe_dsa, dots3_note  RoPE(d, layout="interleaved", rotary_dim=n)  interleaved pairs, the first channels
        hy_v4                    RoPE(d, rotary_dim=n, first_channel=d - n)   half pairs, the last channels

    ``rotation`` is any scheme that only rotates; `NoPE` for queries and keys that are rotated already, as in a cache.

    With ``block``, keys are chosen in blocks (Qwen4): that many consecutive tokens of a document, from its first token
    on, have one key, ``norm`` of their mean, at the position of the first of them. The top_k / block best blocks are
    chosen among those that a query sees completely; the rest of the keys that it sees, fewer than a block, are always.

    ``scale`` is by default 1/sqrt(num_heads head_dim), as in the models above. It changes no choice, but a loss on the
    scores sees it. Nothing is learned here; the choice has no gradient, and `scores` have one.

    This is no `Scheme`, and not in the catalog: it opens no door of the attention that it serves. It computes every
    score, and is to compare kernels with.

    Shapes: query (batch, num_heads, queries, head_dim), key (batch, 1, keys, head_dim), weights (batch, num_heads,
    queries), or None for 1. Scores are float32, or float64 for float64 inputs.
    Source: DeepSeek-AI 2025, "DeepSeek-V3.2-Exp: Boosting Long-Context Efficiency with DeepSeek Sparse Attention",
    equation 1; for rotations and blocks the models of those names in transformers, and modeling_qwen4_exp.py.
    """

    def __init__(
        self, num_heads: int, rotation: Scheme, top_k: int, *, block: int = 1, scale: float | None = None
    ) -> None:
        super().__init__()
        self.num_heads, self.block = whole("num_heads", num_heads), whole("block", block)
        self.top_k = whole("top_k", top_k)
        if top_k % block:
            raise ValueError(f"top_k must be a multiple of block = {block}, got {top_k}")
        check_type("rotation", rotation, Scheme)
        if not {"rotate"}.issuperset(rotation.doors) or rotation.features:
            raise ValueError(f"rotation must be a scheme that only rotates, such as RoPE, got {shown(rotation)}")
        self.rotation = rotation
        self.scale = None if scale is None else number("scale", scale, above=0)

    def scores(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch 1 keys head_dim"],
        weights: Float[Tensor, "batch heads queries"] | None = None,
        *,
        query_positions: Positions | None = None,
        key_positions: Positions | None = None,
        is_causal: bool = False,
        norm: Callable[[Tensor], Tensor] | None = None,
    ) -> Float[Tensor, "batch queries keys"]:
        """I_ij, and -inf for keys that a query does not see. With blocks, that of a block is at its first key."""
        return self._scored(query, key, weights, query_positions, key_positions, is_causal, norm)[0]

    def forward(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch 1 keys head_dim"],
        weights: Float[Tensor, "batch heads queries"] | None = None,
        *,
        query_positions: Positions | None = None,
        key_positions: Positions | None = None,
        is_causal: bool = False,
        norm: Callable[[Tensor], Tensor] | None = None,
    ) -> Bool[Tensor, "batch 1 queries keys"]:
        """The mask, True = attend. By default keys are at 0 .. N-1, and queries at the last of them. ``norm`` is for
        blocks: it takes their mean keys (batch, 1, keys, head_dim) before they are rotated.

        Raises ValueError for shapes and positions that do not fit."""
        with torch.no_grad():
            given = query, key, weights, query_positions, key_positions, is_causal, norm
            scores, seen, start, whole_blocks = self._scored(*given)
            chosen = best(scores, self.top_k // self.block)
            if start is not None and whole_blocks is not None:
                chosen = chosen.gather(-1, start[:, None].expand_as(chosen)) | ~whole_blocks
            return (chosen & seen)[:, None]

    def _scored(
        self,
        query: Tensor,
        key: Tensor,
        weights: Any,
        query_positions: Any,
        key_positions: Any,
        is_causal: Any,
        norm: Any,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """The scores and which keys each query sees; with blocks, the index of the first key of each key's block, and
        whether the query sees the block completely."""
        self._check(query, key, weights, is_causal, norm)
        at_queries, at_keys = _positions(query, key, query_positions, key_positions)
        dtype = torch.promote_types(query.dtype, torch.float32)
        shape = (query.size(0), query.size(2), key.size(2))
        seen = visible(at_queries, at_keys, Visibility(is_causal))
        seen = query.new_ones(shape, dtype=torch.bool) if seen is None else seen.expand(shape)
        # Zeros for what takes no part, since a gradient would be a product of it and zero.
        query = query.to(dtype).masked_fill(~seen.any(2)[:, None, :, None], 0.0)
        key = key.to(dtype).masked_fill(~seen.any(1)[:, None, :, None], 0.0)
        eligible, start, whole_blocks = seen, None, None
        if self.block > 1:
            start = self._starts(at_keys).expand(key.size(0), -1)
            key = torch.zeros_like(key).scatter_add(2, start[:, None, :, None].expand_as(key), key) / self.block
            key = key if norm is None else norm(key)
            to_start = start[:, None].expand(shape)
            eligible = torch.zeros(shape, dtype=torch.int64, device=key.device).scatter_add(-1, to_start, seen.long())
            eligible = eligible == self.block
            whole_blocks = eligible.gather(-1, to_start)
        weights = torch.ones_like(query[..., 0]) if weights is None else weights.to(dtype)
        weights = weights.masked_fill(~seen.any(2)[:, None], 0.0)
        # NaN times a gradient of zero is NaN: products are of finite numbers, and NaN is added to those of others.
        sides = (torch.cat((query, weights[..., None]), -1), key)
        finite_queries, finite_keys = (x.isfinite().all(-1).all(1) for x in sides)
        is_finite = finite_queries[:, :, None] & finite_keys[:, None]
        query, key, weights = (x.nan_to_num(0.0, 0.0, 0.0) for x in (query, key, weights))
        encoding = self.rotation(at_queries, at_keys, dtype=dtype)
        query, key = encoding.rotate_query(query), encoding.rotate_key(key)[:, 0].mT
        scores = query.new_zeros(shape)
        for h in range(self.num_heads):
            with torch.autocast(query.device.type, enabled=False):
                each = (query[:, h] @ key).relu()
            scores = scores + each * weights[:, h, :, None]
        scale = 1 / math.sqrt(self.num_heads * query.size(-1)) if self.scale is None else self.scale
        scores = (scores * scale).clamp(min=torch.finfo(dtype).min)  # -inf is for keys that are not seen
        scores = torch.where(is_finite, scores, scores + math.nan)
        return scores.masked_fill(~eligible, -math.inf), seen, start, whole_blocks

    def _starts(self, positions: Positions) -> Int[Tensor, "rows keys"]:
        """The index of the first key of each key's block."""
        document, order = positions.document, positions.order
        same = document[:, :, None] == document[:, None, :]
        rank = (same & (order[:, None, :] < order[:, :, None])).sum(-1)
        same = same & (rank[:, :, None] // self.block == rank[:, None, :] // self.block)
        return (same & (rank % self.block == 0)[:, None, :]).int().argmax(-1)

    def _check(self, query: Any, key: Any, weights: Any, is_causal: Any, norm: Any) -> None:
        for name, x, heads in (("query", query, self.num_heads), ("key", key, 1)):
            if not isinstance(x, Tensor) or x.dim() != 4 or not x.is_floating_point() or x.size(1) != heads:
                raise ValueError(f"{name} must be a floating tensor (batch, {heads}, tokens, head_dim), got {shown(x)}")
        wanted = (query.size(0), 1, key.size(2), query.size(3))
        if key.shape != wanted or key.dtype != query.dtype or key.device != query.device:
            raise ValueError(f"key must be {wanted}, {query.dtype} on {query.device} like query, got {shown(key)}")
        if weights is not None and (not isinstance(weights, Tensor) or weights.shape != query.shape[:3]):
            raise ValueError(f"weights must be {tuple(query.shape[:3])} like query, or None, got {shown(weights)}")
        check_flag("is_causal", is_causal)
        if norm is not None and (self.block == 1 or not callable(norm)):
            raise ValueError(f"norm must be a function of the mean keys of blocks, or None, got {shown(norm)}")

    def __repr__(self) -> str:
        more = f", block={self.block}" * (self.block > 1)
        more += f", scale={self.scale}" * (self.scale is not None)
        return f"Indexer({self.num_heads}, {self.rotation!r}, top_k={self.top_k}{more})"


def _positions(query: Tensor, key: Tensor, of_query: Any, of_key: Any) -> tuple[Positions, Positions]:
    """Those given; by default keys are at 0 .. N-1, and queries at the last positions of the keys."""
    queries, keys = query.size(2), key.size(2)
    check_type("query_positions", of_query, Positions, None)
    check_type("key_positions", of_key, Positions, None)
    missing = "query" if of_query is None and queries > keys else "key" if of_query is not None else None
    if queries != keys and missing is not None and (missing == "query" or of_key is None):
        raise ValueError(f"{missing}_positions must be given for {queries} queries and {keys} keys, got None")
    of_key = of_query if of_key is None else of_key
    of_key = Positions.arange(keys, device=key.device) if of_key is None else of_key
    of_query = of_key[keys - queries :] if of_query is None else of_query
    for name, positions, x in (("query", of_query, query), ("key", of_key, key)):
        if len(positions) != x.size(2) or positions.rows not in (1, x.size(0)):
            rows = "" if x.size(0) == 1 else f" or {x.size(0)}"
            raise ValueError(f"{name}_positions must be 1{rows} x {x.size(2)} like {name}, got {positions}")
    return of_query, of_key


def best(scores: Float[Tensor, "batch queries keys"], k: int) -> Bool[Tensor, "batch queries keys"]:
    """The k greatest of each row, of equal ones the first; never -inf. NaN is the greatest."""
    scores = scores.nan_to_num(math.inf, math.inf, -math.inf)
    if k >= scores.size(-1):
        return scores > -math.inf
    least = scores.topk(k, sorted=False).values.amin(-1, keepdim=True)
    above, equal = scores > least, scores == least
    room = k - above.sum(-1, keepdim=True)
    return (above | (equal & (equal.cumsum(-1) <= room))) & (scores > -math.inf)
