"""`Lines`: the tables by distance of a call's pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Lines:
    """Tables by distance of a call's pairs; entry 0 is for the distance ``lowest``.

    ``bias`` (heads, distances); ``vectors`` (heads or 1, distances, width), multiplied with ``meeting`` (batch, heads,
    queries, width) or, if None, with the scaled query; ``key_vectors`` (heads or 1, distances, head_dim), multiplied
    with the scaled key; ``values`` (heads or 1, distances, value_dim); ``coefficients`` (any number, heads, distances)
    of the function ``apply``, which comes first or, with ``is_last``, after all added terms, and whose derivative is
    ``derivative``.
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
    shift: Tensor | None = None  # added to the query in its product with the key, (heads, head_dim)
    apply: Callable[..., Tensor] | None = None
    derivative: Callable[..., tuple[Tensor, ...]] | None = None
    is_last: bool = False
    falls: bool = False  # the bias is so low that weights would be denormal

    @property
    def is_first(self) -> bool:
        """Whether the function is applied to the plain score."""
        return self.apply is not None and not self.is_last

    def zeros(self) -> Lines:
        """Zeros of the same shape, to accumulate gradients."""
        zeros = Lines(self.lowest)
        for name, x in vars(self).items():
            if isinstance(x, Tensor):
                setattr(zeros, name, torch.zeros_like(x))
        return zeros
