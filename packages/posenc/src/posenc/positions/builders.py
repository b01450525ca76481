"""Computes coordinates, order, document and layout, as plain tensors, for the constructors of `Positions`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, product
from typing import Any

import torch
from torch import Tensor

from posenc.arguments import check_flag, whole
from posenc.positions.layout import PADDING, Layout, Span, overlap
from posenc.positions.validation import check_held, described, extent_of, is_readable, lengths_of_documents, token_mask


def grid_coords(height: int, width: int, frames: int | None, extent: Any, prefix: int, device: Any) -> Tensor:
    """Coordinates (1, tokens, axes) of `Positions.grid`."""
    sides = [torch.arange(height, device=device), torch.arange(width, device=device)]
    if extent is not None:
        sizes = extent_of(extent)
        sides = [(s.double() + 0.5) * (e / n) - 0.5 for s, e, n in zip(sides, sizes, (height, width), strict=True)]
    if frames is not None:
        sides.insert(0, torch.arange(frames, device=device, dtype=sides[0].dtype))
    coords = torch.stack([axis.reshape(-1) for axis in torch.meshgrid(*sides, indexing="ij")], dim=-1)
    return torch.cat((coords.new_zeros(prefix, len(sides)), coords))[None]


def grid_layout(height: int, width: int, frames: int | None, prefix: int) -> Layout:
    """The layout of `Positions.grid`: a span for each prefix token and for each row of the raster."""
    first, steps = ((), (0, 1)) if frames is None else ((0,), (0, 0, 1))
    heads = tuple(Span(n, n + 1, 0, n, coords=(*first, 0, 0), steps=steps) for n in range(prefix))
    lines = tuple(_lines((frames or 0,) * len(first) + (height, width), prefix, (0,) * len(steps)))
    tokens = prefix + height * width * (1 if frames is None else frames)
    highest = max(height, width, 0 if frames is None else frames) - 1
    bounds = (0, highest) if tokens > prefix else (0, 0) if prefix else None
    return Layout(tokens, (heads + lines,), bounds)


def _lines(sizes: tuple[int, ...], start: int, origin: tuple[int, ...]) -> Iterator[Span]:
    """A span for each row of a raster of these sizes whose first token is ``start``, where order counts tokens."""
    *outer, width = sizes
    steps = (0,) * len(outer) + (1,)
    for n, index in enumerate(product(*map(range, outer)) if width else ()):
        t = start + n * width
        corner = (*(o + i for o, i in zip(origin, index, strict=False)), origin[-1])
        yield Span(t, t + width, 0, t, coords=corner, steps=steps)


def multimodal(parts: Any, start: int, device: Any) -> tuple[Tensor, Layout]:
    """Coordinates (1, tokens, 3) and layout of `Positions.multimodal`."""
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        raise ValueError(f"parts must be a sequence of ints and (frames, height, width), got {parts!r}")
    coords, tokens, at = [torch.empty(0, 3, dtype=torch.int64, device=device)], 0, start
    spans: list[Span] = []
    for part in parts:
        is_image = isinstance(part, Sequence) and not isinstance(part, str) and len(part) == 3
        sizes = [whole("parts", n, least=0) for n in (part if is_image else (part,))]
        if is_image:
            height, width = sizes[1:]
            made = grid_coords(height, width, sizes[0], None, 0, device)[0]
            spans += _lines(tuple(sizes), tokens, (at, at, at))
        else:
            made = torch.arange(sizes[0], device=device)[:, None].expand(-1, 3)
            spans += [Span(tokens, tokens + sizes[0], 0, tokens, coords=(at,) * 3, steps=(1,) * 3)] * (sizes[0] > 0)
        coords.append(made + at)
        tokens, at = tokens + len(made), at + (max(sizes) if len(made) else 0)
    check_held("start", start, at)
    return torch.cat(coords)[None], Layout(tokens, (tuple(spans),), (start, at - 1) if tokens else None)


def packed(lengths: Any, cu_seqlens: Any, device: Any) -> tuple[Tensor, Tensor, Tensor, Layout]:
    """Coordinates, order, document and layout of `Positions.packed`."""
    rows = lengths_of_documents(lengths, cu_seqlens)
    given = lengths if cu_seqlens is None else cu_seqlens
    device = given.device if device is None and isinstance(given, Tensor) else device
    tokens = max((sum(row) for row in rows), default=0)

    def tensor(values: list[list[int]], padding: int) -> Tensor:
        padded = [row + [padding] * (tokens - len(row)) for row in values]
        return torch.tensor(padded, dtype=torch.int64, device=device).reshape(len(rows), tokens)

    def spans(row: list[int]) -> tuple[Span, ...]:
        starts = accumulate(row, initial=0)
        return tuple(Span(t, t + n, d, t, coords=(0,)) for d, (t, n) in enumerate(zip(starts, row, strict=False)) if n)

    coords = tensor([[p for n in row for p in range(n)] for row in rows], 0)
    order = tensor([list(range(sum(row))) for row in rows], 0)
    document = tensor([[d for d, n in enumerate(row) for _ in range(n)] for row in rows], PADDING)
    layouts = tuple(spans(row) for row in rows) or ((),)
    layouts = layouts[:1] if all(row == layouts[0] for row in layouts) else layouts
    longest = max((n for row in rows for n in row), default=0)
    return coords, order, document, Layout(tokens, layouts, (0, max(longest - 1, 0)))


def counted(is_token: Tensor) -> Tensor:
    """The index of each token among its row's tokens, and 0 for padding."""
    return (is_token.long().cumsum(1) - 1).masked_fill(~is_token, 0)


