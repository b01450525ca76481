"""Windows of patches, shifted and filled up, as Swin has them, and what goes wrong with them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from posenc.tools.check import Layer
from tests.check.mutants import Mutant
from tests.check.mutants.pictures import HEAD_DIM, HEADS, Attending, Grid, see

WINDOW, SHIFT = (2, 3), (1, 1)


class Swin(Attending):
    """Windows of 2 x 3 with a bias for each offset, and a shift if there is one. Grids that are not of whole windows
    are filled up at the lower right, with what nobody sees."""

    def __init__(self, shifted: bool = False) -> None:
        super().__init__()
        height, width = WINDOW
        self.shift = SHIFT if shifted else (0, 0)
        self.table = nn.Parameter(torch.randn((2 * height - 1) * (2 * width - 1), HEADS))

    def places(self) -> Tensor:
        """(2, height, width)"""
        return torch.stack(torch.meshgrid(*map(torch.arange, WINDOW), indexing="ij"))

    def index(self) -> Tensor:
        height, width = WINDOW
        flat = self.places().flatten(1)
        rows, columns = flat[:, :, None] - flat[:, None, :]
        return (rows + height - 1) * (2 * width - 1) + columns + width - 1

    def partition(self, x: Tensor) -> Tensor:
        """(rows, H, W, dim) to (rows x windows, height x width, dim)."""
        (height, width), (rows, high, wide, dim) = WINDOW, x.shape
        x = x.view(rows, high // height, height, wide // width, width, dim)
        return x.transpose(2, 3).reshape(-1, height * width, dim)

    def reverse(self, windows: Tensor, high: int, wide: int) -> Tensor:
        height, width = WINDOW
        x = windows.view(-1, high // height, wide // width, height, width, windows.size(-1))
        return x.transpose(2, 3).reshape(-1, high, wide, windows.size(-1))

    def filled(self, x: Tensor) -> Tensor:
        right, down = -x.size(2) % WINDOW[1], -x.size(1) % WINDOW[0]
        return pad(x, (0, 0, 0, right, 0, down))

    def unfilled(self, x: Tensor, grid: Grid) -> Tensor:
        return x[:, : grid[0], : grid[1]]

    def regions(self, high: int, wide: int) -> Tensor:
        """Patches of one number were neighbours before they were rolled: (H, W)."""
        marks = torch.zeros(high, wide)
        if any(self.shift):
            cuts = [(slice(0, -n), slice(-n, -s), slice(-s, None)) for n, s in zip(WINDOW, self.shift, strict=True)]
            for number, (rows, columns) in enumerate((a, b) for a in cuts[0] for b in cuts[1]):
                marks[rows, columns] = number
        return marks

    def hidden(self, marks: Tensor) -> Tensor:
        """(windows, tokens, tokens)"""
        return (marks[:, :, None] != marks[:, None, :]) * -100.0

    def there(self, grid: Grid) -> Tensor:
        return torch.ones(1, *grid, 1)

    def back(self, x: Tensor) -> Tensor:
        return x.roll(self.shift, (1, 2))

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        away = (-self.shift[0], -self.shift[1])
        rolled = self.filled(x.unflatten(1, grid)).roll(away, (1, 2))
        rows, high, wide, _ = rolled.shape
        filling = (1 - self.partition(self.filled(self.there(grid)).roll(away, (1, 2)))) * -100.0
        query, key, value = self.qkv(self.partition(rolled)).unflatten(-1, (3, HEADS, HEAD_DIM)).permute(2, 0, 3, 1, 4)
        scores = query @ key.mT / HEAD_DIM**0.5 + self.table[self.index()].permute(2, 0, 1)
        mask = self.hidden(self.partition(self.regions(high, wide)[None, ..., None])[..., 0]) + filling.mT
        scores = (scores.unflatten(0, (rows, -1)) + mask[:, None].to(scores.dtype)).flatten(0, 1)
        seen = self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
        return x + self.unfilled(self.back(self.reverse(seen, high, wide)), grid).flatten(1, 2)


class SwinOfWholeWindows(Swin):
    """As it was first published: other grids are refused."""

    def filled(self, x: Tensor) -> Tensor:
        assert not any(n % side for n, side in zip(x.shape[1:3], WINDOW, strict=True)), "input feature has wrong size"
        return x


class SwinThatSeesItsFilling(Swin):
    """As detectors have it: patches of zeros at the border take their part of the weights."""

    def there(self, grid: Grid) -> Tensor:
        return torch.ones(1, -(-grid[0] // WINDOW[0]) * WINDOW[0], -(-grid[1] // WINDOW[1]) * WINDOW[1], 1)


class StrideOfRows(Swin):
    """Steps over a row of the table by its height, which is right for squares."""

    def index(self) -> Tensor:
        height, width = WINDOW
        flat = self.places().flatten(1)
        rows, columns = flat[:, :, None] - flat[:, None, :]
        return (rows + height - 1) * (2 * height - 1) + columns + width - 1


class FirstAxisAcross(Swin):
    def places(self) -> Tensor:
        return torch.stack(torch.meshgrid(*map(torch.arange, WINDOW), indexing="xy"))


class NoMask(Swin):
    def hidden(self, marks: Tensor) -> Tensor:
        return super().hidden(torch.zeros_like(marks))


class MaskTheOtherWay(Swin):
    def hidden(self, marks: Tensor) -> Tensor:
        return (marks[:, :, None] == marks[:, None, :]) * -100.0


class NeverRolledBack(Swin):
    def back(self, x: Tensor) -> Tensor:
        return x


class RolledOnceMore(Swin):
    def back(self, x: Tensor) -> Tensor:
        return x.roll((-self.shift[0], -self.shift[1]), (1, 2))


class SidesExchangedInReverse(Swin):
    def reverse(self, windows: Tensor, high: int, wide: int) -> Tensor:
        height, width = WINDOW
        x = windows.view(-1, wide // width, high // height, height, width, windows.size(-1))
        return x.permute(0, 2, 3, 1, 4, 5).reshape(-1, high, wide, windows.size(-1))


class FilledAtTheUpperLeft(Swin):
    def filled(self, x: Tensor) -> Tensor:
        right, down = -x.size(2) % WINDOW[1], -x.size(1) % WINDOW[0]
        return pad(x, (0, 0, right, 0, down, 0))

    def unfilled(self, x: Tensor, grid: Grid) -> Tensor:
        return x[:, x.size(1) - grid[0] :, x.size(2) - grid[1] :]


def swin(build: Any, shifted: bool = False, **claims: Any) -> Layer:
    """A block of it, shifted or not."""
    shift = SHIFT if shifted else (0, 0)
    given: dict[str, Any] = {"options": {"shifted": shifted}, "relative": True, "window": WINDOW, **claims}
    return Layer(build=build, call=see, window_shift=shift, **given)


CORRECT = (
    swin(Swin, normalized=True),
    swin(Swin, shifted=True, normalized=True),
    swin(SwinOfWholeWindows, shifted=True),
    swin(SwinThatSeesItsFilling, shifted=True),
)
MUTANTS = tuple(
    Mutant(name, subject, caught_by=20, pain=12)
    for name, subject in {
        "a stride of the window's height": swin(StrideOfRows),
        "places of a window across": swin(FirstAxisAcross),
        "shifted windows without a mask": swin(NoMask, shifted=True),
        "a mask of the wrong sign": swin(MaskTheOtherWay, shifted=True),
        "windows never rolled back": swin(NeverRolledBack, shifted=True),
        "windows rolled once more": swin(RolledOnceMore, shifted=True),
        "windows put back by the other side": swin(SidesExchangedInReverse),
        "windows filled up at the upper left": swin(FilledAtTheUpperLeft),
        "what fills windows up is seen": swin(SwinThatSeesItsFilling, normalized=True),
    }.items()
)
