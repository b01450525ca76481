"""Trials of layers that are given only the shape of a grid. Plain PyTorch: scripts hold a copy."""

from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from posenc.tools.check.calls import holdings
from posenc.tools.check.captured import NO_SCORES, scores_of
from posenc.tools.check.layers import Layer, Model
from posenc.tools.check.outcome import Outcome, Outcomes, all_finite, largest, near, numbers_in, refused
from posenc.tools.check.subjects import REFUSALS, VOCABULARY, Batch, NotApplicableError, Subject, require

UNSEEN = 50  # a score this far below the highest of its row has no weight; masks of -100 are as far


def alike(subject: Subject, first: Tensor, second: Tensor) -> bool:
    """Whether two outputs are those of the same calculation."""
    size = float(first.abs().max())
    return float((first - second).abs().max()) <= 16 * torch.finfo(subject.dtype).eps * size


def the_shape_is_seen(subject: Subject, batch: Batch, tolerance: float) -> Outcome:
    """The same patches as a grid of h rows and w columns, as one of w rows and h columns, and with two of its rows, or
    columns, exchanged."""
    assert batch.grid is not None
    height, width = batch.grid
    require(
        height != width and len(set(batch.ids[0])) > 1,
        "nothing to do: the grid is square, or its patches do not differ",
    )
    made = subject.make()
    came = subject.run(made, batch)
    lying = subject.run(made, replace(batch, grid=(width, height)))
    for out in (came, lying):
        if not (finite := all_finite(out, batch)).ok:
            return finite
    unseen = []
    for axis, name in enumerate(("rows", "columns")):
        if batch.grid[axis] > 2 and not subject.causal:  # two exchanged are a picture turned over
            places = torch.arange(height * width).view(height, width)
            pairs = [(n, n + 1) for n in range(batch.grid[axis] - 1)]
            if all(near(*_exchanged(subject, made, batch, came, places, axis, pair), tolerance).ok for pair in pairs):
                unseen.append(name)
    require(unseen != ["rows", "columns"], "give it a `jitter`, for its outputs do not go by positions")
    if unseen:
        return Outcome(False, f"other outputs with two {unseen[0]} exchanged", "the same, exchanged")
    other = f"something else for {height}x{width} than for {width}x{height}"
    return Outcome(not alike(subject, came, lying), other, "the same")


