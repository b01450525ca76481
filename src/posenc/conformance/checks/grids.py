"""20. Grids: every axis counts as itself, whatever the shape of the image and whatever follows it."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from posenc.conformance.checks.cache import cached_equals_at_once
from posenc.conformance.layers import Layer, Model
from posenc.conformance.measure import of_two_tokens, row_of
from posenc.conformance.outcome import Outcome, Outcomes, near
from posenc.conformance.subjects import PADDING, VOCABULARY, Batch, Subject, require
from posenc.conformance.trial import Case, Check, Plan, Trial


def alike(subject: Subject, first: Tensor, second: Tensor) -> bool:
    """Whether two outputs are those of the same calculation."""
    size = float(first.abs().max())
    return float((first - second).abs().max()) <= 16 * torch.finfo(subject.dtype).eps * size


def every_axis_is_seen(subject: Subject, batch: Batch) -> Outcome:
    """Patches of a grid, against the same patches with one coordinate set to 0."""
    row = row_of(batch)
    differ = len(set(batch.ids[0])) > 1 and all(len({p[axis] for p in row}) > 1 for axis in range(subject.axes))
    require(differ, "nothing to do: the patches do not differ, or not on every axis")
    made = subject.make()
    came = subject.run(made, batch)
    seen = []
    for axis in range(subject.axes):
        flat = [[[*p[:axis], 0, *p[axis + 1 :]] for p in row]]
        seen.append(not alike(subject, came, subject.run(made, replace(batch, positions=flat))))
    require(any(seen), "give it a `jitter`, for its outputs do not go by positions")
    unseen = [axis for axis, found in enumerate(seen) if not found]
    return Outcome(not unseen, "other outputs without any of the axes", f"the same without axes {unseen}")


def no_two_ways_are_alike(subject: Subject, batch: Batch) -> Outcome:
    """Rows of two patches, each a different way apart: no two rows may come out the same."""
    assert batch.positions is not None
    require(of_two_tokens(batch), "nothing to do: the rows are not of the same two patches")
    came = subject.run(subject.make(), batch).flatten(1)
    ways = [[b - a for a, b in zip(row[0], row[-1], strict=True)] for row in batch.positions]
    apart = torch.cdist(came.double(), came.double(), p=torch.inf, compute_mode="donot_use_mm_for_euclid_dist")
    rounding = 16 * torch.finfo(subject.dtype).eps * float(came.abs().max())
    require(
        len(ways) <= 2 or not float(apart.max()) <= rounding,
        "give it a `jitter`, for its outputs do not go by positions",
    )
    for i, j in product(range(len(ways)), repeat=2):
        if ways[i] != ways[j] and alike(subject, came[i], came[j]):
            there, here = (batch.positions[n] for n in (i, j))
            return Outcome(False, f"something else for patches at {here} than at {there}", "the same")
    return Outcome(True, "all differ", "all differ")


def moving_along_an_axis_changes_nothing(
    subject: Subject, batch: Batch, axis: int, by: int, tolerance: float
) -> Outcome:
    """A grid, and the same grid further along one axis."""
    made = subject.make()
    return near(subject.run(made, batch), subject.run(made, batch.moved(by, axis=axis)), tolerance)


def any_order_will_do(subject: Subject, batch: Batch, tolerance: float) -> Outcome:
    """Patches in raster order, against the same patches at the same places handed in column by column."""
    row = row_of(batch)
    turned = sorted(range(batch.tokens), key=lambda n: row[n][::-1])
    made = subject.make()
    return near(subject.run(made, batch)[:, turned], subject.run(made, batch.pick(turned)), tolerance)


def text_is_one_axis(subject: Subject, batch: Batch, tolerance: float) -> Outcome:
    """Tokens at (p, p, …), against those at p with one axis."""
    line, flat = replace(subject, axes=1), replace(batch, positions=[[p[0] for p in row_of(batch)]])
    return near(line.run(line.make(**(subject.flat or {})), flat), subject.run(subject.make(), batch), tolerance)


def the_grid_gives_the_places(subject: Subject, batch: Batch, tolerance: float) -> Outcome:
    """A grid by its shape, against one by the row and column of each patch."""
    made = subject.make()
    places = replace(batch, positions=subject.places(batch).tolist(), grid=None)
    return near(subject.run(made, places), subject.run(made, batch), tolerance)


def the_shape_is_seen(subject: Subject, batch: Batch, tolerance: float) -> Outcome:
    """The same patches as a grid of h rows and w columns, as one of w rows and h columns, and with two of its rows, or
    columns, exchanged."""
    assert batch.grid is not None
    height, width = batch.grid
    require(
        height != width and len(set(batch.ids[0])) > 1,
        "nothing to do: the grid is square, or its patches do not differ",
    )
    made, front = subject.make(), subject.registers
    came = subject.run(made, batch)
    lying = subject.run(made, replace(batch, grid=(width, height)))
    for out in (came, lying):
        if out.shape[:2] != (len(batch.ids), batch.tokens) or not out.isfinite().all():
            return Outcome(False, f"a finite output for {batch.tokens} tokens", f"{tuple(out.shape)}, or not finite")
    unseen = []
    for axis, name in enumerate(("rows", "columns")):
        if batch.grid[axis] < 2:
            continue
        places = torch.arange(height * width).view(height, width)
        order = places.index_select(axis, torch.tensor([1, 0, *range(2, batch.grid[axis])])).flatten() + front
        turned = [*range(front), *order.tolist()]
        exchanged = subject.run(made, replace(batch.pick(turned), grid=batch.grid))
        if not subject.causal and near(came[:, turned], exchanged, tolerance).ok:
            unseen.append(name)
    require(unseen != ["rows", "columns"], "give it a `jitter`, for its outputs do not go by positions")
    if unseen:
        return Outcome(False, f"other outputs with two {unseen[0]} exchanged", "the same, exchanged")
    other = f"something else for {height}x{width} than for {width}x{height}"
    return Outcome(not alike(subject, came, lying), other, "the same")


def the_same_way_wherever_it_is(subject: Subject, batch: Batch, tolerance: float) -> Outcomes:
    """A grid of which every row of the batch shows two patches, all else being padding: those that lie the same way
    apart come out the same."""
    assert batch.grid is not None
    out, width, pairs = subject.run(subject.make(), batch), batch.grid[1], 0
    first: dict[Any, tuple[str, Tensor]] = {}
    for row, real in enumerate(batch.real):
        kept = [n for n, token in enumerate(real) if token]
        if len(kept) != 2 or kept[0] < subject.registers:
            continue
        (a, b), (c, d) = (divmod(n - subject.registers, width) for n in kept)
        way = (c - a, d - b, *(batch.ids[row][n] for n in kept))
        here = f"{[a, b]} and {[c, d]}"
        there, expected = first.setdefault(way, (here, out[row, kept]))
        pairs += 1
        yield f"patches at {here}, as at {there}", near(expected, out[row, kept], tolerance)
    require(pairs != len(first), "no two pairs of patches lie the same way apart")


def registers_have_no_place(subject: Subject, batch: Batch, tolerance: float) -> Outcomes:
    """Registers in front of a grid: exchanging two exchanges what comes out for them; a layer that adds to its input
    adds nothing to them."""
    made, front = subject.make(), subject.registers
    came, seen = subject.run(made, batch), False
    if front > 1 and not subject.causal:
        turned, seen = [1, 0, *range(2, batch.tokens)], True
        other = subject.run(made, replace(batch.pick(turned), grid=batch.grid))
        yield "registers 0 and 1 exchanged", near(came[:, turned], other, tolerance)
    if isinstance(subject, Layer) and not isinstance(subject, Model):
        again = replace(batch, ids=[[(n + 1) % VOCABULARY for n in row] for row in batch.ids])
        x, y = subject.content(batch)[:, :front], subject.content(again)[:, :front]
        if came.shape[2:] == x.shape[2:]:
            added, then = came[:, :front] - x, subject.run(made, again)[:, :front] - y
            if near(added, then, tolerance).ok:
                seen = True
                yield "what is added to registers", near(torch.zeros_like(added), added, tolerance)
    require(seen, "nothing to do: there is one register, and more is done to it than adding")


# -- cases -------------------------------------------------------------------------------------------------------------

AFTER = "Give text after an image the positions that follow the largest of it, whatever slot of the cache it is in."
SHAPES = ((3, 5), (5, 3))
STEPS = (1, 37)


def _require(plan: Plan, axes: bool = False, grid: bool = False) -> None:
    require(not grid or plan.subject.takes("grid"), "let call take `grid`, (height, width), if it takes images")
    require(
        not axes or plan.subject.axes > 1,
        "claim `axes=2`, and let call take `positions` (rows, tokens, 2), if they are of images",
    )
    require(plan.has(max(map(max, SHAPES)) - 1), "let it have `max_positions` of 5 or more, for the grids")
    if axes:
        plan.require_that_it_can("positions")


def _patches(plan: Plan, shape: tuple[int, int]) -> Batch:
    """One row of patches with the coordinates of all its axes: two steps along each before the last two."""
    sides = [2] * (plan.subject.axes - 2) + list(shape)
    places = [list(p) for p in product(*map(range, sides))]
    return replace(plan.text(1, len(places)), positions=[places])


def _rasters(plan: Plan, coordinates: bool = False, registers: bool = False) -> Iterator[Case]:
    """One row of patches whose shape alone is given, behind the registers if there are any; of those that have
    ``coordinates`` too, or ``registers``, if asked for."""
    _require(plan, axes=coordinates, grid=True)
    require(
        plan.subject.registers or not registers,
        "claim `registers=N` if the first tokens of a row have no place on its grid",
    )
    require(not (plan.subject.registers and coordinates), "nothing to do: registers have no coordinates")
    for shape in (*SHAPES, (1, 5), (5, 1)) if coordinates else SHAPES:
        batch = replace(plan.text(1, plan.subject.registers + shape[0] * shape[1]), grid=shape)
        yield Case(batch, {"tolerance": plan.tolerance(max(shape))})


def _axes(plan: Plan) -> Iterator[Case]:
    _require(plan, axes=True)
    for shape in SHAPES:
        yield Case(_patches(plan, shape))


def _ways(plan: Plan) -> Iterator[Case]:
    _require(plan, axes=True)
    require(not plan.subject.symmetric, "nothing to do: it claims to be symmetric")
    front = [0] * (plan.subject.axes - 2)
    rows = []
    for down, right in product(range(-2, 3), range(-4, 5)):
        start = [max(-down, 0), max(-right, 0)]
        rows.append([[*front, *start], [*front, start[0] + down, start[1] + right]])
    yield Case(Batch([[1, 2]] * len(rows), positions=rows))


def _moves(plan: Plan) -> Iterator[Case]:
    _require(plan, axes=True)
    require(plan.subject.relative, "claim `relative=True` if moving all positions changes nothing")
    for shape, axis, by in product(SHAPES, range(plan.subject.axes), STEPS):
        if plan.has(highest := max(shape) - 1 + by):
            yield Case(_patches(plan, shape), {"axis": axis, "by": by, "tolerance": plan.tolerance(highest)})


def _orders(plan: Plan) -> Iterator[Case]:
    _require(plan, axes=True)
    require(not plan.subject.causal or plan.subject.can("order"), plan.lacks("order"))
    for shape in SHAPES:
        batch = _patches(plan, shape)
        if plan.subject.causal:
            batch = replace(batch, order=[list(range(batch.tokens))])
        yield Case(batch, {"tolerance": plan.tolerance(max(shape))})


def _text(plan: Plan) -> Iterator[Case]:
    _require(plan, axes=True)
    require(plan.subject.flat is not None, "name in `flat` the options that build the same for one axis, to run this")
    for start in (0, 1000):
        if plan.has(start + plan.sizes[-1] - 1):
            batch = plan.line(1, plan.sizes[-1], start)
            yield Case(batch, {"tolerance": plan.tolerance(start + batch.tokens)})


def _after_an_image(plan: Plan) -> Iterator[Case]:
    """Three tokens of text, an image of 2 x 3, and text that goes on after its longer side."""
    _require(plan, axes=True)
    require(plan.subject.causal, "nothing to do: what is not causal cannot go on after an image")
    plan.require_that_it_can("cache")
    require(plan.has(8), "let it have `max_positions` of 9 or more")
    image = [[3] * (plan.subject.axes - 2) + [3 + row, 3 + column] for row, column in product(range(2), range(3))]
    places = [*map(plan.subject.at, range(3)), *image, *map(plan.subject.at, range(6, 9))]
    batch = replace(plan.text(1, len(places)), positions=[places])
    for chunks in ((9, 1, 1, 1), (4, 5, 3), (3, 7, 2)):
        yield Case(replace(batch, chunks=chunks), {"tolerance": plan.tolerance(9)})


def _pairs_of_patches(plan: Plan) -> Iterator[Case]:
    _require(plan, grid=True)
    plan.require_that_it_can("padding")
    require(plan.subject.relative, "claim `relative=True` if moving all positions changes nothing")
    front = plan.subject.registers
    for height, width in SHAPES:
        ids, document = [], []
        for down, right in ((0, 1), (1, 0), (1, 1), (0, 2)):
            for row, column in ((0, 0), (0, width - 1 - right), (height - 1 - down, 0), (1, 1)):
                if row + down < height and column + right < width:
                    places = {front + row * width + column, front + (row + down) * width + column + right}
                    line = range(front + height * width)
                    ids.append([1 + (n == max(places)) if n in places else 0 for n in line])
                    document.append([0 if n in places else PADDING for n in line])
        values = {"tolerance": plan.tolerance(max(height, width))}
        yield Case(Batch(ids, document=document, grid=(height, width)), values)


CHECK = Check(
    number=20,
    name="grids",
    rule="Rows and columns count each as itself, in grids of any shape; text among images is at its position.",
    why="An axis taken for the other, or a cache slot taken for a position, passes every test on square images.",
    pains=(12, 13),
    remedy="Take row and column as n // width and n % width, with the width of this very grid, and each axis by "
    "itself.",
    trials=(
        Trial("every axis is seen", every_axis_is_seen, _axes),
        Trial("ways apart", no_two_ways_are_alike, _ways),
        Trial("moving along an axis", moving_along_an_axis_changes_nothing, _moves),
        Trial("order of patches", any_order_will_do, _orders),
        Trial("shape of the grid", the_shape_is_seen, _rasters),
        Trial("grid and coordinates", the_grid_gives_the_places, _rasters, {"coordinates": True}),
        Trial("pairs of patches", the_same_way_wherever_it_is, _pairs_of_patches, claims=("relative",)),
        Trial("registers", registers_have_no_place, _rasters, {"registers": True}),
        Trial("text alone", text_is_one_axis, _text, claims=("flat",)),
        Trial("after an image", cached_equals_at_once, _after_an_image, remedy=AFTER),
    ),
)
