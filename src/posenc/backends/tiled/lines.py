"""What the pairs of a call are given by distance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Lines:
    """What the pairs of a call are given by distance; entry 0 is that of the distance ``lowest``.

    ``bias`` (heads, distances); ``vectors`` (heads or 1, distances, width), met by ``meeting`` (batch, heads, queries,
    width) or, where there is none, by the scaled query; ``key_vectors`` (heads or 1, distances, head_dim), met by the
    scaled key; ``values`` (heads or 1, distances, value_dim); ``coefficients`` (any number, heads, distances) of the
    function ``apply``, which comes first or, with ``is_last``, after everything that is added; ``derivative`` is its.
    """

    lowest: int
    bias: Tensor | None = None
    vectors: Tensor | None = None
    meeting: Tensor | None = None
    key_vectors: Tensor | None = None
    values: Tensor | None = None
    coefficients: Tensor | None = None
    query_clock: Tensor | None = None
    key_clock: Tensor | None = None
    shift: Tensor | None = None  # added to the query where it meets the key, (heads, head_dim)
    apply: Callable[..., Tensor] | None = None
    derivative: Callable[..., tuple[Tensor, ...]] | None = None
    is_last: bool = False
    falls: bool = False  # the bias reaches so far down that weights would be denormal numbers

    @property
    def is_first(self) -> bool:
        """Whether the function sees the bare score."""
        return self.apply is not None and not self.is_last

    def zeros(self) -> Lines:
        """Of the same shape, to sum gradients in."""
        zeros = Lines(self.lowest)
        for name, x in vars(self).items():
            if isinstance(x, Tensor):
                setattr(zeros, name, torch.zeros_like(x))
        return zeros
