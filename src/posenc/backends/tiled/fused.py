"""PyTorch's fused kernels over sections of a tile, merged by log-sum-exp.

A section is some queries against some keys: all pairs, a triangle, or a band; the kernel is called once for each. A
tile, where query i attends to keys j with low <= j - i <= high, is split into large rectangles and small triangles
along its two edges. The kernel computes whole blocks even if they are partly masked, so this wastes less than one call.
FlashAttention leaves out what a window hides, and takes bands instead, three of a tile at most.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from posenc import compat
from posenc.compat import ALL, CAUSAL, CPU, EFFICIENT, FLASH, Fused, Window

# The kernel uses blocks of 256 queries if there are at least 768, and of 512 keys: rows of 1024 are fastest. Below 256
# queries a section costs more in calls than it saves in masked work (docs/decisions/007-folding.md).
ROWS = 1024
TRIANGLE = 256
NARROW = 32  # windows of fewer keys are split into blocks with a dense mask


class Sizes(NamedTuple):
    """The rows of rectangles and of both kinds of triangles, at most, and the width of windows that have a dense
    mask."""

    rows: int
    before: int
    after: int
    narrow: int


# Guesses, not measured: fewer and larger, since a call costs microseconds. "before" is the kernel's own causal mask.
ON_GPU = Sizes(2**62, 2**62, 1024, 256)
MASKED_ON_GPU = Sizes(4096, 1024, 1024, 256)  # each triangle has a dense mask


def on_gpu(x: Tensor) -> bool:
    """Whether nothing may be read from the device of x, and calls are to be few."""
    return x.device.type != "cpu"


def kernel_of(query: Tensor, is_masked: bool) -> Fused:
    """The fused kernel for queries like these; ``is_masked``: there are numbers to add to the scores."""
    if not on_gpu(query):
        return CPU
    return EFFICIENT if is_masked or compat.why_not_flash(query) is not None else FLASH


@dataclass(frozen=True)
class Section:
    """Queries ``start`` to ``stop`` against keys ``first`` to ``last``.

    ``shape``: "all" pairs; a square whose t-th query attends to the t-th key and those "before" or "after" it; or a
    "between", the pairs with low <= j - i <= high, of which every query has some; None: no limit.
    """

    start: int
    stop: int
    first: int
    last: int
    shape: Literal["all", "before", "after", "between"] = "all"
    low: int | None = None
    high: int | None = None

    @property
    def queries(self) -> slice:
        """The slice of its queries."""
        return slice(self.start, self.stop)

    @property
    def keys(self) -> slice:
        """The slice of its keys."""
        return slice(self.first, self.last)

    @property
    def window(self) -> Window:
        """That of FlashAttention, whose last query is at the last key."""
        if self.shape != "between":
            return CAUSAL if self.shape == "before" else ALL
        left = -1 if self.low is None else self.last - self.stop - self.low
        return left, -1 if self.high is None else self.high + self.stop - self.last


def bands(start: int, stop: int, first: int, last: int, low: int | None, high: int | None) -> Iterator[Section]:
    """Sections "between" that tile all pairs of queries ``start`` to ``stop`` and keys ``first`` to ``last`` with
    low <= j - i <= high; None: no limit. Each limit cuts all rows of a section or none, and a window starts and ends at
    a corner of the section: FlashAttention ignores windows that are wider than the keys."""
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
        above = high if high is not None and head + high < last - 1 else None
        below = low if low is not None and tail - 1 + low > first else None
        left = first if below is None else head + below
        yield Section(head, tail, left, last if above is None else tail + above, "between", below, above)


def sections(
    start: int, stop: int, first: int, last: int, low: int | None, high: int | None, sizes: Sizes | None = None
) -> Iterator[Section]:
    """The same pairs as `bands`, in rectangles and triangles; ``sizes`` are those of the CPU if not given."""
    sizes = sizes or Sizes(ROWS, TRIANGLE, TRIANGLE, NARROW)
    for band in bands(start, stop, first, last, low, high):
        below, above, rows = band.low, band.high, sizes.rows
        if below is not None and above is not None:
            if above - below < sizes.narrow:
                for a in range(band.start, band.stop, 2 * sizes.narrow):
                    b = min(a + 2 * sizes.narrow, band.stop)
                    yield Section(a, b, a + below, b + above, "between", below, above)
                continue
            rows = min(rows, 1 << ((above - below).bit_length() - 1))
        for a in range(band.start, band.stop, rows):
            b = min(a + rows, band.stop)
            left, right = band.first, band.last
            if above is not None:
                right = a + above
                yield from _triangle(a, b, above, "before", sizes.before)
            if below is not None:
                left = b + below
                yield from _triangle(a, b, below, "after", sizes.after)
            if left < right:
                yield Section(a, b, left, right)


def _triangle(a: int, b: int, apart: int, shape: Literal["before", "after"], most: int) -> Iterator[Section]:
    """Queries a to b and keys a + apart to b + apart: with j <= i + apart ("before"), or j >= i + apart ("after"); of
    ``most`` queries at most."""
    if b - a <= most:
        yield Section(a, b, a + apart, b + apart, shape)
        return
    middle = (a + b) // 2
    yield from _triangle(a, middle, apart, shape, most)
    yield from _triangle(middle, b, apart, shape, most)
    if shape == "before":
        yield Section(middle, b, a + apart, middle + apart)
    else:
        yield Section(a, middle, middle + apart, b + apart)


Tensors: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Query, key and value, or their gradients."""