def _exchanged(
    subject: Subject, made: Any, batch: Batch, came: Tensor, places: Tensor, axis: int, pair: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """The outputs that are expected with two rows or columns of patches exchanged, and those that the subject gives."""
    front, line = subject.registers, list(range(places.size(axis)))
    line[pair[0]], line[pair[1]] = pair[1], pair[0]
    turned = [*range(front), *(places.index_select(axis, torch.tensor(line)).flatten() + front).tolist()]
    return came[:, turned], subject.run(made, replace(batch.pick(turned), grid=batch.grid))


def the_grid_gives_the_places(subject: Subject, batch: Batch, tolerance: float) -> Outcome:
    """A grid by its shape, against one by the row and column of each patch."""
    made = subject.make()
    places = replace(batch, positions=subject.places(batch).tolist(), grid=None)
    return near(subject.run(made, places), subject.run(made, batch), tolerance)


def the_same_way_wherever_it_is(subject: Subject, batch: Batch, tolerance: float) -> Outcomes:
    """Rows with two patches of a grid, behind the registers, and padding elsewhere: pairs with the same offset give the
    same outputs. With registers, this applies only if a single patch behind them gives the same output anywhere: where
    patches are rotated and registers are not, what they give to one another depends on the place."""
    assert batch.grid is not None
    out, width, pairs = subject.run(subject.make(), batch), batch.grid[1], 0
    first: dict[Any, tuple[str, Tensor]] = {}
    lone: dict[int, Tensor] = {}
    for row, real in enumerate(batch.real):
        kept = [n for n, token in enumerate(real) if token and n >= subject.registers]
        if len(kept) == 1:
            alone = lone.setdefault(batch.ids[row][kept[0]], out[row, kept])
            require(
                near(alone, out[row, kept], tolerance).ok,
                "nothing to do: what registers give to a patch goes by its place",
            )
        if len(kept) != 2:
            continue
        (a, b), (c, d) = (divmod(n - subject.registers, width) for n in kept)
        way = (c - a, d - b, *(batch.ids[row][n] for n in [*range(subject.registers), *kept]))
        here = f"{[a, b]} and {[c, d]}"
        there, expected = first.setdefault(way, (here, out[row, kept]))
        pairs += 1
        yield f"patches at {here}, as at {there}", near(expected, out[row, kept], tolerance)
    require(pairs != len(first), "nothing to do: no two pairs of patches lie the same way apart")


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
    changed = changes(scores, 2**-18)
    counts = changed.sum(-1) + changed.sum(-2)
    order = counts.argmax(-1)
    others = counts.scatter(1, order[:, None], 0)
    told = (others.amax(-1) < counts.amax(-1)).all() and len(set(order.tolist())) == batch.tokens
    require(told, "give it a `jitter`, for it cannot be told which scores are those of which token")
    return scores[:, :, order][..., order]


def changes(scores: Tensor, least: float) -> Tensor:
    """Where the scores of later rows differ from the first row by more than ``least`` times the largest: (rows - 1,
    tokens, tokens)."""
    return ((scores[1:] - scores[:1]).abs() > least * largest(scores)).any(1)


def scores_in_order(subject: Subject, made: Any, batch: Batch) -> Tensor:
    """The scores of the first softmax for a row of one repeated token, (heads, tokens, tokens), minus the score of each
    token for itself; -inf where they have no weight."""
    scores = captured_scores(subject, made, batch)[0]
    scores = scores.masked_fill(scores < scores.amax(-1, keepdim=True) - UNSEEN, -torch.inf)
    own = scores.diagonal(dim1=-2, dim2=-1)[..., None]
    require(own.isfinite().all(), "nothing to do: a token does not see itself")
    return scores - own


def a_score_is_of_two_tokens(subject: Subject, batch: Batch) -> Outcomes:
    """With another token in one place, no scores between other tokens change; or, where tokens were mixed before, all
    scores of a query or of a key."""
    assert batch.grid is not None
    scores = captured_scores(subject, subject.make(), batch)
    changed, same = changes(scores, 2**-10), ~changes(scores, 1e-12)
    for token, (moved, stayed) in enumerate(zip(changed, same, strict=True)):
        moved[token], moved[:, token], stayed[token], stayed[:, token] = False, False, False, False
        stayed &= scores[0].isfinite().all(0)
        apart = moved & stayed.any(0) & stayed.any(1)[:, None]
        query, key = apart.nonzero()[0].tolist() if apart.any() else (0, 0)
        name = f"with another token at {token}, the score of {query} and {key}"
        yield name, Outcome(not apart.any(), "what it was", "another, and not for all that one of them meets")


def fine(subject: Subject, scores: Tensor) -> float:
    """How far two equal scores may be apart: 32 roundings of float32, which biases and phases are often computed in."""
    return 32 * subject.eps(torch.float32, subject.dtype) * largest(scores)


def scores_go_by_offsets(subject: Subject, batch: Batch) -> Outcomes:
    """In a row of one repeated token, the score of a patch for another, minus its score for itself, is the same for all
    pairs with the same offset. Masked scores, and those of registers, are left out."""
    assert batch.grid is not None
    width, front = batch.grid[1], subject.registers
    scores = scores_in_order(subject, subject.make(), batch)[:, front:, front:]
    seen, tolerance = scores.isfinite().all(0), fine(subject, scores)
    require(
        float(scores[:, seen].abs().max()) > tolerance,
        "give it a `jitter`, for all tokens give as much to all as to themselves",
    )
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
    assert batch.grid is not None
    width, front = batch.grid[1], subject.registers
    scores = scores_in_order(subject, subject.make(), batch)[:, front:, front:]
    first: dict[tuple[int, int], list[int]] = {}
    for q, k in scores.isfinite().all(0).nonzero().tolist():
        first.setdefault(way(q, k, width), [q, k])
    require(len(first) > 1, "nothing to do: all that is seen lies one way")
    ways, numbers = list(first), _at(scores, list(first.values())).T
    apart = torch.cdist(numbers, numbers, p=torch.inf, compute_mode="donot_use_mm_for_euclid_dist")
    same = apart <= 16 * torch.finfo(subject.dtype).eps * float(numbers.abs().max())
    number = {one: n for n, one in enumerate(ways)}
    even = all(same[n, number[-a, -b]] for n, (a, b) in enumerate(ways) if (-a, -b) in number)
    if subject.directed and even:
        yield (
            "patches to both sides of another, as far away",
            Outcome(False, "another score for one of them", "the same"),
        )
        return
    require(not even, "nothing to do: only how far patches are apart counts, and not in which direction")
    for n, m in same.triu(1).nonzero().tolist():
        (a, b), (c, d) = ways[n], ways[m]
        crossed = [number[one] for one in ((a, d), (c, b)) if one in number]
        by_axes = a == c or b == d or bool(same[n, crossed].all())
        yield f"a patch {[c, d]} away, as one {[a, b]} away", Outcome(by_axes, "another score", "the same")


def a_register_is_as_far_from_all(subject: Subject, batch: Batch) -> Outcomes:
    """In a row of one repeated token, the scores between a register and the patches: if most of them are equal, all
    are. If the subject is relative and adds to scores, they are equal in any case."""
    assert batch.grid is not None
    front, said, made = subject.registers, 0, subject.make()
    scores = scores_in_order(subject, made, batch)
    tolerance = fine(subject, scores)
    added = bool(subject.relative) and places_are_added(subject, captured_scores(subject, made, batch), tolerance)
    for register in range(front):
        of, to = scores[:, register, front:].T, scores[:, front:, register].T
        for name, numbers in ((f"what register {register} gives", of), (f"what is given to {register}", to)):
            same = ((numbers[:, None] - numbers).abs() <= tolerance).all(-1).sum(-1)
            if added or 2 * same.max() > len(numbers):
                said += 1
                yield name, near(numbers[same.argmax()].expand_as(numbers), numbers, tolerance)
    require(said, "nothing to do: scores of registers go by the place of the patch")


def places_are_added(subject: Subject, scores: Tensor, tolerance: float) -> bool:
    """Whether another token in one patch changes the scores of all other patches for it by the same amount, relative to
    their scores for themselves: then positions are added to scores, and rotate no queries and keys."""
    front = subject.registers
    own = scores - scores.diagonal(dim1=-2, dim2=-1)[..., None]
    for token in range(front, scores.size(-1)):
        asking = [n for n in range(front, scores.size(-1)) if n != token]
        change = (own[1 + token] - own[0])[:, asking, token]
        change = change[:, change.isfinite().all(0)]
        if not near(change[:, :1].expand_as(change), change, tolerance).ok:
            return False
    return True


def registers_have_no_place(subject: Subject, batch: Batch, tolerance: float) -> Outcomes:
    """Registers in front of a grid. In a relative subject, exchanging two of them exchanges their outputs. A vector
    that is added to one is the same in the transposed grid, and is no vector of a patch."""
    assert batch.grid is not None
    made, front = subject.make(), subject.registers
    added = None
    if isinstance(subject, Layer) and not isinstance(subject, Model):
        with suppress(NotApplicableError):
            added = added_at(subject, made, batch.grid)
    if added is None:
        require(front > 1, "nothing to do: there is one register, and more is done to it than adding")
        require(subject.relative, "claim `relative=True` if registers have no vectors of their own")
        require(not subject.causal, "nothing to do: it is causal, so registers see one another in turn")
        turned = [1, 0, *range(2, batch.tokens)]
        came, other = subject.run(made, batch), subject.run(made, replace(batch.pick(turned), grid=batch.grid))
        yield "registers 0 and 1 exchanged", near(came[:, turned], other, tolerance)
        return
    vectors, patches = added[0], added[1].flatten(0, 1)
    lying = added_at(subject, made, (batch.grid[1], batch.grid[0]))[0]
    yield "what is added to registers", near(vectors, lying, tolerance)
    for register, vector in enumerate(vectors):
        taken = bool(vector.any()) and any(alike(subject, vector, patch) for patch in patches)
        own = "no vector of a patch"
        yield f"what is added to register {register}", Outcome(not taken, own, "that of a patch" if taken else own)


def each_axis_has_its_own_end(subject: Subject, batch: Batch) -> Outcome:
    """A grid with as many rows and columns as are claimed runs; one with more is refused with an error that names one
    of its sides, or the limit."""
    assert batch.grid is not None
    past = {(n, most) for n, most in zip(batch.grid, subject.sides(), strict=True) if most is not None and n > most}
    if not past:
        return all_finite(subject.run(subject.make(), batch), batch)
    expected = " or ".join(f"an error that names {n} or the limit {most}" for n, most in sorted(past))
    numbers = {number for n, most in past for number in (n, n - 1, most, most - 1)}
    return refused(lambda: subject.run(subject.make(), batch), expected, lambda said: bool(numbers & numbers_in(said)))


def added_at(subject: Subject, made: Any, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """What is added to registers, (registers, dim), and to patches, (rows, columns, dim). NotApplicableError where that
    depends on the input."""
    require(
        isinstance(subject, Layer) and not isinstance(subject, Model), "nothing to do: call takes no vectors to add to"
    )
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
    require(out.shape == x.shape, "nothing to do: what comes out is not of the size of what goes in")
    added = (out - x).double()
    same = near(added[0], added[1], 2**-18 * float(out.abs().max())).ok
    require(same, "nothing to do: what it adds goes by what it is added to")
    return added[0, :front], added[0, front:].unflatten(0, grid)


def goes_by_the_share(subject: Subject, made: Any, grid: tuple[int, int], tolerance: float) -> bool:
    """Whether the vector of a place depends on its relative place in the image: r / h, (r + 1) / h, (r + ½) / h or
    r / (h - 1), each axis by its own side, or both by the longer one."""
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
            least = min(grid)
            lying = added_at(subject, made, (width, height))[1]
            if near(here[:least, :least], lying[:least, :least], tolerance).ok:
                return True
    every = slice(None, None, 2)
    return agrees(2 * height - 1, width, every, slice(None)) and agrees(height, 2 * width - 1, slice(None), every)


def a_place_has_one_vector(subject: Subject, batch: Batch, others: list[tuple[int, int]]) -> Outcomes:
    """What is added to the patch of a row and column, in grids of several shapes."""
    assert batch.grid is not None
    made = subject.make()
    held = any(isinstance(x, Tensor) and x.dim() > 1 for _, x in holdings(made))  # before a call, which may keep some
    here = added_at(subject, made, batch.grid)[1]
    spread = float((here - here[:1, :1]).abs().max())
    require(spread > 0, "give it a `jitter`, for nothing is added that goes by places")
    if held:
        limited = any(most is not None for most in subject.sides())
        require(limited, "claim `trained_grid` if its table is resized, and `max_grid` or `max_positions` if not")
    else:
        share = goes_by_the_share(subject, made, batch.grid, 2**-10 * spread)
        require(not share, "nothing to do: vectors go by the share of the picture that lies before them")
    for rows, columns in others:
        there = added_at(subject, made, (rows, columns))[1]
        for r, c in product(range(min(rows, batch.grid[0])), range(min(columns, batch.grid[1]))):
            name = f"row {r}, column {c} of {rows} x {columns}, as of {batch.grid[0]} x {batch.grid[1]}"
            yield name, near(here[r, c], there[r, c], 2**-10 * spread)
