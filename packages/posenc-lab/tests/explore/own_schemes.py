"""Schemes as a user writes them, for the page."""

import torch
from torch import Tensor

import posenc
from posenc import Positions, Scheme
from posenc.encoding.encoding import Context
from posenc.encoding.terms import Bias, Distance


class Plateau(Scheme):
    """A slope by the distance that is constant beyond 8 tokens."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.slope = torch.nn.Parameter(torch.rand(num_heads))

    def score(
        self, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[Bias, ...]:
        """The bias."""
        return (Bias(self.bias, Distance("Plateau", tail="constant", past=8, num_heads=self.num_heads)),)

    def bias(self, r: Tensor) -> Tensor:
        """A number for each head and distance."""
        return -torch.tensordot(self.slope, r.abs().clamp(max=8).to(self.slope.dtype), 0)


class Turning(posenc.RoPE):
    """RoPE of base 50."""

    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim, base=50.0)


class Steps(posenc.Sinusoidal):
    """A sinusoid of base 30."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, base=30.0)


class Meets(posenc.Shaw):
    """Shaw's vectors for four distances."""

    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim, max_distance=4)
