"""Small models of several layers: windows that add up, rotations that are made and dropped, and none at all."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.tools.check import Layer, Model
from tests.check.mutants import Mutant
from tests.check.mutants.layers_caches import Decoder, NoWindow, OneTooMany
from tests.check.mutants.layers_details import Llama


class Stack(nn.Module):
    """Two layers of Mistral: a token hears of those that are twice the window before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(48, 32)
        self.layers = nn.ModuleList(self.made())

    def made(self) -> list[nn.Module]:
        return [Decoder(), Decoder()]

    def forward(self, ids: Tensor, positions: Tensor | None, cache: Any) -> tuple[Tensor, Any]:
        x = self.embedding(ids)
        cache, kept = cache or [None] * len(self.layers), []
        for layer, old in zip(self.layers, cache, strict=True):
            out, new = layer(x, positions, old)
            x = x + out
            kept.append(new)
        return x, kept


def read(made: Any, x: Tensor, positions: Tensor | None = None, cache: Any = None) -> Any:
    return made(x, positions, cache)


class EveryOtherLayerWhole(Stack):
    """The window is the first layer's alone: a list of the kinds of layers was passed over."""

    def made(self) -> list[nn.Module]:
        return [Decoder(), NoWindow()]


class WiderInBoth(Stack):
    def made(self) -> list[nn.Module]:
        return [OneTooMany(), OneTooMany()]


class OneCache(Stack):
    """All layers write into the cache of the first."""

    def forward(self, ids: Tensor, positions: Tensor | None, cache: Any) -> tuple[Tensor, Any]:
        out, kept = super().forward(ids, positions, cache)
        return out, [kept[0]] * len(kept)


class NoPositions(Llama):
    """NoPE."""

    def turned(self, x: Tensor, phase: Tensor) -> Tensor:
        return x


class RotationDropped(Llama):
    """What the rotation gives is put nowhere."""

    def turned(self, x: Tensor, phase: Tensor) -> Tensor:
        super().turned(x, phase)
        return x


class EqualPlaces(Llama):
    """All positions of a text are that of its first token: an index was left in."""

    def phase(self, positions: Tensor, x: Tensor) -> Tensor:
        return super().phase(positions[:, :1].expand_as(positions), x)


def attend(made: Any, x: Tensor, positions: Tensor | None = None) -> Tensor:
    return made(x, torch.arange(x.size(1)).expand(x.shape[:2]) if positions is None else positions)


def stack(build: Any) -> Model:
    return Model(build=build, call=read, causal=True, relative=True, window=5, depth=2)


def llama(build: Any, **claims: Any) -> Layer:
    return Layer(build=build, call=attend, causal=True, normalized=True, **claims)


CORRECT = (stack(Stack), llama(NoPositions, relative=True, order_free=True))
MUTANTS = (
    Mutant("every other layer without its window", stack(EveryOtherLayerWhole), caught_by=19, pain=7),
    Mutant("a window wider in both layers", stack(WiderInBoth), caught_by=19, pain=5),
    Mutant("one cache for all layers", stack(OneCache), caught_by=8, pain=5),
    Mutant("a rotation that is dropped", llama(RotationDropped, relative=True), caught_by=6, pain=3),
    Mutant("all tokens in the first one's place", llama(EqualPlaces, relative=True), caught_by=6, pain=3),
)
