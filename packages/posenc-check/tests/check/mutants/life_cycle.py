"""Biases that are not what they were once copied, cast, saved or loaded."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc_check import Bias
from tests.check.mutants import Mutant


class Ramps(nn.Module):
    """-slope · |i - j| with geometric slopes, and a learned number for each of the nearest distances."""

    def __init__(self, heads: int = 3, near: int = 4) -> None:
        super().__init__()
        self.heads, self.near = heads, near
        self.table = nn.Parameter(torch.randn(heads, near))

    def slopes(self) -> Tensor:
        return 0.7 ** torch.arange(1, self.heads + 1, dtype=torch.float64, device=self.table.device)

    def forward(self, distance: Tensor) -> Tensor:
        far = -self.slopes()[:, None, None] * distance[:, None]
        near = self.table[:, distance.clamp(max=self.near - 1)].transpose(0, 1)
        return (far + near * (distance < self.near)[:, None]).to(self.table.dtype)


class Rounded(Ramps):
    """Slopes in a buffer that goes with the module's dtype and is not saved."""

    def __init__(self, heads: int = 3, near: int = 4) -> None:
        super().__init__(heads, near)
        self.register_buffer("kept", super().slopes(), persistent=False)

    def slopes(self) -> Tensor:
        return self.kept


class Saved(Ramps):
    """Slopes in the state_dict, where they overrule the configuration of who loads it."""

    def __init__(self, heads: int = 3, near: int = 4) -> None:
        super().__init__(heads, near)
        self.register_buffer("kept", super().slopes())

    def slopes(self) -> Tensor:
        return self.kept.double() * 0 + super().slopes()  # as it would be in a file that is not older than the code


class Shared(Ramps):
    """A function that has closed over the module: a copy of the module calls the original."""

    def __init__(self, heads: int = 3, near: int = 4) -> None:
        super().__init__(heads, near)
        self.look_up = lambda place: self.table[:, place]

    def forward(self, distance: Tensor) -> Tensor:
        own = self.table[:, distance.clamp(max=self.near - 1)]
        others = self.look_up(distance.clamp(max=self.near - 1))
        return super().forward(distance) + ((others - own) * (distance < self.near)).transpose(0, 1)


class Drawn(Ramps):
    """Slopes that are drawn when it is built, and are not saved."""

    def __init__(self, heads: int = 3, near: int = 4) -> None:
        super().__init__(heads, near)
        self.drawn = torch.rand(heads, dtype=torch.float64)

    def slopes(self) -> Tensor:
        return self.drawn


class KeptGraph(Ramps):
    """Keeps the bias of its last call, which a module with gradients cannot be copied with."""

    def forward(self, distance: Tensor) -> Tensor:
        self.last = super().forward(distance)
        return self.last


def biased(made: Any, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    return made((key_positions[:, None, :] - query_positions[:, :, None]).abs())


CORRECT = (Bias(build=Ramps, call=biased, relative=True),)
MUTANTS = tuple(
    Mutant(name, Bias(build=build, call=biased, relative=True), caught_by=4, pain=pain)
    for name, build, pain in (
        ("slopes that half precision rounds", Rounded, 2),
        ("slopes in the state_dict", Saved, 2),
        ("a function that calls the original", Shared, 2),
        ("slopes that are drawn and not saved", Drawn, 2),
        ("a bias kept with its graph, and copied", KeptGraph, 9),
    )
)
