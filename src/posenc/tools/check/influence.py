"""Measures which tokens influence which outputs, by derivatives. Plain PyTorch: scripts hold a copy."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from posenc.tools.check.calls import with_leaves
from posenc.tools.check.captured import of_one_token
from posenc.tools.check.layers import Layer, Model
from posenc.tools.check.outcome import Outcome, Outcomes, near
from posenc.tools.check.subjects import REFUSALS, Batch, NotApplicableError, Subject, require

AT_ONCE = 64  # rows of a batch
NOT_WHOLE = "nothing to do: it refuses a grid that is not of whole windows"
KINDS = 4  # of pairs of rows: in one window, in one stripe, in both, in neither
NOTHING = 1e-12  # of the largest derivative: a mask of -100 leaves far less of a weight


def influence(subject: Subject, made: Any, batch: Batch) -> Tensor:
    """The derivative of every output with respect to every vector of a row of one repeated token, (outputs, vectors,
    dim).

    As all values are the same, changes of the weights cancel: the derivative is a sum over the heads of the weight
    times the head's value map. The row is run once for each of its tokens.
    """
    require(isinstance(subject, Layer) and not isinstance(subject, Model), "nothing to do: call takes no vectors")
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
    require(
        subject.depth == 1, "nothing to do: it has several layers, and what is outside one window is inside another"
    )
    height, width = subject.window  # type: ignore[misc]
    down, right = subject.window_shift
    return (height, width), (down, right)


def windows_are_those_claimed(subject: Subject, batch: Batch, whole: bool) -> Outcomes:
    """Each patch affects those in its window and no others. If the subject is relative, all whole windows are the same.
    ``whole``: the grid consists of whole windows; any other grid may be refused."""
    assert batch.grid is not None
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
    """Equal patches in a grid that is not of whole windows: if weights sum to one, the padding of the windows has no
    weight, and all outputs are the same."""
    _windows(subject)
    made = subject.make()
    try:
        out = subject.run(made, of_one_token(batch))[:, subject.registers :]
    except (RuntimeError, *REFUSALS) as error:
        raise NotApplicableError(f"{NOT_WHOLE}: {error}") from None
    return near(out[:, :1].expand_as(out), out, tolerance)


def sight_goes_by_rows_and_columns(subject: Subject, batch: Batch) -> Outcomes:
    """Which patches affect which depends on their offset alone, or else on a few kinds of pairs of rows and of columns:
    as for axes, for windows, or for neighbourhoods that are moved inwards at a border."""
    assert batch.grid is not None
    (height, width), front = batch.grid, subject.registers
    sizes = influence(subject, subject.make(), batch)[front:, front:].abs().amax(-1)
    sees = sizes > NOTHING * sizes.max()
    require(not sees.all(), "nothing to do: all patches count for all")
    of_rows = sees.view(height, width, height, width).transpose(1, 2).reshape(height**2, width**2)
    few = all(len(of_rows.unique(dim=axis).movedim(axis, 0)) <= KINDS for axis in (0, 1))
    first: dict[tuple[int, int], tuple[int, int]] = {}
    for q, k in ((q, k) for q in range(height * width) for k in range(height * width)):
        (a, b), (c, d) = divmod(q, width), divmod(k, width)
        at, other = first.setdefault((c - a, d - b), (q, k))
        same = bool(sees[q, k] == sees[at, other])
        expected, came = ("counts" if seen else "counts nothing" for seen in (sees[at, other], sees[q, k]))
        name = f"patch {[c, d]} at {[a, b]}, as {[*divmod(other, width)]} at {[*divmod(at, width)]}"
        yield name, Outcome(same or few, expected, came)


class Images(TorchFunctionMode):
    """Captures the input of every convolution over two axes, except those with a kernel of 1 x 1, which do not depend
    on the order of the patches."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv2d:
            given = dict(zip(("input", "weight"), args, strict=False)) | kwargs
            if max(given["weight"].shape[2:]) > 1:
                self.found.append(given["input"].detach())
        return func(*args, **kwargs)


def every_patch_is_at_its_place(subject: Subject, batch: Batch) -> Outcomes:
    """In the input of a convolution over the grid, another token changes exactly one place, if tokens were not mixed
    before (no number changes with two tokens). The patches of a row must lie in one row and those of a column in one
    column, or the other way round."""
    assert batch.grid is not None
    (height, width), front, tried = batch.grid, subject.registers, False
    ids = [[1 + (k == n) for k in range(batch.tokens)] for n in range(-1, batch.tokens)]
    with Images() as captured, torch.no_grad():
        subject.run(subject.make(), replace(batch, ids=ids))
    for number, image in enumerate(captured.found):
        if image.dim() != 4 or len(image) != len(ids) or sorted(image.shape[2:]) != sorted(batch.grid):
            continue
        changed = (image[1:] - image[:1]).abs() > 2**-18 * image.abs().max()
        if not changed.any() or (changed.sum(0) > 1).any():
            continue
        tried, found = True, [patch.any(0).nonzero() for patch in changed[front:]]
        alone, place = all(len(places) == 1 for places in found), torch.zeros(height, width, 2)
        if alone:
            place = torch.cat(found).view(height, width, 2)
        straight = alone and any(
            (place[..., a] == place[:, :1, a]).all() and (place[..., 1 - a] == place[:1, :, 1 - a]).all()
            for a in (0, 1)
        )
        wrong = (n for n, places in enumerate(found) if places.tolist() != [[*divmod(n, width)]])
        patch = 0 if straight else next(wrong)
        name = f"patch {[*divmod(patch, width)]} in what convolution {number} is given"
        yield name, Outcome(bool(straight), f"at {[[*divmod(patch, width)]]}", f"at {found[patch].tolist()}")
    require(tried, "nothing to do: no convolution over the grid is given patches that nothing was mixed into")
