"""Details of whole layers: backends, shared heads, rows of a batch, dropout, scales, dtypes, what is built on meta."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc_check import Layer
from tests.check.mutants import Mutant

HEADS, HEAD_DIM = 4, 8


class Llama(nn.Module):
    """Causal attention as models have it: shared heads, rotary halves from frequencies in a buffer, two backends."""

    def __init__(self, backend: str = "eager") -> None:
        super().__init__()
        self.backend = backend
        self.query, self.rest, self.out = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        nn.init.normal_(self.query.weight, std=0.3)
        self.register_buffer("frequencies", self.drawn(), persistent=False)

    def drawn(self) -> Tensor:
        return 100.0 ** -(torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)

    def reset_parameters(self) -> None:
        for linear in (self.query, self.rest, self.out):
            linear.reset_parameters()
        nn.init.normal_(self.query.weight, std=0.3)
        self.frequencies.copy_(self.drawn())

    def rates(self) -> Tensor:
        """Of a cast module too, they are exact."""
        return self.drawn()

    def phase(self, positions: Tensor, x: Tensor) -> Tensor:
        return (positions[:, :, None].double() * self.rates()).repeat(1, 1, 2)[:, None]

    def turned(self, x: Tensor, phase: Tensor) -> Tensor:
        across = torch.cat((-x[..., HEAD_DIM // 2 :], x[..., : HEAD_DIM // 2]), -1)
        return x * phase.cos().to(x.dtype) + across * phase.sin().to(x.dtype)

    def shared(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(2, 1)

    def eager(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        seen = torch.ones(query.size(2), key.size(2)).tril().bool()
        scores = (query @ key.mT / HEAD_DIM**0.5).masked_fill(~seen, -torch.inf)
        return scores.softmax(-1).to(value.dtype) @ value

    def fused(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    def joined(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        query = self.query(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
        key, value = self.rest(x).unflatten(-1, (2, HEADS // 2, HEAD_DIM)).permute(2, 0, 3, 1, 4)
        phase = self.phase(positions, x)
        query, key = self.turned(query, phase), self.turned(key, phase)
        attend = self.eager if self.backend == "eager" else self.fused
        return self.out(self.joined(attend(query, self.shared(key), self.shared(value))))


def attend(made: Any, x: Tensor, positions: Tensor | None = None) -> Tensor:
    return made(x, torch.arange(x.size(1)).expand(x.shape[:2]) if positions is None else positions)


class DropoutAlways(Llama):
    """The probability is given to PyTorch's attention in evaluation too."""

    def __init__(self, backend: str = "fused") -> None:
        super().__init__(backend)

    def fused(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=0.1, is_causal=True)


class RowsMixed(Llama):
    """Rows and tokens are exchanged before heads are put together."""

    def joined(self, x: Tensor) -> Tensor:
        return x.permute(2, 0, 1, 3).reshape(x.size(0), x.size(2), -1)


class FirstRowsPhase(Llama):
    """Positions of the first row for the whole batch."""

    def phase(self, positions: Tensor, x: Tensor) -> Tensor:
        return super().phase(positions[:1], x)


def llama(build: Any, **claims: Any) -> Layer:
    return Layer(build=build, call=attend, causal=True, relative=True, **claims)


def both(build: Any) -> Layer:
    return llama(build, backends=({"backend": "eager"}, {"backend": "fused"}))


CORRECT = (both(Llama),)
MUTANTS = (
    Mutant("dropout in evaluation", llama(DropoutAlways), caught_by=5, pain=15),
    Mutant("rows and tokens exchanged", llama(RowsMixed), caught_by=19, pain=18),
    Mutant("phases of the first row", llama(FirstRowsPhase), caught_by=19, pain=3),
)
