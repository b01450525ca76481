"""Shrinks a batch that shows a finding to a smaller and simpler one."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import accumulate, pairwise

from posenc_check.subjects import PADDING, Batch

TRIES_PER_STEP = 600  # of each kind of step


def shrink(batch: Batch, shows: Callable[[Batch], bool], is_finished: Callable[[], bool] = lambda: False) -> Batch:
    """The smallest and simplest batch found for which ``shows`` is true, starting from one for which it is.

    Greedy: rows and tokens are left out first, then contents and positions are lowered, until no step that is left
    still shows it, each kind of step was tried 600 times, or ``is_finished()``. Where it is not ``is_finished`` that
    ends it, the same batch gives the same.
    """
    left = {_smaller: TRIES_PER_STEP, _simpler: TRIES_PER_STEP}
    before = None
    while batch != before:
        before = batch
        for steps in left:
            batch, left[steps] = _greedy(batch, shows, steps, left[steps], is_finished)
    return batch


def _greedy(
    batch: Batch,
    shows: Callable[[Batch], bool],
    steps: Callable[[Batch], Iterator[Batch]],
    tries: int,
    is_finished: Callable[[], bool],
) -> tuple[Batch, int]:
    """The batch after all steps that still show the finding, and the number of tries left."""
    candidates = steps(batch)
    while tries and not is_finished():
        candidate = next(candidates, None)
        if candidate is None:
            break
        tries -= 1
        if shows(candidate):
            batch = candidate
            candidates = steps(batch)
    return batch, tries


def _smaller(batch: Batch) -> Iterator[Batch]:
    """Batches with fewer rows, tokens or chunks."""
    rows, tokens = len(batch.ids), batch.tokens
    if rows > 1:
        for row in range(rows):
            yield without(batch, (), row)
    if batch.grid is None:
        part = tokens // 2
        while part:
            for start in range(0, tokens, part):
                shorter = without(batch, range(start, min(start + part, tokens)))
                if bool(shorter.queries) == bool(batch.queries) and bool(shorter.keys) == bool(batch.keys):
                    yield shorter
            part //= 2
    elif tokens == batch.grid[0] * batch.grid[1]:
        height, width = batch.grid
        for row in range(height if height > 1 else 0):
            yield replace(without(batch, range(row * width, row * width + width)), grid=(height - 1, width))
        for column in range(width if width > 1 else 0):
            yield replace(without(batch, range(column, tokens, width)), grid=(height, width - 1))
    for n in range(len(batch.chunks) - 1):
        joined = batch.chunks[n] + batch.chunks[n + 1]
        yield replace(batch, chunks=(*batch.chunks[:n], joined, *batch.chunks[n + 2 :]))


def _simpler(batch: Batch) -> Iterator[Batch]:
    """Batches of the same size with simpler numbers; each step lowers a number, so the steps end."""
    for ids in ([[0] * batch.tokens] * len(batch.ids), _numbered(batch.ids)):
        if sum(map(sum, ids)) < sum(map(sum, batch.ids)):
            yield replace(batch, ids=ids)
    if batch.document is not None and (document := _numbered(batch.document, PADDING)) != batch.document:
        yield replace(batch, document=document)
    if batch.order is not None:
        ranks = [[sorted(set(row)).index(place) for place in row] for row in batch.order]
        if ranks != batch.order:
            yield replace(batch, order=ranks)
    yield from _lower(batch)


def _numbered(rows: list[list[int]], *remaining: int) -> list[list[int]]:
    """Each row with its values renumbered 0, 1, 2, … in the order of their first occurrence."""
    numbered = []
    for row in rows:
        values = list(dict.fromkeys(value for value in row if value not in remaining))
        numbered.append([value if value in remaining else values.index(value) for value in row])
    return numbered


def _lower(batch: Batch) -> Iterator[Batch]:
    """Batches with all rows moved towards 0; then single rows; then the end of a row moved towards its beginning.

    Positions on the diagonal of several axes stay on it, since trials may require that.
    """
    positions = batch.positions or []
    several = bool(positions) and isinstance(positions[0][0], list)
    diagonal = several and all(len(set(p)) == 1 for row in positions for p in row)
    axes: list[int | None] = [*range(len(positions[0][0]))] if several and not diagonal else [None] * bool(positions)
    for axis in axes:
        lines = [[p[axis or 0] if several else p for p in row] for row in positions]
        moves = [([*range(len(lines))], 0, min(map(min, lines)))]
        moves += [([row], 0, min(line)) for row, line in enumerate(lines)]
        moves += [
            ([row], start, min(line[start:]) - max(line[:start]) - 1)
            for row, line in enumerate(lines)
            for start in range(1, len(line))
        ]
        for rows, start, most in moves:
            amount = int(most)
            while amount > 0:
                moved = batch.shifted(-amount, axis=axis).positions or []
                lower = [there[:start] + here[start:] for there, here in zip(positions, moved, strict=True)]
                yield replace(batch, positions=[lower[n] if n in rows else row for n, row in enumerate(positions)])
                amount //= 2


def without(batch: Batch, tokens: Collection[int], row: int | None = None) -> Batch:
    """The batch without these tokens, and without one row if it is given."""
    remaining = [n for n in range(batch.tokens) if n not in tokens]
    chunks = [sum(start <= n < end for n in remaining) for start, end in pairwise(accumulate(batch.chunks, initial=0))]
    queries, keys = (
        None if which is None else tuple(remaining.index(n) for n in which if n in remaining)
        for which in (batch.queries, batch.keys)
    )
    picked = batch.pick(remaining, *(n for n in range(len(batch.ids)) if n != row))
    return replace(picked, chunks=tuple(filter(None, chunks)), queries=queries, keys=keys, grid=batch.grid)
