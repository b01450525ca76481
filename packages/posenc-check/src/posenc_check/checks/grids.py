"""Checks that every axis of a grid counts by itself, for any shape and with text around it (check 20)."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from posenc_check.calls import holdings, with_leaves
from posenc_check.captured import NO_SCORES, of_one_token, scores_of
from posenc_check.checks.cache import cached_equals_at_once
from posenc_check.checks.rotations import first_axis, of_two_tokens, row_of
from posenc_check.outcome import Outcome, Outcomes, all_finite, largest, near, numbers_in, refused
from posenc_check.subjects import (
    PADDING,
    REFUSALS,
    VOCABULARY,
    Batch,
    Layer,
    Model,
    NotApplicableError,
    Subject,
    applies,
    require,
)
from posenc_check.trial import Case, Check, Plan, Trial

UNSEEN = 50  # a score this far below the highest of its row has no weight; masks of -100 are as far


def alike(subject: Subject, first: Tensor, second: Tensor) -> bool:
    """Whether two outputs are those of the same calculation."""
    size = float(first.abs().max())
    return float((first - second).abs().max()) <= 16 * torch.finfo(subject.dtype).eps * size


def the_shape_is_seen(subject: Subject, batch: Batch, tolerance: float) -> Outcome:
    """The same patches in h rows and w columns, in w rows and h columns, and with two of these exchanged."""
    assert batch.grid is not None
    height, width = batch.grid
    applies(height != width and len(set(batch.ids[0])) > 1, "the grid is square, or its patches do not differ")
    made = subject.make()
    came = subject.run(made, batch)
    lying = subject.run(made, replace(batch, grid=(width, height)))
    for out in (came, lying):
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
            same = same and near(came[:, turned], exchanged, tolerance).ok
        unseen += [name] * same
    require(unseen != ["rows", "columns"], "give it a `jitter`, for its outputs do not go by positions")
    if unseen:
        return Outcome(False, f"other outputs with two {unseen[0]} exchanged", "the same, exchanged")
    other = f"something else for {height}x{width} than for {width}x{height}"
    return Outcome(not alike(subject, came, lying), other, "the same")


def the_same_way_wherever_it_is(subject: Subject, batch: Batch, tolerance: float) -> Outcomes:
    """Rows with two patches of a grid, and padding elsewhere: pairs with the same offset give the same outputs."""
    out, width, pairs = subject.run(subject.make(), batch), batch.grid[1], 0
    first: dict[Any, tuple[str, Tensor]] = {}
    for row, real in enumerate(batch.real):
        kept = [n for n, token in enumerate(real) if token]
        if len(kept) == 2:
            (a, b), (c, d) = (divmod(n, width) for n in kept)
            here = f"{[a, b]} and {[c, d]}"
            way = (c - a, d - b, *(batch.ids[row][n] for n in kept))
            there, expected = first.setdefault(way, (here, out[row, kept]))
            pairs += 1
            yield f"patches at {here}, as at {there}", near(expected, out[row, kept], tolerance)
    applies(pairs != len(first), "no two pairs of patches lie the same way apart")


def captured_scores(subject: Subject, made: Any, batch: Batch) -> Tensor:
    """The scores of the first softmax, (1 + tokens, heads, tokens, tokens), for a row of one repeated token, and for
    rows with another token at 0, 1, 2, … . They are put in the order of the tokens, whatever the order in the layer.

    That order is found from what changes: most scores change in the row and the column of the other token.
    """
    ids = [[1 + (k == n) for k in range(batch.tokens)] for n in range(-1, batch.tokens)]
    try:
        found = scores_of(subject, made, replace(batch, ids=ids))
    except REFUSALS as error:
        raise NotApplicableError(f"nothing to do: it refuses a grid of {batch.grid}: {error}") from None
    require(found, NO_SCORES)
    scores = found[0]
    changed = ((scores[1:] - scores[:1]).abs() > 2**-18 * largest(scores)).any(1)
    counts = changed.sum(-1) + changed.sum(-2)
    order = counts.argmax(-1)
    others = counts.scatter(1, order[:, None], 0)
    told = (others.amax(-1) < counts.amax(-1)).all() and len(set(order.tolist())) == batch.tokens
    require(told, "give it a `jitter`, for it cannot be told which scores are those of which token")
    return scores[:, :, order][..., order]


def scores_in_order(subject: Subject, made: Any, batch: Batch) -> Tensor:
    """The scores of one repeated token, (heads, tokens, tokens), minus that of each for itself; -inf without weight."""
    scores = captured_scores(subject, made, batch)[0]
    scores = scores.masked_fill(scores < scores.amax(-1, keepdim=True) - UNSEEN, -torch.inf)
    own = scores.diagonal(dim1=-2, dim2=-1)[..., None]
    applies(own.isfinite().all(), "a token does not see itself")
    return scores - own


def fine(subject: Subject, scores: Tensor) -> float:
    """How far two equal scores may be apart: 32 roundings of float32, which biases and phases are often computed in."""
    return 32 * subject.eps(torch.float32, subject.dtype) * largest(scores)


def scores_go_by_offsets(subject: Subject, batch: Batch) -> Outcomes:
    """In a row of one repeated token, scores minus a patch's own are the same for pairs of the same offset."""
    width, front = batch.grid[1], subject.registers
    scores = scores_in_order(subject, subject.make(), batch)[:, front:, front:]
    seen, tolerance = scores.isfinite().all(0), fine(subject, scores)
    shows = float(scores[:, seen].abs().max()) > tolerance
    require(shows, "give it a `jitter`, for all tokens give as much to all as to themselves")
    pairs = seen.nonzero().tolist()
    first: dict[tuple[int, int], list[int]] = {}
    alike_to = [first.setdefault(way(q, k, width), [q, k]) for q, k in pairs]
    expected, came = (_at(scores, of) for of in (alike_to, pairs))
    worst = int((expected - came).abs().amax(0).argmax())
    (q, k), (p, r) = ([[*divmod(n, width)] for n in of[worst]] for of in (pairs, alike_to))
    yield f"patch {k} as seen from {q}, as {r} from {p}", near(expected[:, worst], came[:, worst], tolerance)


