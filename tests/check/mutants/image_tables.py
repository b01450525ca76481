"""What is added to patches: sines of MAE and DETR, learned tables that are resized, rows and columns, convolutions."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.tools.check import Layer
from tests.check.mutants import Mutant

Grid = tuple[int, int]


def add(made: Any, x: Tensor, grid: Any = None) -> Tensor:
    return made(x, grid)


class Adder(nn.Module):
    """Adds a vector to every patch, and a zero to the tokens before the patches. What is no grid is one row."""

    def __init__(self, front: int = 0) -> None:
        super().__init__()
        self.front = front

    def code(self, grid: Grid) -> Tensor:
        """(patches, 32)"""
        raise NotImplementedError

    def placed(self, grid: Grid) -> Tensor:
        """(tokens, 32)"""
        return F.pad(self.code(grid), (0, 0, self.front, 0))

    def forward(self, x: Tensor, grid: Grid | None) -> Tensor:
        front = min(self.front, x.size(1) - 1)
        grid = (1, x.size(1) - front) if grid is None else grid
        return x + self.placed(grid)[self.front - front :].to(x.dtype)


# -- sines -------------------------------------------------------------------------------------------------------------


class Masked(Adder):
    """MAE's get_2d_sincos_pos_embed: sines and cosines of the column, then those of the row."""

    def mesh(self, grid: Grid) -> Tensor:
        """(2, patches), "here w goes first"."""
        columns, rows = torch.meshgrid(torch.arange(grid[1]), torch.arange(grid[0]), indexing="xy")
        return torch.stack((columns, rows)).flatten(1)

    def wave(self, place: Tensor) -> Tensor:
        omega = 10_000.0 ** -(torch.arange(8, dtype=torch.float64) / 8)
        return torch.cat(((place[:, None] * omega).sin(), (place[:, None] * omega).cos()), -1)

    def code(self, grid: Grid) -> Tensor:
        first, second = self.mesh(grid)
        return torch.cat((self.wave(first), self.wave(second)), -1)


class MeshTransposed(Masked):
    """The mesh is read in the other order than patches have."""

    def mesh(self, grid: Grid) -> Tensor:
        columns, rows = torch.meshgrid(torch.arange(grid[1]), torch.arange(grid[0]), indexing="ij")
        return torch.stack((columns, rows)).flatten(1)


class MeshReshaped(Masked):
    """The sides are exchanged, which squares forgive."""

    def mesh(self, grid: Grid) -> Tensor:
        return super().mesh((grid[1], grid[0]))


class ColumnsTwice(Masked):
    def code(self, grid: Grid) -> Tensor:
        return self.wave(self.mesh(grid)[0]).repeat(1, 2)


class ZeroAtTheEnd(Masked):
    """The class token's zeros come last."""

    def placed(self, grid: Grid) -> Tensor:
        return F.pad(self.code(grid), (0, 0, 0, self.front))


class Detected(Masked):
    """DETR's sines, not normalised: counted from 1 by sums of what is no mask, row first, sine and cosine in turns."""

    def mesh(self, grid: Grid) -> Tensor:
        real = torch.ones(grid)
        return torch.stack((real.cumsum(0), real.cumsum(1))).flatten(1)

    def wave(self, place: Tensor) -> Tensor:
        phase = place.double()[:, None] / 10_000.0 ** (torch.arange(8, dtype=torch.float64) / 8)
        return torch.stack((phase.sin(), phase.cos()), -1).flatten(1)


class SumsOverTheRaster(Detected):
    """Columns are summed over the raster, so that they never begin again."""

    def mesh(self, grid: Grid) -> Tensor:
        rows, _ = super().mesh(grid)
        return torch.stack((rows, torch.ones(grid).flatten().cumsum(0)))


class Normalised(Detected):
    """DETR's sines, normalised: the last row and the last column are at 2π in every image."""

    def mesh(self, grid: Grid) -> Tensor:
        sides = torch.tensor(grid, dtype=torch.float64)[:, None]
        return super().mesh(grid) / (sides + 1e-6) * 2 * math.pi


# -- learned -----------------------------------------------------------------------------------------------------------


class Rows(Adder):
    """DETR's learned vectors: of the column for half of the channels, of the row for the others."""

    def __init__(self, front: int = 0, limits: Grid = (12, 12)) -> None:
        super().__init__(front)
        self.rows, self.columns = (nn.Embedding(limit, 16) for limit in limits)

    def of(self, table: nn.Embedding, side: int) -> Tensor:
        if side > table.num_embeddings:
            raise ValueError(f"grid must be at most {table.num_embeddings} on each side, got {side}")
        return table(torch.arange(side))

    def code(self, grid: Grid) -> Tensor:
        columns, rows = self.of(self.columns, grid[1]), self.of(self.rows, grid[0])
        return torch.cat((columns.repeat(grid[0], 1), self.down(rows, grid[1])), -1)

    def down(self, rows: Tensor, width: int) -> Tensor:
        """The vector of each row, for all its patches."""
        return rows.repeat_interleave(width, 0)