def of_ids(ids: Any, mask: Any, packed: Any) -> tuple[Tensor, Tensor]:
    """Order and document of `Positions.from_ids`."""
    if not isinstance(ids, Tensor) or ids.dim() not in (2, 3) or ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"ids must be an int64 tensor (rows, tokens[, axes]), got {described(ids)}")
    check_flag("packed", packed)
    is_token = torch.ones(ids.shape[:2], dtype=torch.bool, device=ids.device)
    if mask is not None:
        mask = token_mask("mask", mask)
        if mask.shape != is_token.shape:
            raise ValueError(f"mask must be {tuple(is_token.shape)} like ids, got {tuple(mask.shape)}")
        is_token = mask
    if packed and ids.dim() == 3:
        raise ValueError(f"ids must be (rows, tokens) with packed=True, got {tuple(ids.shape)}")
    restarts, order = torch.zeros_like(is_token), counted(is_token)
    if ids.dim() == 2 and ids.size(1):
        lowest = torch.iinfo(ids.dtype).min
        before = ids if packed else torch.where(is_token, ids, lowest).cummax(1).values
        restarts[:, 1:] = is_token[:, 1:] & is_token[:, :-1] & (ids[:, 1:] <= before[:, :-1])
        if not packed:  # new tokens beside a cache come after its tokens
            first = ids.gather(1, is_token.long().argmax(1, keepdim=True)).long()
            order = (order + first).masked_fill(~is_token, 0)
    if not packed and is_readable(ids) and bool(restarts.any()):
        raise ValueError(
            "ids must increase along each row, got some that decrease or repeat: pass mask=, 1 = token, if that is "
            "padding, or packed=True for packed documents; otherwise use Positions(coords, order=..., document=...)"
            f"{_inverted(ids, is_token)}"
        )
    if packed and is_readable(ids) and ids.numel():
        _check_packed(ids, is_token)
    return order, restarts.long().cumsum(1).masked_fill(~is_token, PADDING)


def _inverted(ids: Tensor, is_token: Tensor) -> str:
    """The end of the error for ids that do not increase, where those of the hidden tokens do."""
    unseen = torch.where(is_token, torch.iinfo(ids.dtype).min, ids).cummax(1).values
    later = ~is_token[:, 1:] & ~is_token[:, :-1]
    counts = later.any() and bool((ids[:, 1:] > unseen[:, :-1])[later].all())
    return "; the ids of the hidden tokens do increase: mask must be 1 (True) = token" if counts else ""


def _check_packed(ids: Tensor, is_token: Tensor) -> None:
    """ValueError for documents of one token at an id above those where others begin: tokenizers pad ids so."""
    again = is_token[:, 1:] & is_token[:, :-1] & (ids[:, 1:] == ids[:, :-1])
    lowest = ids.masked_fill(~is_token, torch.iinfo(ids.dtype).max).amin(1, keepdim=True)
    odd = (again & (ids[:, 1:] > lowest)).nonzero()
    if len(odd):
        row, token = odd[0].tolist()
        raise ValueError(
            f"ids must increase by one in each packed document, got {int(ids[row, token])} twice in row {row} and "
            f"documents that begin at {int(lowest[row])}: pass mask=, 1 = token, if that is padding"
        )


def last_of(order: Tensor, document: Tensor) -> Tensor:
    """The index of the last token of each row; see `Positions.last`."""
    if not torch.compiler.is_compiling() and order.size(1) == 0:
        raise ValueError("positions must have a token to have a last one, got none")
    unseen = torch.iinfo(torch.int64).min  # below any order, which may be negative
    return order.masked_fill(document == PADDING, unseen).argmax(1)


