"""Trials of position tables that are resized for grids of other shapes. Plain PyTorch: scripts hold a copy."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.tools.check.layers import Layer
from posenc.tools.check.outcome import Outcome, Outcomes, near
from posenc.tools.check.rasters import added_at, fine, scores_in_order
from posenc.tools.check.subjects import Batch, Subject, require

MOST = 256  # the most patches for comparing all pairs
FAR = 1.25  # in patches of the trained grid: the nearest is less than one away, and the ends may be at the border


def table_of(made: Any, grid: tuple[int, int], more: set[int], first: bool, dim: int | None) -> Tensor | None:
    """A view, (rows, columns, …), of the parameter or buffer that has a vector for each place of a grid, found by its
    shape. ``more``: the numbers of further vectors that it may have, ``first`` or last."""
    if not isinstance(made, nn.Module):
        return None
    height, width = grid
    for held in (*made.parameters(), *made.buffers()):
        shape = list(held.shape)
        while len(shape) > 1 and shape[0] == 1:
            shape = shape[1:]
        x = held.detach().view(shape)
        if not x.is_floating_point() or (dim is not None and dim not in shape):
            continue
        if len(shape) == 3 and shape[:2] == [height, width]:
            return x
        if len(shape) == 3 and shape[1:] == [height, width]:
            return x.permute(1, 2, 0)
        if len(shape) == 2 and shape[0] - height * width in more:
            extra = shape[0] - height * width
            return (x[extra:] if first else x[: height * width]).unflatten(0, (height, width))
    return None


class _Resized:
    """A subject whose table is resized, and access to the table and to its values in a grid."""

    def __init__(self, subject: Subject) -> None:
        require(subject.trained_grid, "claim `trained_grid=(rows, columns)` if a table is resized for other grids")
        height, width = subject.trained_grid or (0, 0)
        self.subject, self.made, self.trained = subject, subject.make(), (height, width)
        dim = subject.dim if isinstance(subject, Layer) else None
        front = {0, min(subject.registers, 1), subject.registers}  # of the class token alone, or of all
        places = table_of(self.made, self.trained, front, True, dim)
        offsets = table_of(self.made, (2 * height - 1, 2 * width - 1), {0, 3}, False, None)
        table = places if places is not None else offsets
        require(
            table is not None,
            f"nothing to do: it holds no table of {height} x {width} places, nor of the offsets between them",
        )
        assert table is not None
        self.table, self.of_offsets = table, places is None

    def write(self, values: Tensor) -> None:
        """Fills each vector of the table with one number: values are (rows, columns)."""
        self.table.copy_(values[..., None].to(self.table).expand_as(self.table))

    def at(self, grid: tuple[int, int]) -> Tensor:
        """The values for the places of a grid, or for the offsets within it: (rows, columns, …)."""
        if not self.of_offsets:
            return added_at(self.subject, self.made, grid)[1]
        (height, width), front = grid, self.subject.registers
        require(height * width <= MOST, f"nothing to do: the scores of a grid of {grid} are too many to look at")
        batch = Batch([[1] * (front + height * width)], grid=grid)
        scores = scores_in_order(self.subject, self.made, batch)[:, front:, front:]
        # Every offset begins at a corner: patches further down and right are seen from the upper left corner, those
        # further up from the lower left.
        rows, columns = torch.arange(1 - height, height), torch.arange(1 - width, width)
        start = (-rows).clamp(min=0)[:, None] * width + (-columns).clamp(min=0)
        return scores[:, start, start + rows[:, None] * width + columns].permute(1, 2, 0)

    def require_that_it_is_read(self) -> None:
        """NotApplicableError unless a constant table gives constant values, and another one does not."""
        self.write(torch.ones(self.table.shape[:2]))
        level = self.at(self.trained)
        self.write(torch.arange(self.table.size(0) * self.table.size(1)).view(self.table.shape[:2]))
        steep = self.at(self.trained)
        flat = float((level - level[:1, :1]).abs().max())
        require(
            flat <= 2**-18 * float((steep - steep[:1, :1]).abs().max()), "nothing to do: what it gives is not its table"
        )


@torch.no_grad()
def nothing_is_resized_at_home(subject: Subject, batch: Batch) -> Outcome:
    """At the trained grid, the table itself is added."""
    assert batch.grid is not None
    resized = _Resized(subject)
    require(not resized.of_offsets, "nothing to do: its table is of offsets, which scores hold beside others")
    drawn = resized.table.clone()
    resized.require_that_it_is_read()
    resized.table.copy_(drawn)
    came, expected = resized.at(batch.grid), drawn.double()
    return near(expected, came, 2**-18 * float(came.abs().max()))


@torch.no_grad()
def rows_stay_rows(subject: Subject, batch: Batch) -> Outcomes:
    """A table that is constant along each row, or each column, is so in a grid of another shape too. A table of places
    that is linear in the row, or the column, is linear there as well, by the relative place."""
    assert batch.grid is not None
    resized = _Resized(subject)
    resized.require_that_it_is_read()
    trained = resized.table.shape[:2]
    for axis, (name, across) in enumerate((("row", "columns"), ("column", "rows"))):
        steps = torch.arange(trained[axis]).double()
        resized.write((steps[:, None] if axis == 0 else steps).expand(trained))
        came = resized.at(batch.grid)
        level = came.narrow(1 - axis, 0, 1).expand_as(came)
        flat = f"a table that goes by the {name} alone, across {across}"
        yield flat, near(level, came, 2**-18 * float(came.abs().max()) + fine(subject, came))
        if not resized.of_offsets:
            side = batch.grid[axis]
            share = (torch.arange(side).double() + 0.5) * trained[axis] / side - 0.5
            shape = [-1 if n == axis else 1 for n in range(3)]
            yield f"the number of the {name}", near(share.view(shape).to(came).expand_as(came), came, FAR)


@torch.no_grad()
def registers_are_not_resized(subject: Subject, batch: Batch) -> Outcome:
    """The vectors added to registers are the same in a grid of another shape as in the trained one."""
    assert batch.grid is not None
    resized = _Resized(subject)
    require(not resized.of_offsets, "nothing to do: its table is of offsets")
    expected, came = (added_at(subject, resized.made, grid)[0] for grid in (resized.trained, batch.grid))
    largest = float(torch.cat((expected, resized.table.double().flatten(0, 1))).abs().max())
    return near(expected, came, 2**-18 * largest)