class RowsRepeated(Rows):
    """repeat for repeat_interleave: rows follow one another within a row."""

    def down(self, rows: Tensor, width: int) -> Tensor:
        return rows.repeat(width, 1)


class RowsForColumns(Rows):
    """Columns are read from the table of rows, which is shorter."""

    def code(self, grid: Grid) -> Tensor:
        self.of(self.columns, grid[1])
        columns, rows = self.of(self.rows, grid[1]), self.of(self.rows, grid[0])
        return torch.cat((columns.repeat(grid[0], 1), self.down(rows, grid[1])), -1)


class TablesExchanged(Rows):
    """The limits are given in the order of columns and rows."""

    def __init__(self, front: int = 0, limits: Grid = (12, 12)) -> None:
        super().__init__(front, (limits[1], limits[0]))


class ClampedToTheLast(Rows):
    """Past the table, all rows are the last."""

    def of(self, table: nn.Embedding, side: int) -> Tensor:
        return table(torch.arange(side).clamp(max=table.num_embeddings - 1))


class Resized(Adder):
    """ViT, DeiT, DINOv2: a learned vector for each patch of a training grid, interpolated for other grids, and one for
    the class token; registers that stand after it get none."""

    def __init__(self, front: int = 1, trained: Grid = (4, 9)) -> None:
        super().__init__(front)
        self.trained = trained
        self.table = nn.Parameter(torch.randn(1 + trained[0] * trained[1], 32))

    def fits(self, grid: Grid) -> bool:
        return grid == self.trained

    def patches(self) -> Tensor:
        return self.table[1:]

    def size(self, grid: Grid) -> dict[str, Any]:
        return {"size": grid}

    def image(self, table: Tensor) -> Tensor:
        """(1, dim, height, width)"""
        return table.view(1, *self.trained, -1).permute(0, 3, 1, 2)

    def flat(self, image: Tensor) -> Tensor:
        return image.permute(0, 2, 3, 1).flatten(0, 2)

    def code(self, grid: Grid) -> Tensor:
        if self.fits(grid):
            return self.patches()
        image = self.image(self.patches())
        return self.flat(F.interpolate(image, mode="bicubic", align_corners=False, **self.size(grid)))

    def placed(self, grid: Grid) -> Tensor:
        front = F.pad(self.table[:1], (0, 0, 0, self.front - 1))
        return torch.cat((front, self.code(grid)))


class SizesExchanged(Resized):
    def size(self, grid: Grid) -> dict[str, Any]:
        return {"size": (grid[1], grid[0])}


class AsManyPatches(Resized):
    """As many patches as in training are taken for the same grid."""

    def fits(self, grid: Grid) -> bool:
        return grid[0] * grid[1] == self.trained[0] * self.trained[1]


class AsIfSquare(Resized):
    """The side is the root of the number of patches."""

    def image(self, table: Tensor) -> Tensor:
        side = math.isqrt(len(table))
        return table.view(1, side, side, -1).permute(0, 3, 1, 2)


class TableTransposed(Resized):
    """Channels come first by a transpose that exchanges the sides too, and they are not exchanged back."""

    def flat(self, image: Tensor) -> Tensor:
        return image.permute(0, 3, 2, 1).flatten(0, 2)


class WithTheClassToken(Resized):
    """The class token's vector is taken for the first patch, and the last patch has none."""

    def code(self, grid: Grid) -> Tensor:
        if self.fits(grid):
            return self.patches()
        return self.flat(F.interpolate(self.image(self.table[:-1]), mode="bicubic", **self.size(grid)))


class AnOffsetAtTheTrainedSize(Resized):
    """A tenth of a patch against rounding, at the size of training too, where it moves every patch."""

    def fits(self, grid: Grid) -> bool:
        return False

    def code(self, grid: Grid) -> Tensor:
        factors = [(side + 0.1) / of for side, of in zip(grid, self.trained, strict=True)]
        image = F.interpolate(self.image(self.patches()), mode="bicubic", scale_factor=factors)
        return self.flat(image[:, :, : grid[0], : grid[1]])


class RegistersTakeVectors(Resized):
    """Vectors go to the tokens in their order, and registers are among them; the last patches go without."""

    def placed(self, grid: Grid) -> Tensor:
        return F.pad(torch.cat((self.table[:1], self.code(grid))), (0, 0, 0, self.front - 1))


class SquareOfPatches(Resized):
    """A table for grids up to its own, of which the first vectors are taken, as if rows were as short."""

    def code(self, grid: Grid) -> Tensor:
        if grid[0] * grid[1] <= len(self.table) - 1:
            return self.patches()[: grid[0] * grid[1]]
        return super().code(grid)


# -- convolutions ------------------------------------------------------------------------------------------------------


