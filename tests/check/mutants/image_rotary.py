"""Rotations by rows and columns, in layers with registers; by time, row and column, with a cache; learned rates."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.tools.check import Layer
from tests.check.mutants import Mutant

HEADS = 4


class Reader(nn.Module):
    """Qwen2-VL: causal attention with M-RoPE, heads of keys shared by two of queries, and a cache of turned keys.

    A token that nobody tells where it is follows the highest position so far, on all axes."""

    sections = (2, 1, 1)

    def __init__(self) -> None:
        super().__init__()
        self.query, self.rest, self.out = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        nn.init.normal_(self.query.weight, std=0.3)

    def following(self, x: Tensor, cache: Any) -> Tensor:
        new = torch.arange(x.size(1)).expand(x.shape[:2])
        if cache is not None:
            new = new + cache[2].flatten(1).amax(1)[:, None] + 1
        return new[..., None].expand(-1, -1, 3)

    def places(self, told: Tensor | None, x: Tensor, cache: Any) -> Tensor:
        if told is None:
            return self.following(x, cache)
        return told if told.dim() == 3 else told[..., None].expand(-1, -1, 3)

    def wave(self, phase: Tensor) -> Tensor:
        """Phases of each axis (3, rows, 1, tokens, channels) to those of the axis of each channel."""
        parts = phase.split(self.sections * 2, -1)
        return torch.cat([part[n % 3] for n, part in enumerate(parts)], -1)

    def turned(self, x: Tensor, places: Tensor) -> Tensor:
        theta = 1000.0 ** -(torch.arange(4, dtype=torch.float64) / 4)
        phase = places.movedim(-1, 0)[:, :, None, :, None].double() * theta
        phase = self.wave(torch.cat((phase, phase), -1))
        across = torch.cat((-x[..., 4:], x[..., :4]), -1)
        return x * phase.cos().to(x.dtype) + across * phase.sin().to(x.dtype)

    def forward(self, x: Tensor, told: Tensor | None, cache: Any) -> tuple[Tensor, Any]:
        places, before = self.places(told, x, cache), 0 if cache is None else cache[0].size(2)
        query = self.query(x).unflatten(-1, (HEADS, 8)).transpose(1, 2)
        key, value = self.rest(x).unflatten(-1, (2, HEADS // 2, 8)).permute(2, 0, 3, 1, 4)
        kept = [self.turned(key, places), value, places]
        if cache is not None:
            kept = [torch.cat(both, dim) for both, dim in zip(zip(cache, kept, strict=True), (2, 2, 1), strict=True)]
        key, value = (part.repeat_interleave(2, 1) for part in kept[:2])
        seen = torch.ones(x.size(1), key.size(2)).tril(before).bool()
        scores = (self.turned(query, places) @ key.mT / 8**0.5).masked_fill(~seen, -torch.inf)
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2)), kept


def read(made: Any, x: Tensor, positions: Tensor | None = None, cache: Any = None) -> Any:
    return made(x, positions, cache)


class DecodedByTheFirstRow(Reader):
    """A token by itself stands where the first row of the batch has come to."""

    def places(self, told: Tensor | None, x: Tensor, cache: Any) -> Tensor:
        places = super().places(told, x, cache)
        return places[:1].expand_as(places) if cache is not None and x.size(1) == 1 else places


def reader(build: Any) -> Layer:
    return Layer(build=build, call=read, axes=3, relative=True, causal=True, flat={}, normalized=True)


CORRECT = (reader(Reader),)
MUTANTS = (Mutant("decoding where the first row is", reader(DecodedByTheFirstRow), caught_by=8, pain=13),)
