"""What attention is timed on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.bench.measure import Work
from posenc.bench.settings import Settings


@dataclass(frozen=True)
class Inputs:
    """Queries, keys, values and the gradient that comes back. In training the first three ask for theirs."""

    query: Tensor
    key: Tensor
    value: Tensor
    gradient: Tensor
    training: bool

    @classmethod
    def draw(cls, settings: Settings, queries: int, keys: int, training: bool) -> Inputs:
        """Gaussian ones, the same each time."""
        dtype, device = getattr(torch, settings.dtype), torch.device(settings.device)
        generator = torch.Generator(device).manual_seed(0)

        def tensor(tokens: int) -> Tensor:
            shape = (1, settings.heads, tokens, settings.head_dim)
            return torch.randn(shape, generator=generator, dtype=dtype, device=device)

        made = (tensor(queries), tensor(keys), tensor(keys))
        query, key, value = (x.requires_grad_(training) for x in made)
        return cls(query, key, value, tensor(queries), training)

    def work(self, attend: Callable[[], Tensor], parameters: tuple[Tensor, ...] = ()) -> Work:
        """The call, or the call and its backward pass to queries, keys, values and parameters."""

        def forward() -> tuple[Tensor, ...]:
            with torch.no_grad():
                return (attend(),)

        def training() -> tuple[Tensor, ...]:
            out = attend()
            return (out, *torch.autograd.grad(out, (self.query, self.key, self.value, *parameters), self.gradient))

        return training if self.training else forward

    def plain(self) -> Work:
        """The baseline."""
        return self.work(lambda: F.scaled_dot_product_attention(self.query, self.key, self.value, is_causal=True))
