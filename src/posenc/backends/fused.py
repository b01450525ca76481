"""The CPU's fused kernel over parts of a call: it gives the log-sum-exp by which parts merge into the whole.

A part is some queries against some keys, either all of them or a triangle. The parts here tile a triangle: rectangles
as large as the kernel likes them, and small triangles along the diagonal. The kernel computes whole blocks even where
half of one is masked, so a triangle cut into parts is computed with less waste than at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

# The kernel takes queries by 256 where it has at least 768 of them, and keys by 512: rows of 1024 keep it at its best.
# Below 256 queries a part costs more in calls than it saves in masked work (measured: docs/log.md).
ROWS = 1024
TRIANGLE = 256


@dataclass(frozen=True)
class Part:
    """Queries ``start`` to ``stop`` against keys ``first`` to ``last``, to the left or the right of the diagonal.

    A triangle is square: its t-th query sees its t-th key and those before it (left), or after it (right).
    """

    start: int
    stop: int
    first: int
    last: int
    is_triangle: bool
    is_left: bool

    @property
    def queries(self) -> slice:
        """The slice of its queries."""
        return slice(self.start, self.stop)

    @property
    def keys(self) -> slice:
        """The slice of its keys."""
        return slice(self.first, self.last)


def left(queries: int, keys: int, ahead: int) -> Iterator[Part]:
    """Parts that tile all pairs of query i and key j <= i + ahead. Of the parts of a query its triangle comes first."""
    start = max(0, -ahead)  # queries before see nothing
    stop = min(queries, max(start, keys - ahead))  # queries from here on see all keys
    for a in range(start, stop, ROWS):
        b = min(a + ROWS, stop)
        yield from _triangles(a, b, ahead)
        if a + ahead > 0:
            yield Part(a, b, 0, a + ahead, False, True)
    for a in range(stop, queries if keys else stop, ROWS):
        yield Part(a, min(a + ROWS, queries), 0, keys, False, True)


def _triangles(a: int, b: int, ahead: int) -> Iterator[Part]:
    if b - a <= TRIANGLE:
        yield Part(a, b, a + ahead, b + ahead, True, True)
        return
    middle = (a + b) // 2
    yield from _triangles(a, middle, ahead)
    yield from _triangles(middle, b, ahead)
    yield Part(middle, b, a + ahead, middle + ahead, False, True)


def right(queries: int, keys: int, ahead: int) -> Iterator[Part]:
    """Parts that tile all pairs of query i and key j >= i + ahead: `left`, seen from the other end."""
    for part in left(queries, keys, keys - queries - ahead):
        yield Part(
            queries - part.stop, queries - part.start, keys - part.last, keys - part.first, part.is_triangle, False
        )


Mask = Callable[[Part], tuple["Tensor | None", "Tensor | None"]]
"""What is added to the scores of a part before its softmax, in two tensors or None: one that broadcasts to (batch,
heads, queries, keys), and one constant along each row, (batch, heads, queries), which only moves the log-sum-exp."""


def _mask(part: Part, mask: Tensor | None, query: Tensor) -> tuple[Tensor | None, bool]:
    """The additive mask to hand to the kernel, at full size as a view, and whether it is to be causal."""
    rows, columns = part.stop - part.start, part.last - part.first
    if part.is_triangle and not part.is_left:
        hidden = torch.full((rows, columns), -torch.inf, dtype=query.dtype, device=query.device).tril(-1)
        mask = hidden[None, None] if mask is None else mask + hidden
    if mask is not None:
        mask = mask.expand(query.size(0), query.size(1), rows, columns)
    return mask, part.is_triangle and part.is_left


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    parts: Iterator[Part],
    masks: Mask,
    scale: float,
    out: Tensor,
    lse: Tensor,
    anew: bool = False,
) -> None:
    """Merges the attention of all parts into ``out`` and ``lse``, (batch, heads, queries[, dim]), in place.

    Rows of ``out`` without anything yet have an ``lse`` of -inf; with ``anew`` that is all rows, and what they hold
    does not matter.
    """
    for part in parts:
        asking = query[:, :, part.queries]
        added, row = masks(part)
        mask, is_causal = _mask(part, added, asking)
        one, its = _forward(
            asking, key[:, :, part.keys], value[:, :, part.keys], 0.0, is_causal, attn_mask=mask, scale=scale
        )
        if row is not None:
            its = its + row
        if anew and part.is_triangle and part.is_left:  # the first of its queries
            out[:, :, part.queries], lse[:, :, part.queries] = one, its
        else:
            merge(out[:, :, part.queries], lse[:, :, part.queries], one, its)


def merge(out: Tensor, lse: Tensor, one: Tensor, its: Tensor) -> None:
    """Takes attention ``one`` of log-sum-exp ``its`` into ``out`` and ``lse`` over other keys, in place."""
    both = torch.logaddexp(lse, its)
    share = (its - both).exp().masked_fill_(its == -torch.inf, 0.0)  # neither saw a key: inf - inf
    out.lerp_(one.to(out.dtype), share[..., None].to(out.dtype))
    lse.copy_(both)


def backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    parts: Iterator[Part],
    masks: Mask,
    scale: float,
    grads: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Adds to the gradients of query, key and value those through all parts, given the merged ``out`` and ``lse``.

    With the log-sum-exp of the whole row the kernel recomputes the weights as they are in the whole, and with the
    output of the whole row it knows what the softmax takes from each.
    """
    for part in parts:
        queries, keys = part.queries, part.keys
        asking = query[:, :, queries]
        added, row = masks(part)
        mask, is_causal = _mask(part, added, asking)
        whole = lse[:, :, queries] if row is None else lse[:, :, queries] - row
        three = _backward(
            grad[:, :, queries],
            asking,
            key[:, :, keys],
            value[:, :, keys],
            out[:, :, queries],
            whole,
            0.0,
            is_causal,
            attn_mask=mask,
            scale=scale,
        )
        for total, one, where in zip(grads, three, (queries, keys, keys), strict=True):
            total[:, :, where] += one