class Convolved(nn.Module):
    """Positions by a depthwise convolution of the patches (PEG of CPVT), which the class token goes around."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(32, 32, 3, padding=1, groups=32)

    def image(self, x: Tensor, grid: Grid) -> Tensor:
        """(rows, dim, height, width)"""
        return x.mT.unflatten(-1, grid)

    def flat(self, image: Tensor) -> Tensor:
        return image.flatten(2).mT

    def split(self, x: Tensor, front: int) -> tuple[Tensor, Tensor]:
        return x[:, :front], x[:, front:]

    def join(self, front: Tensor, patches: Tensor) -> Tensor:
        return torch.cat((front, patches), 1)

    def forward(self, x: Tensor, grid: Grid | None) -> Tensor:
        grid = (1, x.size(1)) if grid is None else grid
        front, patches = self.split(x, x.size(1) - grid[0] * grid[1])
        return self.join(front, patches + self.flat(self.convolution(self.image(patches, grid))))


class ImageOfOtherSides(Convolved):
    def image(self, x: Tensor, grid: Grid) -> Tensor:
        return super().image(x, (grid[1], grid[0]))


class ImageByView(Convolved):
    """Tokens and channels are not exchanged before the view."""

    def image(self, x: Tensor, grid: Grid) -> Tensor:
        return x.reshape(len(x), 32, *grid)

    def flat(self, image: Tensor) -> Tensor:
        return image.reshape(len(image), -1, 32)


class ClassAtTheOtherEnd(Convolved):
    """The last patch goes around, and the class token is taken for the first patch."""

    def split(self, x: Tensor, front: int) -> tuple[Tensor, Tensor]:
        return x[:, x.size(1) - front :], x[:, : x.size(1) - front]

    def join(self, front: Tensor, patches: Tensor) -> Tensor:
        return torch.cat((patches, front), 1)


class ConvolvedAcross(Convolved):
    """The image lies on its side, as the kernel does; and what looks at one place at a time is given any sides."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(32, 32, 1)

    def image(self, x: Tensor, grid: Grid) -> Tensor:
        mixed = self.mix(x.mT.unflatten(-1, (grid[1], grid[0]))).flatten(2)
        return mixed.unflatten(-1, grid).mT

    def flat(self, image: Tensor) -> Tensor:
        return image.mT.flatten(2).mT


def sines(build: Any, registers: int = 1) -> Layer:
    return Layer(build=build, call=add, options={"front": registers}, registers=registers)


def learned(build: Any, **claims: Any) -> Layer:
    return Layer(build=build, call=add, **claims)


def resized(build: Any, registers: int = 1) -> Layer:
    return Layer(build=build, call=add, options={"front": registers}, registers=registers, trained_grid=(4, 9))


CORRECT = (
    sines(Masked),
    sines(Detected, 0),
    sines(Normalised, 0),
    learned(Rows, max_positions=12),
    learned(Rows, options={"limits": (6, 12)}, max_grid=(6, 12)),
    resized(Resized),
    resized(Resized, 4),
    learned(Convolved, registers=1),
    learned(ConvolvedAcross, registers=1),
)
MUTANTS = (
    Mutant("a mesh of the other order", sines(MeshTransposed), caught_by=20, pain=12),
    Mutant("a mesh of exchanged sides", sines(MeshReshaped), caught_by=20, pain=12),
    Mutant("sines of the column twice", sines(ColumnsTwice), caught_by=20, pain=12),
    Mutant("the class token's zeros at the end", sines(ZeroAtTheEnd), caught_by=20, pain=12),
    Mutant("columns summed over the raster", sines(SumsOverTheRaster, 0), caught_by=20, pain=12),
    Mutant("vectors of rows repeated", learned(RowsRepeated, max_positions=12), caught_by=20, pain=12),
    Mutant(
        "columns from the table of rows",
        learned(RowsForColumns, options={"limits": (6, 12)}, max_grid=(6, 12)),
        caught_by=20,
        pain=14,
    ),
    Mutant(
        "limits of rows and columns exchanged",
        learned(TablesExchanged, options={"limits": (6, 12)}, max_grid=(6, 12)),
        caught_by=20,
        pain=14,
    ),
    Mutant("rows clamped to the last", learned(ClampedToTheLast, max_positions=12), caught_by=20, pain=14),
    Mutant("resized to exchanged sizes", resized(SizesExchanged), caught_by=20, pain=12),
    Mutant("not resized for as many patches", resized(AsManyPatches), caught_by=20, pain=12),
    Mutant("resized as if it had been square", resized(AsIfSquare), caught_by=20, pain=12),
    Mutant("resized and transposed", resized(TableTransposed), caught_by=20, pain=12),
    Mutant("resized with the class token", resized(WithTheClassToken), caught_by=20, pain=12),
    Mutant("an offset at the trained size", resized(AnOffsetAtTheTrainedSize), caught_by=20, pain=12),
    Mutant("registers take vectors of patches", resized(RegistersTakeVectors, 4), caught_by=20, pain=12),
    Mutant("a table cut instead of resized", resized(SquareOfPatches), caught_by=20, pain=12),
    Mutant("a convolution of other sides", learned(ImageOfOtherSides, registers=1), caught_by=20, pain=12),
    Mutant("a convolution of a view", learned(ImageByView, registers=1), caught_by=20, pain=12),
    Mutant("the last patch goes around", learned(ClassAtTheOtherEnd, registers=1), caught_by=20, pain=12),
)
