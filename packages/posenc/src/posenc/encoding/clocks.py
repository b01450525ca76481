"""Cumulative sums along the order of tokens, which may differ from their order in the tensor."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posenc.positions.positions import PADDING, Positions
from posenc.rotation.phases import in_double


def readings(
    steps: Float[Tensor, "batch heads keys *width"], positions: Positions, at: Positions | None = None
) -> Float[Tensor, "batch heads tokens *width"]:
    """The cumulative sum at every token: the sum of ``steps`` over its document up to its own order, inclusive. ``at``:
    evaluates it at these tokens of the same documents; None: at those of ``steps``. It is 0 for padding.

    Returns float64 where the device supports it, so that differences are computed before rounding.
    """
    if steps.dim() == 4:
        return _of_numbers(lambda x: readings(x, positions, at), steps)
    device, x = steps.device, in_double(steps)
    dtype = x.dtype if x.device == device else torch.float32
    if at is None and positions.layout.run is not None:  # a contiguous text
        return x.cumsum(-1).to(dtype=dtype, device=device)
    at = (positions if at is None else at).expand(x.size(0))
    total, place = _along_documents(x, positions)
    key, first = (k.to(place.device) for k in _places(at, positions))
    last = torch.searchsorted(place, key, right=True) - 1
    of = last.clamp(min=0)
    shows = (last >= 0) & (place.gather(-1, of) >= first) & (at.document != PADDING).to(place.device)
    found = total.gather(-1, of[:, None].expand(-1, x.size(1), -1))
    return torch.where(shows[:, None], found, torch.zeros_like(found)).to(dtype=dtype, device=device)


def last_readings(
    clock: Float[Tensor, "batch heads held *width"], held: Positions, at: Positions
) -> Float[Tensor, "batch heads tokens *width"]:
    """The cumulative sum ``clock`` of the cached tokens ``held`` at the last one of the same document before each token
    of ``at``; 0 if there is none."""
    if clock.dim() == 4:
        return _of_numbers(lambda x: last_readings(x, held, at), clock)
    before, after = held.layout.run, at.layout.run
    if before and after and before.document == after.document and after.order >= before.order + len(held):
        return clock[:, :, -1:].expand(-1, -1, len(at))
    rows = max(held.rows, at.rows)
    held, at = held.expand(rows), at.expand(rows)
    place, index = _places(held, held)[0].sort(dim=-1, stable=True)
    key, first = _places(at, held)
    last = torch.searchsorted(place, key, right=True) - 1
    is_there = last >= torch.searchsorted(place, first, right=False)
    of = index.gather(-1, last.clamp(min=0))[:, None].expand(clock.size(0), clock.size(1), -1)
    found = (is_there & (at.document != PADDING))[:, None]
    return torch.where(found, clock.gather(-1, of), torch.zeros_like(clock[:, :, :1]))


def following(
    x: Float[Tensor, "batch heads queries keys"], keys: Positions, *, itself: bool
) -> Float[Tensor, "batch heads queries keys"]:
    """For each key, the sum of x over keys of a higher order and, with ``itself``, of its own order."""
    if keys.layout.run is not None:
        sums = x.flip(-1).cumsum(-1).flip(-1)
        return sums if itself else torch.nn.functional.pad(sums[..., 1:], (0, 1))
    order = keys.order.expand(x.size(0), -1)
    place, index = order.sort(dim=-1, stable=True)
    sorted_x = x.gather(-1, index[:, None, None].expand_as(x))
    sums = torch.nn.functional.pad(sorted_x.flip(-1).cumsum(-1).flip(-1), (0, 1))
    start = torch.searchsorted(place, order.contiguous(), right=not itself)
    return sums.gather(-1, start[:, None, None].expand_as(x))


def _of_numbers(sums: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A function of numbers (batch, heads, tokens), for vectors (batch, heads, tokens, width): number by number."""
    return sums(x.movedim(3, 2).flatten(1, 2)).unflatten(1, (x.size(1), x.size(3))).movedim(2, 3)


def _places(positions: Positions, among: Positions) -> tuple[Int[Tensor, "rows tokens"], Int[Tensor, "rows tokens"]]:
    """A sort key for each token, by document and then order, and the lowest one of its document. Orders are clamped to
    one beyond those of ``among``."""
    low, high = among.order.amin(), among.order.amax()
    span = high - low + 3
    order = positions.order.clamp(low - 1, high + 1) - low + 1
    first = positions.document * span
    return (first + order).contiguous(), first.contiguous()


def _along_documents(x: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
    """The cumulative sums of x by document and order, which restart in each document, and their sort keys. Documents
    do not affect one another, not even by rounding."""
    keys = positions.expand(x.size(0))
    place, index = _places(keys, keys)[0].to(x.device).sort(dim=-1, stable=True)
    document = keys.document.to(x.device).gather(-1, index)[:, None]
    total = x.gather(-1, index[:, None].expand_as(x))
    step = 1
    while step < x.size(-1):  # sums of 1, 2, 4, ... tokens
        same = document[..., step:] == document[..., :-step]
        before = torch.where(same, total[..., :-step], torch.zeros_like(total[..., :-step]))
        total = torch.cat((total[..., :step], total[..., step:] + before), -1)
        step *= 2
    return total, place