Mask = Callable[[Section], tuple["Tensor | None", "Tensor | None"]]
"""What is added to the scores of a section, as two tensors or None: one that broadcasts to (batch, heads, queries,
keys), and a constant per row, (batch, heads, queries), which only shifts the log-sum-exp."""


def _mask(kernel: Fused, section: Section, mask: Tensor | None, query: Tensor) -> tuple[Tensor | None, Window]:
    """The additive mask for the kernel, expanded to full size, and its window."""
    if kernel.is_local:
        return None, section.window
    rows, columns = section.stop - section.start, section.last - section.first
    if section.shape in ("after", "between"):
        dtype = torch.promote_types(query.dtype, torch.float32)
        hidden = torch.zeros((rows, columns), dtype=dtype, device=query.device)
        if section.shape == "after":
            hidden = hidden.fill_(-torch.inf).tril_(-1)
        else:
            assert section.low is not None
            assert section.high is not None
            keys = torch.arange(section.first, section.last, device=query.device)
            apart = keys - torch.arange(section.start, section.stop, device=query.device)[:, None]
            hidden = hidden.masked_fill_((apart < section.low) | (apart > section.high), -torch.inf)
        mask = hidden[None, None] if mask is None else mask + hidden
    if mask is not None:
        mask = mask.expand(query.size(0), query.size(1), rows, columns)
    return mask, CAUSAL if section.shape == "before" else ALL


def forward(
    kernel: Fused,
    tensors: Tensors,
    sections: Iterator[Section],
    masks: Mask,
    scale: float,
    out: Tensor,
    lse: Tensor,
) -> None:
    """Merges the attention of all sections into ``out`` and ``lse``, (batch, heads, queries[, dim]), in place.

    Rows of ``out`` without any key so far are zeros, with an ``lse`` of -inf.
    """
    query, key, value = tensors
    for section in sections:
        q = query[:, :, section.queries]
        added, row = masks(section)
        mask, window = _mask(kernel, section, added, q)
        more_out, more_lse = kernel.forward(q, key[:, :, section.keys], value[:, :, section.keys], window, mask, scale)
        if row is not None:
            more_lse = more_lse + row
        merge(out[:, :, section.queries], lse[:, :, section.queries], more_out, more_lse)


def merge(out: Tensor, lse: Tensor, more_out: Tensor, more_lse: Tensor) -> None:
    """Merges attention over other keys into ``out`` and ``lse`` in place."""
    if not on_gpu(lse) and bool((lse == -torch.inf).all()):
        out.copy_(more_out)
        lse.copy_(more_lse)
        return
    both = torch.logaddexp(lse, more_lse)
    share = (more_lse - both).exp().masked_fill_(more_lse == -torch.inf, 0.0)  # no key in either: inf - inf
    out.lerp_(more_out.to(out.dtype), share[..., None].to(out.dtype))
    lse.copy_(both)


def backward(
    kernel: Fused,
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
        mask, window = _mask(kernel, section, added, q)
        whole = lse[:, :, queries] if row is None else lse[:, :, queries] - row
        more_dq, more_dk, more_dv = kernel.backward(
            dout[:, :, queries],
            q,
            key[:, :, keys],
            value[:, :, keys],
            out[:, :, queries],
            whole,
            window,
            mask,
            scale,
        )
        dq[:, :, queries] += more_dq
        dk[:, :, keys] += more_dk
        dv[:, :, keys] += more_dv
