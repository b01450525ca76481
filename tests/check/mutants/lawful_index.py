"""Encoders that take a mask and count distances by the index, padding or not: where rows are padded at their ends, as
batches are, that is the same as counting tokens."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.tools.check import Layer
from tests.check.mutants import Mutant
from tests.check.mutants.lawful_layers import HEAD_DIM, HEADS, split


class ByTheIndex(nn.Module):
    """T5's encoder: a bias by the bucket of the distance of indices, and a mask of the lowest number for padding."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix, self.out = nn.RMSNorm(32), nn.Linear(32, 96, bias=False), nn.Linear(32, 32, bias=False)
        self.table = nn.Embedding(15, HEADS)

    def places(self, mask: Tensor) -> Tensor:
        return torch.arange(mask.size(1)).expand_as(mask)

    def bias(self, mask: Tensor) -> Tensor:
        """(rows, heads, tokens, tokens)"""
        places = self.places(mask)
        way = places[:, None, :] - places[:, :, None]
        return self.table(way.clamp(-7, 7) + 7).permute(0, 3, 1, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (split(part) for part in self.mix(self.norm(x)).chunk(3, -1))
        scores = query @ key.mT + self.bias(mask)
        scores = scores + (~mask[:, None, None]).to(x.dtype) * torch.finfo(torch.float32).min
        weights = scores.float().softmax(-1).type_as(scores)
        return x + self.out((weights @ value).transpose(1, 2).flatten(2))


class FromTheFirstToken(ByTheIndex):
    """Learned vectors for places, of which the first token of a row has the first, whatever padding is before it."""

    def __init__(self, places: int = 64) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(places, 32))

    def places(self, mask: Tensor) -> Tensor:
        return super().places(mask) - mask.long().argmax(1, keepdim=True)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if x.size(1) > len(self.vectors):
            raise ValueError(f"there are {len(self.vectors)} places, got {x.size(1)} tokens")
        return super().forward(x + self.vectors[self.places(mask).clamp(min=0)], mask)


class Conformer(ByTheIndex):
    """Attention by the distance of indices, then a depthwise convolution over them, in which padding is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(32, 64)
        self.convolution = nn.Conv1d(32, 32, 5, padding=2, groups=32)

    def hidden(self, x: Tensor, mask: Tensor) -> Tensor:
        return x.masked_fill(~mask[..., None], 0.0)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = super().forward(x, mask)
        mixed: Tensor = self.convolution(self.hidden(nn.functional.glu(self.gate(x)), mask).mT)
        return x + nn.functional.silu(mixed.mT)


def masked(made: Any, x: Tensor, padding: Tensor | None = None) -> Tensor:
    return made(x, torch.ones(x.shape[:2]).bool() if padding is None else padding)


class ConvolutionOfPadding(Conformer):
    """The convolution sees what padding holds."""

    def hidden(self, x: Tensor, mask: Tensor) -> Tensor:
        return x


class VectorsByTheIndex(FromTheFirstToken):
    """Places are those of the index, behind padding too."""

    def places(self, mask: Tensor) -> Tensor:
        return ByTheIndex.places(self, mask)


class TwoWaysToCount(ByTheIndex):
    """The bias goes by the index, and what queries and keys are turned by goes by the number of the token."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        angle = mask.cumsum(1)[..., None].double() / 5
        left, right = x.unflatten(-1, (HEADS * HEAD_DIM // 2, 2)).unbind(-1)
        turned = (left * angle.cos() - right * angle.sin(), left * angle.sin() + right * angle.cos())
        return super().forward(torch.stack(turned, -1).flatten(2).to(x.dtype), mask)


def encoder(build: Any, **claims: Any) -> Layer:
    return Layer(build=build, call=masked, **claims)


CORRECT = (
    encoder(ByTheIndex, relative=True, directed=True),
    encoder(FromTheFirstToken, relative=False, max_positions=64),
    encoder(Conformer),
)
MUTANTS = (
    Mutant("a convolution over padding", encoder(ConvolutionOfPadding), caught_by=7, pain=3),
    Mutant("vectors by the index", encoder(VectorsByTheIndex, relative=False, max_positions=64), caught_by=7, pain=3),
    Mutant("a bias by the index, turns by the tokens", encoder(TwoWaysToCount), caught_by=7, pain=3),
)