def _at(scores: Tensor, pairs: list[list[int]]) -> Tensor:
    """The score of each of these pairs of query and key, (heads, pairs)."""
    queries, keys = torch.tensor(pairs).T
    return scores[:, queries, keys]


def way(start: int, end: int, width: int) -> tuple[int, int]:
    """How many rows and columns it is from one patch to another."""
    return end // width - start // width, end % width - start % width


def no_two_offsets_share_a_number(subject: Subject, batch: Batch) -> Outcomes:
    """In a row of one repeated token, the scores of a patch for two others at different offsets differ. They may be
    equal where only the distance counts, or where two steps along one axis are not distinguished: then the offsets that
    combine the rows of one with the columns of the other share the score too."""
    width, front = batch.grid[1], subject.registers
    scores = scores_in_order(subject, subject.make(), batch)[:, front:, front:]
    first: dict[tuple[int, int], list[int]] = {}
    for q, k in scores.isfinite().all(0).nonzero().tolist():
        first.setdefault(way(q, k, width), [q, k])
    applies(len(first) > 1, "all that is seen lies one way")
    ways, numbers = list(first), _at(scores, list(first.values())).T
    apart = torch.cdist(numbers, numbers, p=torch.inf, compute_mode="donot_use_mm_for_euclid_dist")
    same = apart <= 16 * torch.finfo(subject.dtype).eps * float(numbers.abs().max())
    number = {one: n for n, one in enumerate(ways)}
    even = all(same[n, number[-a, -b]] for n, (a, b) in enumerate(ways) if (-a, -b) in number)
    if subject.directed and even:
        found = Outcome(False, "another score for one of them", "the same")
        yield "patches to both sides of another, as far away", found
        return
    applies(not even, "only how far patches are apart counts, and not in which direction")
    for n, m in same.triu(1).nonzero().tolist():
        (a, b), (c, d) = ways[n], ways[m]
        crossed = [number[one] for one in ((a, d), (c, b)) if one in number]
        by_axes = a == c or b == d or bool(same[n, crossed].all())
        yield f"a patch {[c, d]} away, as one {[a, b]} away", Outcome(by_axes, "another score", "the same")


