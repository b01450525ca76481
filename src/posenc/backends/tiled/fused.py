"""PyTorch's fused CPU kernel over sections of a tile, merged by log-sum-exp.

A section is some queries against some keys: all pairs, or a triangle; the kernel is called once for each. A tile, where
query i attends to keys j with low <= j - i <= high, is split into large rectangles and small triangles along its two
edges. The kernel computes whole blocks even if they are partly masked, so this wastes less than a single call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from posenc.compat import cpu_attention, cpu_attention_backward

# The kernel uses blocks of 256 queries if there are at least 768, and of 512 keys: rows of 1024 are fastest. Below 256
# queries a section costs more in calls than it saves in masked work (measured: docs/log.md).
ROWS = 1024
TRIANGLE = 256
NARROW = 32  # windows of fewer keys are split into blocks with a dense mask


@dataclass(frozen=True)
class Section:
    """Queries ``start`` to ``stop`` against keys ``first`` to ``last``.

    ``shape``: "all" pairs; a square whose t-th query attends to the t-th key and those "before" or "after" it; or a
    "between", the pairs with low <= j - i <= high.
    """

    start: int
    stop: int
    first: int
    last: int
    shape: Literal["all", "before", "after", "between"] = "all"
    low: int = 0
    high: int = 0

    @property
    def queries(self) -> slice:
        """The slice of its queries."""
        return slice(self.start, self.stop)

    @property
    def keys(self) -> slice:
        """The slice of its keys."""
        return slice(self.first, self.last)


def sections(start: int, stop: int, first: int, last: int, low: int | None, high: int | None) -> Iterator[Section]:
    """Sections that tile all pairs of queries ``start`` to ``stop`` and keys ``first`` to ``last`` with
    low <= j - i <= high; None: no limit."""
    if high is not None:
        start, last = max(start, first - high), min(last, stop + high)
    if low is not None:
        stop, first = min(stop, last - low), max(first, start + low)
    if start >= stop or first >= last:
        return
    # Between these rows, each limit applies to every row or to none.
    ends = {start, stop}
    if high is not None:
        ends.add(min(max(last - high, start), stop))
    if low is not None:
        ends.add(min(max(first - low, start), stop))
    edges = sorted(ends)
    for head, tail in itertools.pairwise(edges):
        upper = high is not None and head + high < last - 1
        lower = low is not None and tail - 1 + low > first
        rows = ROWS
        if upper and lower:
            assert low is not None
            assert high is not None
            if high - low < NARROW:
                for a in range(head, tail, 2 * NARROW):
                    b = min(a + 2 * NARROW, tail)
                    yield Section(a, b, max(first, a + low), min(last, b + high), "between", low, high)
                continue
            rows = min(ROWS, 1 << ((high - low).bit_length() - 1))
        for a in range(head, tail, rows):
            b = min(a + rows, tail)
            left, right = first, last
            if upper and high is not None:
                right = a + high
                yield from _triangle(a, b, high, "before")
            if lower and low is not None:
                left = b + low
                yield from _triangle(a, b, low, "after")
            if left < right:
                yield Section(a, b, left, right)


def _triangle(a: int, b: int, apart: int, shape: Literal["before", "after"]) -> Iterator[Section]:
    """Queries a to b and keys a + apart to b + apart: with j <= i + apart ("before"), or j >= i + apart ("after")."""
    if b - a <= TRIANGLE:
        yield Section(a, b, a + apart, b + apart, shape)
        return
    middle = (a + b) // 2
    yield from _triangle(a, middle, apart, shape)
    yield from _triangle(middle, b, apart, shape)
    if shape == "before":
        yield Section(middle, b, a + apart, middle + apart)
    else:
        yield Section(a, middle, middle + apart, b + apart)


Tensors: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Query, key and value, or their gradients."""

Mask = Callable[[Section], tuple["Tensor | None", "Tensor | None"]]
"""What is added to the scores of a section, as two tensors or None: one that broadcasts to (batch, heads, queries,
keys), and a constant per row, (batch, heads, queries), which only shifts the log-sum-exp."""


def _mask(section: Section, mask: Tensor | None, query: Tensor) -> tuple[Tensor | None, bool]:
    """The additive mask for the kernel, expanded to full size, and whether the kernel is causal."""
    rows, columns = section.stop - section.start, section.last - section.first
    if section.shape in ("after", "between"):
        hidden = torch.zeros((rows, columns), dtype=torch.promote_types(query.dtype, torch.float32))
        if section.shape == "after":
            hidden = hidden.fill_(-torch.inf).tril_(-1)
        else:
            apart = torch.arange(section.first, section.last) - torch.arange(section.start, section.stop)[:, None]
            hidden = hidden.masked_fill_((apart < section.low) | (apart > section.high), -torch.inf)
        mask = hidden[None, None] if mask is None else mask + hidden
    if mask is not None:
        mask = mask.expand(query.size(0), query.size(1), rows, columns)
    return mask, section.shape == "before"


def forward(tensors: Tensors, sections: Iterator[Section], masks: Mask, scale: float, out: Tensor, lse: Tensor) -> None:
    """Merges the attention of all sections into ``out`` and ``lse``, (batch, heads, queries[, dim]), in place.

    Rows of ``out`` without any key so far are zeros, with an ``lse`` of -inf.
    """
    query, key, value = tensors
    for section in sections:
        q = query[:, :, section.queries]
        added, row = masks(section)
        mask, is_causal = _mask(section, added, q)
        more_out, more_lse = cpu_attention(
            q, key[:, :, section.keys], value[:, :, section.keys], is_causal, mask, scale
        )
        if row is not None:
            more_lse = more_lse + row
        merge(out[:, :, section.queries], lse[:, :, section.queries], more_out, more_lse)


def merge(out: Tensor, lse: Tensor, more_out: Tensor, more_lse: Tensor) -> None:
    """Merges attention over other keys into ``out`` and ``lse`` in place."""
    if bool((lse == -torch.inf).all()):
        out.copy_(more_out)
        lse.copy_(more_lse)
        return
    both = torch.logaddexp(lse, more_lse)
    share = (more_lse - both).exp().masked_fill_(more_lse == -torch.inf, 0.0)  # no key in either: inf - inf
    out.lerp_(more_out.to(out.dtype), share[..., None].to(out.dtype))
    lse.copy_(both)


def backward(
    dout: Tensor,
    tensors: Tensors,
    out: Tensor,
    lse: Tensor,
    sections: Iterator[Section],
    masks: Mask,
    scale: float,
    grads: Tensors,
) -> None:
    """Adds the gradients of query, key and value through all sections, given the merged ``out`` and ``lse``.

    With log-sum-exp and output of the whole row, the kernel recomputes the weights and the softmax backward of the
    whole row.
    """
    (query, key, value), (dq, dk, dv) = tensors, grads
    for section in sections:
        queries, keys = section.queries, section.keys
        q = query[:, :, queries]
        added, row = masks(section)
        mask, is_causal = _mask(section, added, q)
        whole = lse[:, :, queries] if row is None else lse[:, :, queries] - row
        more_dq, more_dk, more_dv = cpu_attention_backward(
            dout[:, :, queries],
            q,
            key[:, :, keys],
            value[:, :, keys],
            out[:, :, queries],
            whole,
            is_causal,
            mask,
            scale,
        )
        dq[:, :, queries] += more_dq
        dk[:, :, keys] += more_dk
        dv[:, :, keys] += more_dv
