"""What the pairs of a call get by distance, and what its passes share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Lines:
    """The terms of a call by distance; entry 0 is the distance ``lowest``.

    - ``bias`` (heads, distances); of far pairs ``slopes`` (2, heads), per step to the left and to the right.
    - ``vectors`` (heads or 1, distances, width), multiplied with ``meeting`` (batch, heads, queries, width) or, if that
      is None, with the scaled query.
    - ``key_vectors`` (heads or 1, distances, head_dim), scaled, multiplied with the key.
    - ``values`` (heads or 1, distances, value_dim).
    - ``coefficients`` (any number, heads, distances) of the function ``apply``, which is first or, with ``is_last``,
      after all additive terms; ``derivative`` is its derivative.
    """

    lowest: int
    bias: Tensor | None = None
    slopes: Tensor | None = None
    vectors: Tensor | None = None
    meeting: Tensor | None = None
    key_vectors: Tensor | None = None
    values: Tensor | None = None
    coefficients: Tensor | None = None
    query_clock: Tensor | None = None
    key_clock: Tensor | None = None
    shift: Tensor | None = None  # (heads, head_dim), added to the query for products with keys
    apply: Callable[..., Tensor] | None = None
    derivative: Callable[..., tuple[Tensor, ...]] | None = None
    is_last: bool = False
    falls: bool = False  # the bias decays so far that weights would be denormal

    @property
    def is_first(self) -> bool:
        """Whether the function comes before the additive terms."""
        return self.apply is not None and not self.is_last

    def zeros(self) -> Lines:
        """Zeros of the same shapes, to accumulate gradients in."""
        zeros = Lines(self.lowest)
        for name, x in vars(self).items():
            if isinstance(x, Tensor):
                setattr(zeros, name, torch.zeros_like(x))
        return zeros


@dataclass
class Inputs:
    """What both passes take."""

    query: Tensor
    key: Tensor
    value: Tensor
    lines: Lines
    scale: float

    @property
    def dtype(self) -> torch.dtype:
        """That of scores and sums."""
        return torch.promote_types(self.query.dtype, torch.float32)

    def meeting(self) -> Tensor:
        """The rows that vectors by distance are multiplied with."""
        return self.query.to(self.dtype) * self.scale if self.lines.meeting is None else self.lines.meeting


@dataclass
class Results:
    """The unrounded output and the log-sum-exp; and those of the keys far to the right, empty if not needed."""

    out: Tensor
    lse: Tensor
    right: Tensor
    right_lse: Tensor


@dataclass
class Gradients:
    """The gradients of output and log-sum-exp; ``delta``, which the softmax subtracts for every pair of a row; and the
    gradients of inputs, which are added to."""

    dout: Tensor
    dlse: Tensor | None
    delta: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    lines: Lines