def each_axis_has_its_own_end(subject: Subject, batch: Batch) -> Outcome:
    """A grid as large as is claimed runs; an error names one of the sides of a larger one, or the limit."""
    past = {(n, most) for n, most in zip(batch.grid, subject.sides(), strict=True) if most is not None and n > most}
    if not past:
        return all_finite(subject.run(subject.make(), batch), batch)
    expected = " or ".join(f"an error that names {n} or the limit {most}" for n, most in sorted(past))
    numbers = {number for n, most in past for number in (n, n - 1, most, most - 1)}
    return refused(lambda: subject.run(subject.make(), batch), expected, lambda said: bool(numbers & numbers_in(said)))


def added_at(subject: Subject, made: Any, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """What is added to registers, (registers, dim), and to patches, (rows, columns, dim), whatever the input."""
    applies(isinstance(subject, Layer) and not isinstance(subject, Model), "call takes no vectors to add to")
    assert isinstance(subject, Layer)
    front, (height, width) = subject.registers, grid
    tokens = front + height * width
    batch = Batch(
        [[(7 * n + 3) % VOCABULARY for n in range(tokens)], [(5 * n + 1) % VOCABULARY for n in range(tokens)]]
    )
    x = subject.content(batch)
    try:
        out = subject.run(made, replace(batch, grid=grid)).detach()
    except REFUSALS as error:
        raise NotApplicableError(f"nothing to do: it refuses a grid of {grid}: {error}") from None
    applies(out.shape == x.shape, "what comes out is not of the size of what goes in")
    added = (out - x).double()
    same = near(added[0], added[1], 2**-18 * float(out.abs().max())).ok
    applies(same, "what it adds goes by what it is added to")
    return added[0, :front], added[0, front:].unflatten(0, grid)


def goes_by_the_share(subject: Subject, made: Any, grid: tuple[int, int], tolerance: float) -> bool:
    """Whether vectors go by the share of the image: r / h, (r + 1) / h, (r + ½) / h or r / (h - 1)."""
    height, width = grid
    here = added_at(subject, made, grid)[1]

    def agrees(rows: int, columns: int, places: slice, other: slice) -> bool:
        try:
            there = added_at(subject, made, (rows, columns))[1]
        except NotApplicableError:  # it has no grid of that size
            return False
        return near(here, there[places, other], tolerance).ok

    for times, first in ((2, 0), (2, 1), (3, 1)):
        finer, same = slice(first, None, times), slice(None)
        if agrees(times * height, width, finer, same) and agrees(height, times * width, same, finer):
            return True
        if agrees(times * height, times * width, finer, finer):
            return True
    every = slice(None, None, 2)
    return agrees(2 * height - 1, width, every, slice(None)) and agrees(height, 2 * width - 1, slice(None), every)


def a_place_has_one_vector(subject: Subject, batch: Batch, others: list[tuple[int, int]]) -> Outcomes:
    """What is added to the patch of a row and column, in grids of several shapes."""
    made = subject.make()
    held = any(isinstance(x, Tensor) and x.dim() > 1 for _, x in holdings(made))  # before a call, which may keep some
    here = added_at(subject, made, batch.grid)[1]
    spread = float((here - here[:1, :1]).abs().max())
    require(spread > 0, "give it a `jitter`, for nothing is added that goes by places")
    if not held:
        share = goes_by_the_share(subject, made, batch.grid, 2**-10 * spread)
        applies(not share, "vectors go by the share of the picture that lies before them")
    claimed = not held or any(most is not None for most in subject.sides())
    require(claimed, "claim `trained_grid` if its table is resized, and `max_grid` or `max_positions` if not")
    for rows, columns in others:
        there = added_at(subject, made, (rows, columns))[1]
        for r, c in product(range(min(rows, batch.grid[0])), range(min(columns, batch.grid[1]))):
            name = f"row {r}, column {c} of {rows} x {columns}, as of {batch.grid[0]} x {batch.grid[1]}"
            yield name, near(here[r, c], there[r, c], 2**-10 * spread)


FAR = 1.25  # in patches of the trained grid: the nearest is less than one away, and the ends may be at the border


def table_of(made: Any, grid: tuple[int, int], more: set[int], dim: int) -> Tensor | None:
    """A view, (rows, columns, dim), of the parameter or buffer whose shape has a vector for each place."""
    (height, width), module = grid, made if isinstance(made, nn.Module) else nn.Module()
    for held in (*module.parameters(), *module.buffers()):
        shape = [n for axis, n in enumerate(held.shape) if n != 1 or axis]
        x = held.detach().view(shape)
        if shape == [height, width, dim]:
            return x
        if shape == [dim, height, width]:
            return x.permute(1, 2, 0)
        if len(shape) == 2 and shape[1] == dim and (extra := shape[0] - height * width) in more:
            return x[extra:].unflatten(0, (height, width))
    return None


class _Resized:
    """A subject whose table is resized, and access to the table and to its values in a grid."""

    def __init__(self, subject: Subject) -> None:
        require(subject.trained_grid, "claim `trained_grid=(rows, columns)` if a table is resized for other grids")
        height, width = subject.trained_grid or (0, 0)
        self.subject, self.made, self.trained = subject, subject.make(), (height, width)
        front = {0, min(subject.registers, 1), subject.registers}  # of the class token alone, or of all
        table = table_of(self.made, self.trained, front, getattr(subject, "dim", 0))
        applies(table is not None, f"it holds no table of {height} x {width} places")
        self.table: Any = table

    def write(self, values: Tensor) -> None:
        """Fills each vector of the table with one number: values are (rows, columns)."""
        self.table.copy_(values[..., None].to(self.table).expand_as(self.table))

    def at(self, grid: tuple[int, int]) -> Tensor:
        """The values for the places of a grid, (rows, columns, dim)."""
        return added_at(self.subject, self.made, grid)[1]

    def require_that_it_is_read(self) -> None:
        """NotApplicableError unless a constant table gives constant values, and another one does not."""
        self.write(torch.ones(self.table.shape[:2]))
        level = self.at(self.trained)
        self.write(torch.arange(self.table.size(0) * self.table.size(1)).view(self.table.shape[:2]))
        steep = self.at(self.trained)
        flat = float((level - level[:1, :1]).abs().max())
        applies(flat <= 2**-18 * float((steep - steep[:1, :1]).abs().max()), "what it gives is not its table")


@torch.no_grad()
def nothing_is_resized_at_home(subject: Subject, batch: Batch) -> Outcome:
    """At the trained grid, the table itself is added."""
    resized = _Resized(subject)
    drawn = resized.table.clone()
    resized.require_that_it_is_read()
    resized.table.copy_(drawn)
    came, expected = resized.at(batch.grid), drawn.double()
    return near(expected, came, 2**-18 * float(came.abs().max()))


@torch.no_grad()
def rows_stay_rows(subject: Subject, batch: Batch) -> Outcomes:
    """A table constant along rows, or columns, is so in other grids; a linear one is so by the relative place."""
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
        side = batch.grid[axis]
        share = (torch.arange(side).double() + 0.5) * trained[axis] / side - 0.5
        shape = [-1 if n == axis else 1 for n in range(3)]
        yield f"the number of the {name}", near(share.view(shape).to(came).expand_as(came), came, FAR)


AT_ONCE = 64  # rows of a batch
NOT_WHOLE = "nothing to do: it refuses a grid that is not of whole windows"
NOTHING = 1e-12  # of the largest derivative: a mask of -100 leaves far less of a weight


def influence(subject: Subject, made: Any, batch: Batch) -> Tensor:
    """The derivative of every output by every vector of a row of one repeated token, (outputs, vectors, dim)."""
    applies(isinstance(subject, Layer) and not isinstance(subject, Model), "call takes no vectors")
    found = list[Tensor]()
    for outputs in torch.arange(batch.tokens).split(AT_ONCE):
        every, leaves = of_one_token(Batch(batch.ids[:1] * len(outputs), grid=batch.grid)), dict[str, Tensor]()
        with torch.enable_grad():
            out = with_leaves(subject, leaves).run(made, every)
            require(out.requires_grad and leaves, "let call keep gradients, for who sees whom is read from them")
            own = out[range(len(outputs)), outputs].flatten(1)
            # Not a plain sum, which a normalisation makes constant.
            weights = torch.linspace(1, 7, own.size(1), dtype=own.dtype, device=own.device).cos()
            found += torch.autograd.grad((own * weights).sum(), next(iter(leaves.values())))
    return torch.cat(found).double()


def _windows(subject: Subject) -> tuple[tuple[int, int], tuple[int, int]]:
    """The size of the windows that a grid is cut into, and where the first window begins."""
    require(not isinstance(subject.window, int | None), "claim `window=(height, width)` if it is cut into windows")
    applies(subject.depth == 1, "it has several layers, and what is outside one window is inside another")
    height, width = subject.window  # type: ignore[misc]
    down, right = subject.window_shift
    return (height, width), (down, right)


def windows_are_right(subject: Subject, batch: Batch, whole: bool) -> Outcomes:
    """Each patch affects those in its window and no others; in a relative subject, all whole windows are the same."""
    (height, width), (down, right) = _windows(subject)
    made, front, columns = subject.make(), subject.registers, batch.grid[1]
    try:
        found = influence(subject, made, batch)[front:, front:]
    except (RuntimeError, *REFUSALS) as error:
        if whole:
            raise
        raise NotApplicableError(f"{NOT_WHOLE}: {error}") from None
    sizes = found.abs().amax(-1)
    least, windows = NOTHING * float(sizes.max()), dict[tuple[int, int], list[int]]()
    for n in range(len(found)):
        row, column = divmod(n, columns)
        windows.setdefault(((row - down) // height, (column - right) // width), []).append(n)
    of = {n: window for window, members in windows.items() for n in members}
    for q, k in ((q, k) for q in of for k in of if not (subject.causal and k > q)):
        moves, name = float(sizes[q, k]), f"patch {[*divmod(k, columns)]} at {[*divmod(q, columns)]}"
        if of[q] == of[k]:
            yield name, Outcome(moves > least, "counts, in the same window", f"{moves:.2g}")
        else:
            yield name, Outcome(moves <= least, "counts nothing, from another window", f"{moves:.2g}")
    if subject.relative and not subject.causal:
        full = [members for members in windows.values() if len(members) == height * width]
        tolerance = 2**-18 * float(sizes.max())
        for members in full[1:]:
            name = f"the window of {[*divmod(members[0], columns)]}, as that of {[*divmod(full[0][0], columns)]}"
            expected, came = (found[m][:, m] for m in (full[0], members))
            yield name, near(expected, came, tolerance)


def the_border_weighs_nothing(subject: Subject, batch: Batch, tolerance: float) -> Outcome:
    """Equal patches in a grid that is not of whole windows: if weights sum to one, all outputs are the same."""
    _windows(subject)
    made = subject.make()
    try:
        out = subject.run(made, of_one_token(batch))[:, subject.registers :]
    except (RuntimeError, *REFUSALS) as error:
        raise NotApplicableError(f"{NOT_WHOLE}: {error}") from None
    return near(out[:, :1].expand_as(out), out, tolerance)


def every_axis_is_seen(subject: Subject, batch: Batch) -> Outcome:
    """Setting one coordinate of all patches to 0 changes the outputs, for every axis."""
    row = row_of(batch)
    differ = len(set(batch.ids[0])) > 1 and all(len({p[axis] for p in row}) > 1 for axis in range(subject.axes))
    applies(differ, "the patches do not differ, or not on every axis")
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
    applies(of_two_tokens(batch), "the rows are not of the same two patches")
    came = subject.run(subject.make(), batch).flatten(1)
    ways = [[b - a for a, b in zip(row[0], row[-1], strict=True)] for row in batch.positions]
    apart = torch.cdist(came.double(), came.double(), p=torch.inf, compute_mode="donot_use_mm_for_euclid_dist")
    rounding = 16 * torch.finfo(subject.dtype).eps * float(came.abs().max())
    shows = len(ways) <= 2 or not float(apart.max()) <= rounding
    require(shows, "give it a `jitter`, for its outputs do not go by positions")
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
FEW, MOST = 64, 256  # the most patches for comparing all pairs, where there are several grids or only one


def _require(plan: Plan, axes: bool = False, grid: bool = False) -> None:
    require(not grid or plan.subject.takes("grid"), "let call take `grid`, (height, width), if it takes images")
    several = "claim `axes=2`, and let call take `positions` (rows, tokens, 2), if they are of images"
    require(not axes or plan.subject.axes > 1, several)
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


def _raster(plan: Plan, grid: tuple[int, int]) -> Batch:
    """Patches behind the registers; only the shape of the grid is given."""
    return replace(plan.text(1, plan.subject.registers + grid[0] * grid[1]), grid=grid)


def _patches(plan: Plan, shape: tuple[int, int]) -> Batch:
    """One row of patches with coordinates on all axes: two steps along each axis before the last two."""
    sides = [2] * (plan.subject.axes - 2) + list(shape)
    places = [list(p) for p in product(*map(range, sides))]
    return replace(plan.text(1, len(places)), positions=[places])


def _rasters(plan: Plan) -> Iterator[Case]:
    """One row of patches, behind the registers if there are any; only the shape is given."""
    _require(plan, grid=True)
    for shape in _both_ways(plan):
        yield Case(_raster(plan, shape), {"tolerance": plan.tolerance(max(shape))})


def _offsets(plan: Plan) -> Iterator[Case]:
    """Grids in which all patches see one another: of many shapes, or a single window."""
    subject = plan.subject
    _require(plan, grid=True)
    require(subject.relative, RELATIVE)
    sides = [(side[0], side[1]) for side in (subject.trained_grid, subject.max_grid) if side]
    shapes = [(3, 5), (5, 3), (4, 4), (2, 7), (1, 5), (5, 1), *sides] if _window(plan) == (1, 1) else [_window(plan)]
    fitting = [shape for shape in dict.fromkeys(shapes) if subject.fits(shape) and math.prod(shape) <= MOST]
    for shape in [shape for shape in fitting if math.prod(shape) <= FEW] or fitting:
        yield Case(_raster(plan, shape))


def _apart(plan: Plan) -> Iterator[Case]:
    applies(not plan.subject.symmetric, "it claims to be symmetric")
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
    both = plan.subject.normalized and plan.subject.relative
    require(both, "claim `normalized=True` and `relative=True` to run this")
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
    applies(plan.subject.trained_grid is None, "its table is claimed to be resized (trained_grid)")
    shapes = ((3, 5), (5, 3), (4, 4), (2, 7), (7, 2), (1, 5), (5, 1), (2, 3), (3, 2))
    fitting = list(filter(plan.subject.fits, shapes))
    applies(len(fitting) > 1, "it has one grid and no other")
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
    applies(not plan.subject.symmetric, "it claims to be symmetric")
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


def _pairs_of_patches(plan: Plan) -> Iterator[Case]:
    _require(plan, grid=True)
    plan.require_that_it_can("padding")
    require(plan.subject.relative, RELATIVE)
    applies(not plan.subject.registers, "what registers give to a patch may go by its place")
    for height, width in _both_ways(plan):
        ids, document = [], []
        for down, right in ((0, 1), (1, 0), (1, 1), (0, 2)):
            for row, column in ((0, 0), (0, width - 1 - right), (height - 1 - down, 0), (1, 1)):
                if row + down < height and column + right < width:
                    places = [row * width + column, (row + down) * width + column + right]
                    ids.append([1 + (n == places[1]) if n in places else 0 for n in range(height * width)])
                    document.append([0 if n in places else PADDING for n in range(height * width)])
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
        Trial("shape of the grid", the_shape_is_seen, _rasters),
        Trial("pairs of patches", the_same_way_wherever_it_is, _pairs_of_patches, claims=("relative",)),
        Trial("scores by offsets", scores_go_by_offsets, _offsets, claims=("relative",)),
        Trial("scores apart", no_two_offsets_share_a_number, _apart, claims=("directed",)),
        Trial("windows", windows_are_right, _whole_windows, {"whole": True}, claims=("window", "window_shift")),
        Trial(
            "grids that are not of whole windows",
            windows_are_right,
            _whole_windows,
            {"whole": False},
            claims=("window",),
        ),
        Trial("what fills windows up", the_border_weighs_nothing, _borders, claims=("normalized",)),
        Trial("ends of the axes", each_axis_has_its_own_end, _ends, claims=("max_grid", "max_positions")),
        Trial("a place has one vector", a_place_has_one_vector, _adders),
        Trial("the trained grid", nothing_is_resized_at_home, _resized, {"home": True}, claims=("trained_grid",)),
        Trial("resized tables", rows_stay_rows, _resized, claims=("trained_grid",)),
        Trial("text alone", text_is_one_axis, _text, claims=("flat",)),
        Trial("after an image", cached_equals_at_once, _after_an_image, remedy=AFTER),
    ),
)