def lengths_of(layout: Layout, coords: Tensor, document: Tensor) -> Tensor:
    """The length of each row's text; see `Positions.lengths`."""
    if any(len({span.document for span in row}) > 1 for row in layout.rows or ()):
        raise ValueError(
            "a row of several documents has no single length: give each document its own row, or pass the length to "
            "scale each row by with context=Context(lengths=...)"
        )
    coords = coords if coords.dim() == 2 else coords.amax(-1)
    if not torch.compiler.is_compiling() and coords.size(1) == 0:
        return coords.new_zeros(coords.size(0))
    return coords.masked_fill(document == PADDING, -1).amax(1) + 1


def after(known: Mapping[str, Any], layout: Layout, n: int) -> dict[str, Any]:
    """The tensors, by name, of the ``n`` tokens that follow the known ones; see `Positions.following`."""
    order, document = known["order"], known["document"]
    end: dict[str, Any]
    if layout.run is not None:  # the last token is the last in the tensor
        end = {name: None if x is None else x[:, -1:] for name, x in known.items()}
    else:
        row, last = torch.arange(order.size(0), device=order.device)[:, None], last_of(order, document)[:, None]
        end = {name: None if x is None else x[row, last] for name, x in known.items()}
        # A row with only padding has no document to continue: its first token starts document 0 at position 0.
        empty = (document == PADDING).all(1, keepdim=True)
        for name, before in (("coords", -1), ("order", -1), ("document", 0)):
            end[name] = torch.where(empty if end[name].dim() == 2 else empty[..., None], before, end[name])
    if layout.bounds is not None:
        check_held("n", layout.bounds[1], layout.bounds[1] + n)
    ahead = torch.arange(1, n + 1, device=order.device)
    coords, segment = end["coords"], end["segment"]
    return {
        "coords": coords + ahead if coords.dim() == 2 else (coords.amax(-1) + ahead)[..., None].expand(-1, -1, 3),
        "order": end["order"] + ahead,
        "document": end["document"].expand(-1, n),
        "segment": None if segment is None else segment.expand(-1, n),
    }


def layout_after(layout: Layout, n: int) -> Layout:
    """The layout of the ``n`` tokens that follow this layout."""
    run, bounds, spans = layout.run, layout.bounds, None
    if run is not None:
        is_text = run.coords is not None and run.steps == (1,)
        after = run.cut(run.stop, run.stop)
        spans = ((Span(0, n, run.document, after.order, coords=after.coords if is_text else None),),)
    elif bounds is not None:  # a row with only padding continues at 0
        bounds = (min(bounds[0], 0), max(bounds[1], -1))
    return Layout(n, spans, None if bounds is None else (bounds[0], bounds[1] + n))


def check_apart(layout: Layout, documents: str | None) -> None:
    """ValueError for tokens of one document at the same order, unless ``documents`` says what is meant."""
    twice = overlap(layout) if documents is None else None
    if twice is not None:
        raise ValueError(
            f"parts have tokens of document {twice} at the same order: pass documents='new' if each part is a "
            "separate text, or use positions.following(n) to continue one"
        )


def renumbered(documents: Sequence[Tensor]) -> list[Tensor]:
    """The documents of each part, renumbered to come after those of the earlier parts."""
    first, found = documents[0].new_zeros(()), []
    for document in documents:
        found.append(torch.where(document == PADDING, PADDING, document + first))
        if document.numel():
            first = torch.maximum(first, found[-1].max() + 1)
    return found


def agree(layout: Layout, coords: Tensor, order: Tensor, document: Tensor) -> bool:
    """Whether a layout matches the values of every token."""
    rows = layout.rows
    if rows is None or len(rows) not in (1, document.size(0)):
        return rows is None
    stated_coords, stated_order = coords.clone(), torch.zeros_like(order)
    stated_document = torch.full_like(document, PADDING)
    for n in range(document.size(0)):
        for span in layout.of_row(n):
            where, step = slice(span.start, span.stop), torch.arange(span.stop - span.start)
            stated_document[n, where], stated_order[n, where] = span.document, span.order + span.order_step * step
            if span.coords is not None:
                line = torch.stack([c + s * step for c, s in zip(span.coords, span.steps, strict=True)], -1)
                stated_coords[n, where] = line.reshape(coords[n, where].shape).to(coords.dtype)
    seen = stated_document != PADDING
    same = torch.equal(stated_document, document) and torch.equal(stated_coords, coords)
    return same and torch.equal(stated_order[seen], order[seen])
