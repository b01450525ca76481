"""Attention among patches, as BEiT, BoTNet, NATTEN and axial rotations have it, and what goes wrong with it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from posenc.tools.check import Layer
from tests.check.mutants import Mutant

HEADS, HEAD_DIM = 2, 16

Grid = tuple[int, int]


class Attending(nn.Module):
    """Attention of two heads over x (rows, tokens, 32); what is added to its scores is up to others."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        nn.init.normal_(self.qkv.weight, std=0.25)

    def turned(self, x: Tensor, grid: Grid) -> Tensor:
        return x

    def meeting(self, query: Tensor, grid: Grid) -> Tensor | float:
        """What is added to the scores (rows, heads, tokens, tokens)."""
        return 0.0

    def forward(self, x: Tensor, grid: Grid, padding: Tensor | None = None) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, HEAD_DIM)).permute(2, 0, 3, 1, 4)
        query, key = self.turned(query, grid), self.turned(key, grid)
        scores = query @ key.mT / HEAD_DIM**0.5 + self.meeting(query, grid)
        if padding is not None:
            scores = scores.masked_fill(~padding[:, None, None], -torch.inf)
        return x + self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


def see(made: Any, x: Tensor, grid: Grid) -> Tensor:
    return made(x, grid)


def see_some(made: Any, x: Tensor, grid: Grid, padding: Tensor | None = None) -> Tensor:
    return made(x, grid, padding)


# -- BEiT --------------------------------------------------------------------------------------------------------------


class Beit(Attending):
    """A class token and patches; a bias for each offset up to 6, and one each for token to class, class to token and
    class to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(13 * 13 + 3, HEADS))

    def offsets(self, grid: Grid) -> Tensor:
        flat = torch.stack(torch.meshgrid(*map(torch.arange, grid), indexing="ij")).flatten(1)
        rows, columns = flat[:, :, None] - flat[:, None, :]
        return (rows + 6) * 13 + columns + 6

    def index(self, grid: Grid) -> Tensor:
        most = len(self.table)
        index = torch.zeros((grid[0] * grid[1] + 1,) * 2).long()
        index[1:, 1:] = self.offsets(grid)
        index[0, 0:] = most - 3
        index[0:, 0] = most - 2
        index[0, 0] = most - 1
        return index

    def meeting(self, query: Tensor, grid: Grid) -> Tensor:
        if max(grid) > 7:
            raise ValueError(f"a side must be at most 7, got {max(grid)}")
        return self.table[self.index(grid)].permute(2, 0, 1)


class ClassEntriesAtTheEnd(Beit):
    """The class token stands first, and is taken to be the last."""

    def index(self, grid: Grid) -> Tensor:
        return super().index(grid).roll((-1, -1), (0, 1))


class PatchesFromTheClassOn(Beit):
    """Offsets are written one place early, and the class token's over the first of them."""

    def index(self, grid: Grid) -> Tensor:
        index = super().index(grid)
        early = index.clone()
        early[:-1, :-1] = self.offsets(grid)
        early[0], early[:, 0] = index[0], index[:, 0]
        return early


class OneEntryLeftOut(Beit):
    """What the class token gives to the last patch is the entry of the first offset."""

    def index(self, grid: Grid) -> Tensor:
        index = super().index(grid)
        index[0, -1] = 0
        return index


def beit(build: Any) -> Layer:
    return Layer(build=build, call=see, relative=True, registers=1, max_grid=(7, 7))


class ResizedBias(Attending):
    """A bias for each offset in a grid of 3 x 4, resized for others."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5 * 7, HEADS))

    def resized(self, grid: Grid) -> Tensor:
        """(2 x height - 1, 2 x width - 1, heads)"""
        table = self.table.T.reshape(1, HEADS, 5, 7)
        size = self.size(grid)
        return nn.functional.interpolate(table, size, mode="bicubic")[0].permute(1, 2, 0)

    def size(self, grid: Grid) -> Grid:
        return 2 * grid[0] - 1, 2 * grid[1] - 1

    def meeting(self, query: Tensor, grid: Grid) -> Tensor:
        flat = torch.stack(torch.meshgrid(*map(torch.arange, grid), indexing="ij")).flatten(1)
        rows, columns = flat[:, :, None] - flat[:, None, :]
        flat_table = self.resized(grid).flatten(0, 1)
        return flat_table[(rows + grid[0] - 1) * (2 * grid[1] - 1) + columns + grid[1] - 1].permute(2, 0, 1)


class BiasResizedLyingDown(ResizedBias):
    def size(self, grid: Grid) -> Grid:
        return 2 * grid[1] - 1, 2 * grid[0] - 1


def resized(build: Any) -> Layer:
    return Layer(build=build, call=see, relative=True, trained_grid=(3, 4))


# -- BoTNet, NATTEN, axial rotations, convolutions ---------------------------------------------------------------------


class Bottleneck(Attending):
    """The query meets a vector for each step down and each to the right, up to 15, by way of a skew."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.right = (nn.Parameter(0.5 * torch.randn(31, HEAD_DIM)) for _ in range(2))

    def skewed(self, x: Tensor) -> Tensor:
        """(…, n, 2n - 1) by offset to (…, n, n) by place."""
        n = x.size(-2)
        x = pad(x, (0, 1)).flatten(-2)
        return pad(x, (0, n - 1)).unflatten(-1, (n + 1, 2 * n - 1))[..., :n, n - 1 :]

    def along(self, query: Tensor, table: Tensor) -> Tensor:
        """(rows, heads, lines, n, head_dim) to (rows, heads, lines, n, n)."""
        n = query.size(-2)
        return self.skewed(query @ table[16 - n : 15 + n].T)

    def meeting(self, query: Tensor, grid: Grid) -> Tensor:
        if max(grid) > 16:
            raise ValueError(f"a side must be at most 16, got {max(grid)}")
        query = query.unflatten(2, grid)
        across = self.along(query, self.right)  # (rows, heads, row, column, other column)
        upright = self.along(query.transpose(2, 3), self.down).transpose(2, 3)  # (…, row, column, other row)
        return (across[..., None, :] + upright[..., :, None]).flatten(4, 5).flatten(2, 3)


