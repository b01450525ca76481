"""Checks that every axis of a grid counts by itself, for any shape and with text around it (check 20)."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from posenc_check.captured import NO_SCORES, of_one_token, scores_of
from posenc_check.checks.cache import cached_equals_at_once
from posenc_check.checks.rotations import first_axis, row_of
from posenc_check.outcome import Outcome, Outcomes, all_finite, largest, near
from posenc_check.subjects import Batch, Layer, Subject, applies, must_show, require
from posenc_check.trial import Case, Check, Trial, TrialPlan


def are_equal(subject: Subject, first: Tensor, second: Tensor) -> bool:
    """Whether two outputs are those of the same calculation."""
    size = float(first.abs().max())
    return float((first - second).abs().max()) <= 16 * torch.finfo(subject.dtype).eps * size


def the_shape_is_seen(subject: Subject, batch: Batch, tolerance: float) -> Outcome:
    """The same patches in h rows and w columns, in w rows and h columns, and with two of these exchanged."""
    assert batch.grid is not None
    height, width = batch.grid
    applies(height != width and len(set(batch.ids[0])) > 1, "the grid is square, or its patches do not differ")
    made = subject.make()
    actual = subject.run(made, batch)
    lying = subject.run(made, replace(batch, grid=(width, height)))
    for out in (actual, lying):
        if not (finite := all_finite(out, batch)).ok:
            return finite
    front, unseen = subject.registers, []
    for axis, name in enumerate(("rows", "columns")):
        places = torch.arange(height * width).view(height, width) + front
        same = batch.grid[axis] > 2 and not subject.causal  # two exchanged are a picture turned over
        for n in range(batch.grid[axis] - 1 if same else 0):
            line = torch.tensor([*range(n), n + 1, n, *range(n + 2, batch.grid[axis])])
            turned = [*range(front), *places.index_select(axis, line).flatten().tolist()]
            exchanged = subject.run(made, replace(batch.pick(turned), grid=batch.grid))
            same = same and near(actual[:, turned], exchanged, tolerance).ok
        unseen += [name] * same
    must_show(subject, unseen != ["rows", "columns"], "its outputs do not go by positions")
    if unseen:
        return Outcome(False, f"other outputs with two {unseen[0]} exchanged", "the same, exchanged")
    other = f"something else for {height}x{width} than for {width}x{height}"
    return Outcome(not are_equal(subject, actual, lying), other, "the same")


def scores_go_by_offsets(subject: Subject, batch: Batch) -> Outcomes:
    """In a row of one repeated token, scores minus a patch's own are the same for pairs of the same offset."""
    found = scores_of(subject, subject.make(), of_one_token(batch))
    require(found, NO_SCORES)
    scores, width = found[0][0, :, subject.registers :, subject.registers :], batch.grid[1]
    scores = scores - scores.diagonal(dim1=-2, dim2=-1)[..., None]
    tolerance = 32 * subject.eps(torch.float32, subject.dtype) * largest(scores)  # biases are often of float32
    must_show(subject, tolerance, "all tokens give as much to all as to themselves")
    first: dict[tuple[int, int], tuple[int, int]] = {}
    for q, k in product(range(scores.size(-1)), repeat=2):
        p, r = first.setdefault((k // width - q // width, k % width - q % width), (q, k))
        at, seen, same, way = ([*divmod(n, width)] for n in (q, k, p, r))
        yield f"patch {seen} as seen from {at}, as {way} from {same}", near(scores[:, p, r], scores[:, q, k], tolerance)


def every_axis_is_seen(subject: Subject, batch: Batch) -> Outcome:
    """Setting one coordinate of all patches to 0 changes the outputs, for every axis."""
    row = row_of(batch)
    differ = len(set(batch.ids[0])) > 1 and all(len({p[axis] for p in row}) > 1 for axis in range(subject.axes))
    applies(differ, "the patches do not differ, or not on every axis")
    made = subject.make()
    actual = subject.run(made, batch)
    seen = []
    for axis in range(subject.axes):
        flat = [[[*p[:axis], 0, *p[axis + 1 :]] for p in row]]
        seen.append(not are_equal(subject, actual, subject.run(made, replace(batch, positions=flat))))
    must_show(subject, any(seen), "its outputs do not go by positions")
    unseen = [axis for axis, found in enumerate(seen) if not found]
    return Outcome(not unseen, "other outputs without any of the axes", f"the same without axes {unseen}")


def moving_along_an_axis_changes_nothing(
    subject: Subject, batch: Batch, axis: int, by: int, tolerance: float
) -> Outcome:
    """A grid gives the same outputs when it is moved along one axis."""
    made = subject.make()
    return near(subject.run(made, batch), subject.run(made, batch.shifted(by, axis=axis)), tolerance)


def text_is_one_axis(subject: Subject, batch: Batch, tolerance: float) -> Outcome:
    """Tokens at (p, p, …) give the same outputs as tokens at p with one axis."""
    line, flat = replace(subject, axes=1), replace(batch, positions=[[first_axis(p) for p in row_of(batch)]])
    return near(line.run(line.make(**(subject.flat or {})), flat), subject.run(subject.make(), batch), tolerance)


# -- cases -------------------------------------------------------------------------------------------------------------


RELATIVE = "claim `relative=True` if moving all positions changes nothing"
AFTER = "Give text after an image the positions that follow the largest of it, whatever slot of the cache it is in."
SHAPES = ((3, 5), (5, 3))
SMALL = ((2, 3), (3, 2))  # for subjects with fewer than five rows or columns
STEPS = (1, 37)


def _require_axes(plan: TrialPlan) -> None:
    several = plan.subject.axes > 1
    require(several, "claim `axes=2`, and let call take `positions` (rows, tokens, 2), if they are of images")
    require(plan.has(max(map(max, SHAPES)) - 1), "let it have more positions: there are too few for the grids")
    plan.require_that_it_can("positions")


def _patches(plan: TrialPlan, shape: tuple[int, int]) -> Batch:
    """One row of patches with coordinates on all axes: two steps along each axis before the last two."""
    sides = [2] * (plan.subject.axes - 2) + list(shape)
    places = [list(p) for p in product(*map(range, sides))]
    return replace(plan.text(1, len(places)), positions=[places])


def _rasters(plan: TrialPlan, relative: bool = False) -> Iterator[Case]:
    """One row of patches behind the registers, if there are any; only the shape of the grid is given."""
    subject = plan.subject
    applies(isinstance(subject, Layer) and (subject.takes("grid") or not relative), "call takes no grid")
    require(subject.takes("grid"), "let call take `grid`, (height, width), if it takes images")
    require(subject.relative or not relative, RELATIVE)
    pair = next((pair for pair in (SHAPES, SMALL) if all(map(subject.fits, pair))), None)
    require(pair, "let it have more positions: there are too few for the grids")
    for height, width in pair or ():
        batch = replace(plan.text(1, subject.registers + height * width), grid=(height, width))
        yield Case(batch, {} if relative else {"tolerance": plan.tolerance(max(height, width))})


def _axes(plan: TrialPlan) -> Iterator[Case]:
    _require_axes(plan)
    for shape in SHAPES:
        yield Case(_patches(plan, shape))


def _moves(plan: TrialPlan) -> Iterator[Case]:
    applies(plan.subject.axes > 1, "positions have one axis")
    _require_axes(plan)
    require(plan.subject.relative, RELATIVE)
    for shape, axis, by in product(SHAPES, range(plan.subject.axes), STEPS):
        if plan.has(highest := max(shape) - 1 + by):
            yield Case(_patches(plan, shape), {"axis": axis, "by": by, "tolerance": plan.tolerance(highest)})


def _text(plan: TrialPlan) -> Iterator[Case]:
    _require_axes(plan)
    require(plan.subject.flat is not None, "name in `flat` the options that build the same for one axis, to run this")
    for start in (0, 1000):
        if plan.has(start + plan.sizes[-1] - 1):
            batch = plan.line(1, plan.sizes[-1], start)
            yield Case(batch, {"tolerance": plan.tolerance(start + batch.tokens)})


def _after_an_image(plan: TrialPlan) -> Iterator[Case]:
    """Three tokens of text, an image of 2 x 3, and text that goes on after its longer side; fed so that text, a part of
    the image, or each of its patches comes later. With three axes, also two frames, of which the second comes later."""
    _require_axes(plan)
    applies(plan.subject.causal, "what is not causal cannot go on after an image")
    plan.require_that_it_can("cache")
    require(plan.has(8), "let it have `max_positions` of 9 or more")
    axes, first, last = plan.subject.axes, map(plan.subject.at, range(3)), map(plan.subject.at, range(6, 9))
    image = [[3] * (axes - 2) + [3 + row, 3 + column] for row, column in product(range(2), range(3))]
    text, after = list(first), list(last)
    fed: list[tuple[list[list[int]], list[tuple[int, ...]]]] = [
        (image, [(9, 1, 1, 1), (4, 5, 3), (3, 7, 2), (3, *(1,) * 6, 3)])
    ]
    if axes > 2:
        frames = [[3 + frame, *patch[1:]] for frame in range(2) for patch in image]
        fed.append((frames, [(9, 6, 3), (5, *(1,) * 10, 3)]))
    for patches, ways in fed:
        whole = replace(plan.text(1, 6 + len(patches)), positions=[[*text, *patches, *after]])
        for chunks in ways:
            yield Case(replace(whole, chunks=chunks), {"tolerance": plan.tolerance(9)})


CHECK = Check(
    number=20,
    name="grids",
    rule="Rows and columns are distinguished in grids of any shape; text between images has the right positions.",
    why="Swapped axes, or a cache slot used as a position, pass every test on square images.",
    pains=(12, 13),
    remedy="Take row and column as n // width and n % width, with the width of this very grid, and each axis by "
    "itself.",
    trials=(
        Trial("every axis is seen", every_axis_is_seen, _axes),
        Trial("moving along an axis", moving_along_an_axis_changes_nothing, _moves, claims=("relative",)),
        Trial("shape of the grid", the_shape_is_seen, _rasters),
        Trial("scores by offsets", scores_go_by_offsets, _rasters, {"relative": True}, claims=("relative",)),
        Trial("text alone", text_is_one_axis, _text, claims=("flat",)),
        Trial("after an image", cached_equals_at_once, _after_an_image, remedy=AFTER),
    ),
)
