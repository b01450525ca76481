"""Checks that every axis of a grid counts by itself, for any shape and with text around it (check 20)."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch

from posenc.tools.check import influence, rasters, tables
from posenc.tools.check.checks.cache import cached_equals_at_once
from posenc.tools.check.measure import first_axis, of_two_tokens, row_of
from posenc.tools.check.outcome import Outcome, near
from posenc.tools.check.rasters import alike
from posenc.tools.check.subjects import PADDING, Batch, Subject, require
from posenc.tools.check.trial import Case, Check, Plan, Trial


def every_axis_is_seen(subject: Subject, batch: Batch) -> Outcome:
    """Setting one coordinate of all patches to 0 changes the outputs, for every axis."""
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
    """Rows of two patches at different offsets: no two rows give the same outputs."""
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
    """A grid gives the same outputs when it is moved along one axis."""
    made = subject.make()
    return near(subject.run(made, batch), subject.run(made, batch.moved(by, axis=axis)), tolerance)


def any_order_will_do(subject: Subject, batch: Batch, tolerance: float) -> Outcome:
    """Patches in raster order give the same outputs as the same patches column by column."""
    row = row_of(batch)
    turned = sorted(range(batch.tokens), key=lambda n: row[n][::-1])
    made = subject.make()
    return near(subject.run(made, batch)[:, turned], subject.run(made, batch.pick(turned)), tolerance)


def text_is_one_axis(subject: Subject, batch: Batch, tolerance: float) -> Outcome:
    """Tokens at (p, p, …) give the same outputs as tokens at p with one axis."""
    line, flat = replace(subject, axes=1), replace(batch, positions=[[first_axis(p) for p in row_of(batch)]])
    return near(line.run(line.make(**(subject.flat or {})), flat), subject.run(subject.make(), batch), tolerance)


# -- cases -------------------------------------------------------------------------------------------------------------

RELATIVE = "claim `relative=True` if moving all positions changes nothing"
REGISTERS = "claim `registers=N` if the first tokens of a row have no place on its grid"
AFTER = "Give text after an image the positions that follow the largest of it, whatever slot of the cache it is in."
SHAPES = ((3, 5), (5, 3))
SIGHTS = ((5, 7), (7, 5))
SMALL = ((2, 3), (3, 2))  # for subjects with fewer than five rows or columns
STEPS = (1, 37)
FEW, MOST = 64, 256  # the most patches for comparing all pairs, where there are several grids or only one


def _require(plan: Plan, axes: bool = False, grid: bool = False) -> None:
    require(not grid or plan.subject.takes("grid"), "let call take `grid`, (height, width), if it takes images")
    require(
        not axes or plan.subject.axes > 1,
        "claim `axes=2`, and let call take `positions` (rows, tokens, 2), if they are of images",
    )
    if axes:
        require(plan.has(max(map(max, SHAPES)) - 1), "let it have more positions: there are too few for the grids")
        plan.require_that_it_can("positions")


def _window(plan: Plan) -> tuple[int, int]:
    """The sides of the windows of a grid, 1 each where none are claimed."""
    window = plan.subject.window
    return (1, 1) if isinstance(window, int | None) else (window[0], window[1])


def _both_ways(plan: Plan) -> tuple[tuple[int, int], tuple[int, int]]:
    """A grid that is not square, and its transpose, both of whole windows."""
    side = math.lcm(*_window(plan))
    shapes = [SHAPES, SMALL] if side == 1 else [((side, 2 * side), (2 * side, side))]
    found = next((pair for pair in shapes if all(map(plan.subject.fits, pair))), None)
    require(found, "let it have more positions: there are too few for the grids")
    return found or SHAPES


def _raster(plan: Plan, grid: tuple[int, int], rows: int = 1) -> Batch:
    """Patches behind the registers; only the shape of the grid is given."""
    return replace(plan.text(rows, plan.subject.registers + grid[0] * grid[1]), grid=grid)


def _patches(plan: Plan, shape: tuple[int, int]) -> Batch:
    """One row of patches with coordinates on all axes: two steps along each axis before the last two."""
    sides = [2] * (plan.subject.axes - 2) + list(shape)
    places = [list(p) for p in product(*map(range, sides))]
    return replace(plan.text(1, len(places)), positions=[places])


def _rasters(plan: Plan, coordinates: bool = False, registers: bool = False) -> Iterator[Case]:
    """One row of patches, behind the registers if there are any; only the shape is given. For subjects that take
    ``coordinates`` too, or have ``registers``, if asked for."""
    _require(plan, axes=coordinates, grid=True)
    require(plan.subject.registers or not registers, REGISTERS)
    require(not (plan.subject.registers and coordinates), "nothing to do: registers have no coordinates")
    for shape in (*_both_ways(plan), *(((1, 5), (5, 1)) if coordinates else ())):
        yield Case(_raster(plan, shape), {"tolerance": plan.tolerance(max(shape))})


def _images(plan: Plan) -> Iterator[Case]:
    _require(plan, grid=True)
    for shape in _both_ways(plan):
        yield Case(_raster(plan, shape))


def _sights(plan: Plan) -> Iterator[Case]:
    subject = plan.subject
    _require(plan, grid=True)
    require(subject.relative, RELATIVE)
    require(not subject.causal, "nothing to do: it is causal, and goes by the raster")
    require(subject.window is None, "nothing to do: its windows are claimed, and tried as such")
    for shape in filter(subject.fits, SIGHTS):
        yield Case(_raster(plan, shape))


def _offsets(plan: Plan, registers: bool = False) -> Iterator[Case]:
    """Grids in which all patches see one another: of many shapes, or a single window."""
    subject = plan.subject
    _require(plan, grid=True)
    require(subject.registers if registers else subject.relative, REGISTERS if registers else RELATIVE)
    sides = [(side[0], side[1]) for side in (subject.trained_grid, subject.max_grid) if side]
    shapes = [(3, 5), (5, 3), (4, 4), (2, 7), (1, 5), (5, 1), *sides] if _window(plan) == (1, 1) else [_window(plan)]
    fitting = [shape for shape in dict.fromkeys(shapes) if subject.fits(shape) and math.prod(shape) <= MOST]
    for shape in [shape for shape in fitting if math.prod(shape) <= FEW] or fitting:
        yield Case(_raster(plan, shape))


def _of_two(plan: Plan) -> Iterator[Case]:
    require(not plan.subject.causal, "nothing to do: it is causal, and gates may go by the tokens between")
    yield from _offsets(plan)


def _apart(plan: Plan) -> Iterator[Case]:
    require(not plan.subject.symmetric, "nothing to do: it claims to be symmetric")
    yield from _offsets(plan)


def _whole_windows(plan: Plan, whole: bool) -> Iterator[Case]:
    """Grids of two by three windows and of three by two; or grids that are not of ``whole`` windows."""
    subject, (height, width) = plan.subject, _window(plan)
    _require(plan, grid=True)
    require((height, width) != (1, 1), "claim `window=(height, width)` if it is cut into windows")
    shapes = [
        (rows * height + down, columns * width + right)
        for rows, columns in ((2, 3), (3, 2))
        for down, right in ([(0, 0)] if whole else [(1 - height, 0), (0, 1 - width), (1, -1)])
    ]
    held = [grid for grid in shapes if all(n <= (most or n) for n, most in zip(grid, subject.sides(), strict=True))]
    for grid in held or [(height, width)] * whole:  # a single window, where there is no room for more
        multiple = grid[0] % height == 0 and grid[1] % width == 0
        if multiple == whole and subject.registers + grid[0] * grid[1] <= plan.longest:
            yield Case(_raster(plan, grid), {"whole": whole})


def _borders(plan: Plan) -> Iterator[Case]:
    require(
        plan.subject.normalized and plan.subject.relative, "claim `normalized=True` and `relative=True` to run this"
    )
    for batch, _ in _whole_windows(plan, whole=False):
        yield Case(batch, {"tolerance": plan.tolerance(batch.tokens)})


def _ends(plan: Plan) -> Iterator[Case]:
    """Grids of as many rows, or columns, as there may be, and of one more."""
    _require(plan, grid=True)
    subject, window = plan.subject, _window(plan)
    require(any(subject.sides()), "claim `max_grid=(rows, columns)` or `max_positions=N` where they have an end")
    least = [side if side > 1 else min(2, most or 2) for side, most in zip(window, subject.sides(), strict=True)]
    for axis, most in enumerate(subject.sides()):
        if most is None:
            continue
        for side in (most, most + window[axis]):
            grid = (side, least[1]) if axis == 0 else (least[0], side)
            if grid[0] * grid[1] + subject.registers <= plan.longest:
                yield Case(_raster(plan, grid))


def _adders(plan: Plan) -> Iterator[Case]:
    _require(plan, grid=True)
    require(plan.subject.trained_grid is None, "nothing to do: its table is claimed to be resized (trained_grid)")
    shapes = ((3, 5), (5, 3), (4, 4), (2, 7), (7, 2), (1, 5), (5, 1), (2, 3), (3, 2))
    fitting = list(filter(plan.subject.fits, shapes))
    require(len(fitting) > 1, "nothing to do: it has one grid and no other")
    yield Case(_raster(plan, fitting[0]), {"others": fitting[1:]})


def _resized(plan: Plan, home: bool = False) -> Iterator[Case]:
    """The trained grid; or such that are larger, smaller, and as large but of another shape."""
    _require(plan, grid=True)
    require(plan.subject.trained_grid, "claim `trained_grid=(rows, columns)` if a table is resized for other grids")
    height, width = plan.subject.trained_grid or (0, 0)
    shapes = [(height + 2, width + 1), (height, width + 2), (2 * height, 2 * width - 1), (width, height)]
    shapes += [(max(height - 1, 2), max(width - 2, 2))]
    for shape in [(height, width)] if home else shapes:
        tokens = plan.subject.registers + math.prod(shape)
        if (home or shape != (height, width)) and plan.subject.fits(shape) and tokens <= plan.longest:
            yield Case(_raster(plan, shape))


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
    require(plan.subject.relative, RELATIVE)
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
    """Three tokens of text, an image of 2 x 3, and text that goes on after its longer side; fed so that text, a part of
    the image, or each of its patches comes later. With three axes, also two frames, of which the second comes later."""
    _require(plan, axes=True)
    require(plan.subject.causal, "nothing to do: what is not causal cannot go on after an image")
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


def _pairs_of_patches(plan: Plan) -> Iterator[Case]:
    _require(plan, grid=True)
    plan.require_that_it_can("padding")
    require(plan.subject.relative, RELATIVE)
    front = plan.subject.registers
    for height, width in _both_ways(plan):
        line = range(front + height * width)
        ids = [[int(n == place) for n in line] for place in line[front:] if front]  # one patch behind the registers
        document = [[0 if n < front or token else PADDING for n, token in enumerate(row)] for row in ids]
        for down, right in ((0, 1), (1, 0), (1, 1), (0, 2)):
            for row, column in ((0, 0), (0, width - 1 - right), (height - 1 - down, 0), (1, 1)):
                if row + down < height and column + right < width:
                    places = {front + row * width + column, front + (row + down) * width + column + right}
                    ids.append([1 + (n == max(places)) if n in places else 0 for n in line])
                    document.append([0 if n < front or n in places else PADDING for n in line])
        values = {"tolerance": plan.tolerance(max(height, width))}
        yield Case(Batch(ids, document=document, grid=(height, width)), values)


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
        Trial("ways apart", no_two_ways_are_alike, _ways),
        Trial("moving along an axis", moving_along_an_axis_changes_nothing, _moves),
        Trial("order of patches", any_order_will_do, _orders),
        Trial("shape of the grid", rasters.the_shape_is_seen, _rasters),
        Trial("grid and coordinates", rasters.the_grid_gives_the_places, _rasters, {"coordinates": True}),
        Trial("pairs of patches", rasters.the_same_way_wherever_it_is, _pairs_of_patches, claims=("relative",)),
        Trial("scores by offsets", rasters.scores_go_by_offsets, _offsets, claims=("relative",)),
        Trial("scores of two tokens", rasters.a_score_is_of_two_tokens, _of_two),
        Trial("scores apart", rasters.no_two_offsets_share_a_number, _apart, claims=("directed",)),
        Trial("who sees whom", influence.sight_goes_by_rows_and_columns, _sights),
        Trial(
            "windows",
            influence.windows_are_those_claimed,
            _whole_windows,
            {"whole": True},
            claims=("window", "window_shift"),
        ),
        Trial(
            "grids that are not of whole windows",
            influence.windows_are_those_claimed,
            _whole_windows,
            {"whole": False},
            claims=("window",),
        ),
        Trial("what fills windows up", influence.the_border_weighs_nothing, _borders, claims=("normalized",)),
        Trial("what convolutions are given", influence.every_patch_is_at_its_place, _images),
        Trial("ends of the axes", rasters.each_axis_has_its_own_end, _ends, claims=("max_grid", "max_positions")),
        Trial("a place has one vector", rasters.a_place_has_one_vector, _adders),
        Trial(
            "the trained grid", tables.nothing_is_resized_at_home, _resized, {"home": True}, claims=("trained_grid",)
        ),
        Trial("resized tables", tables.rows_stay_rows, _resized, claims=("trained_grid",)),
        Trial("registers", rasters.registers_have_no_place, _rasters, {"registers": True}),
        Trial("scores of registers", rasters.a_register_is_as_far_from_all, _offsets, {"registers": True}),
        Trial("registers in a resized grid", tables.registers_are_not_resized, _resized),
        Trial("text alone", text_is_one_axis, _text, claims=("flat",)),
        Trial("after an image", cached_equals_at_once, _after_an_image, remedy=AFTER),
    ),
)