class SkewedByOneTooFew(Bottleneck):
    def skewed(self, x: Tensor) -> Tensor:
        n = x.size(-2)
        x = pad(x, (0, 1)).flatten(-2)
        return pad(x, (0, n - 1)).unflatten(-1, (n + 1, 2 * n - 1))[..., :n, :n]


class NeverSkewed(Bottleneck):
    """Without the column that each row is moved by."""

    def skewed(self, x: Tensor) -> Tensor:
        n = x.size(-2)
        return pad(x.flatten(-2), (0, 2 * n - 1)).unflatten(-1, (n + 1, 2 * n - 1))[..., :n, n - 1 :]


class ColumnsMeetRows(Bottleneck):
    """Down and right are added for one another, which is right on the diagonal."""

    def meeting(self, query: Tensor, grid: Grid) -> Tensor:
        query = query.unflatten(2, grid)
        across = self.along(query, self.right)
        upright = self.along(query.transpose(2, 3), self.down)  # never transposed back
        return (
            (across[..., None, :] + upright.reshape(*query.shape[:4], grid[0])[..., :, None]).flatten(4).flatten(2, 3)
        )


class Neighbourhood(Bottleneck):
    """Three by three patches around each, and at the border the nearest three by three."""

    def meeting(self, query: Tensor, grid: Grid) -> Tensor:
        places = torch.cartesian_prod(*map(torch.arange, grid))
        first = torch.stack([(places[:, a] - 1).clamp(max=grid[a] - 3).clamp(min=0) for a in (0, 1)], -1)
        away = places[None] - first[:, None]
        return super().meeting(query, grid).masked_fill(((away < 0) | (away > 2)).any(-1), -torch.inf)


class AxialRotary(Attending):
    """Four pairs of channels of each head turn by the row and four by the column; those of the class token never."""

    def angles(self, grid: Grid) -> Tensor:
        """(patches, pairs)"""
        theta = 20.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
        rows, columns = torch.cartesian_prod(*map(torch.arange, grid)).double().unbind(-1)
        return torch.cat((rows[:, None] * theta, columns[:, None] * theta), -1)

    def turned(self, x: Tensor, grid: Grid) -> Tensor:
        angle = pad(self.angles(grid), (0, 0, x.size(2) - grid[0] * grid[1], 0))
        (left, right), cos, sin = x.chunk(2, -1), angle.cos(), angle.sin()
        return torch.cat((left * cos - right * sin, left * sin + right * cos), -1).to(x.dtype)


class BothHalvesByRows(AxialRotary):
    def angles(self, grid: Grid) -> Tensor:
        rows, _ = super().angles(grid).chunk(2, -1)
        return torch.cat((rows, rows), -1)


class RotatedLyingDown(AxialRotary):
    def angles(self, grid: Grid) -> Tensor:
        return super().angles((grid[1], grid[0]))


class Convolved(Attending):
    """A convolution over the grid says where patches are, by the zeros around it: nothing of it is relative."""

    def __init__(self) -> None:
        super().__init__()
        self.peg = nn.Conv2d(32, 32, 3, padding=1, groups=32)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        front = x.size(1) - grid[0] * grid[1]
        image = x[:, front:].transpose(1, 2).unflatten(2, grid)
        return super().forward(torch.cat((x[:, :front], (image + self.peg(image)).flatten(2).mT), 1), grid)


def patches(build: Any, **claims: Any) -> Layer:
    return Layer(build=build, call=see, relative=True, **claims)


CORRECT = (
    beit(Beit),
    resized(ResizedBias),
    patches(Bottleneck, max_grid=(16, 16)),
    patches(Neighbourhood, max_grid=(16, 16)),
    patches(AxialRotary, registers=1),
    Layer(build=AxialRotary, call=see_some, relative=True, registers=1),
    Layer(build=Beit, call=see_some, relative=True, registers=1, max_grid=(7, 7)),
    Layer(build=Convolved, call=see, registers=1),
)
MUTANTS = tuple(
    Mutant(name, subject, caught_by=20, pain=12)
    for name, subject in {
        "a class token taken for the last": beit(ClassEntriesAtTheEnd),
        "offsets from the class token on": beit(PatchesFromTheClassOn),
        "one entry of the class token left out": beit(OneEntryLeftOut),
        "a bias resized lying down": resized(BiasResizedLyingDown),
        "a skew cut at the wrong end": patches(SkewedByOneTooFew),
        "a skew without its column": patches(NeverSkewed),
        "columns meet rows": patches(ColumnsMeetRows),
        "both halves by rows": patches(BothHalvesByRows, registers=1),
        "a rotation lying down": patches(RotatedLyingDown, registers=1),
    }.items()
)
