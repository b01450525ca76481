"""Token positions: coordinates, order, document and segment, passed as data instead of inferred from tensor indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from posenc import compat
from posenc.arguments import check_flag, check_type, number, shown, whole
from posenc.positions import validation
from posenc.positions.layout import PADDING as PADDING
from posenc.positions.layout import Layout, Order, Span, document_of_chunk, indices, join, overlap, place_of, read
from posenc.positions.validation import (
    check_held,
    described,
    documents_of,
    extent_of,
    is_readable,
    lengths_of_documents,
)


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


def multimodal(parts: Any, start: int, tokens_per_second: Any, device: Any) -> tuple[Tensor, Layout]:
    """Coordinates (1, tokens, 3) and layout of `Positions.multimodal`."""
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        raise ValueError(f"parts must be a sequence of ints and (frames, height, width), got {parts!r}")
    if tokens_per_second is not None:
        number("tokens_per_second", tokens_per_second, above=0)
    coords, tokens, at = [torch.empty(0, 3, dtype=torch.int64, device=device)], 0, start
    spans: list[Span] = []
    for part in parts:
        is_image = isinstance(part, Sequence) and not isinstance(part, str) and len(part) in (3, 4)
        sizes = [whole("parts", n, least=0) for n in (part[:3] if is_image else (part,))]
        if is_image:
            if tokens_per_second is not None and len(part) == 3 and sizes[0] > 1:
                raise ValueError(f"parts must have the seconds of a video with tokens_per_second, got {part}")
            height, width = sizes[1:]
            made = grid_coords(height, width, sizes[0], None, 0, device)[0]
            lines = _lines(tuple(sizes), tokens, (at, at, at))
            if len(part) == 4:
                pace = number("seconds", part[3], above=0) * number("tokens_per_second", tokens_per_second, above=0)
                # In float32, as the models do, whose whole times depend on the rounding.
                if sizes[0] * pace >= 2**24:
                    raise ValueError(f"parts must have times below 2**24, which float32 counts, got {part}")
                times = (torch.arange(sizes[0], dtype=torch.float32) * pace).long()
                made[:, 0] = times.to(made.device).repeat_interleave(height * width)
                starts, sizes[0] = (at + times).tolist(), int(times[-1:].sum()) + 1
                lines = (replace(s, coords=(starts[n // height], at + n % height, at)) for n, s in enumerate(lines))
            spans += lines
        else:
            made = torch.arange(sizes[0], device=device)[:, None].expand(-1, 3)
            spans += [Span(tokens, tokens + sizes[0], 0, tokens, coords=(at,) * 3, steps=(1,) * 3)] * (sizes[0] > 0)
        coords.append(made + at)
        tokens, at = tokens + len(made), at + (max(sizes) if len(made) else 0)
    check_held("start", start, at)
    return torch.cat(coords)[None], Layout(tokens, (tuple(spans),), (start, at - 1) if tokens else None)


def packed(lengths: Any, cu_seqlens: Any, max_seqlen: Any, device: Any) -> tuple[Tensor, Tensor, Tensor, Layout]:
    """Coordinates, order, document and layout of `Positions.packed`."""
    rows = lengths_of_documents(lengths, cu_seqlens)
    longest = max((n for row in rows for n in row), default=0)
    if max_seqlen is not None:
        whole("max_seqlen", max_seqlen, least=longest)
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
    return coords, order, document, Layout(tokens, layouts, (0, max(longest - 1, 0)))


def counted(is_token: Tensor) -> Tensor:
    """The index of each token among its row's tokens, and 0 for padding."""
    return (is_token.long().cumsum(1) - 1).masked_fill(~is_token, 0)


def begins(document: Tensor) -> Tensor:
    """Whether a token is the first of its document, where documents are numbered in the order of the tokens."""
    highest = document.cummax(1).values
    return highest > torch.nn.functional.pad(highest, (1, 0), value=PADDING)[:, :-1]


def of_ids(ids: Any, mask: Any, packed: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Coordinates, order and document of `Positions.from_ids`."""
    if not isinstance(ids, Tensor) or ids.dim() not in (2, 3) or ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"ids must be an int64 tensor (rows, tokens[, axes]), got {described(ids)}")
    check_flag("packed", packed)
    shape = mask.shape if isinstance(mask, Tensor) else None
    if ids.dim() == 3 and ids.size(0) == 3 and (shape is None or shape == ids.shape[1:]):
        if ids.size(2) in (2, 3) and (shape is None or shape == ids.shape[:2]):
            raise ValueError(
                f"ids of shape {tuple(ids.shape)} may be (rows, tokens, axes) or (axes, rows, tokens): pass "
                "Positions(ids) for the former, Positions(ids.movedim(0, -1)) for the latter, or a mask (rows, tokens)"
            )
        ids = ids.movedim(0, -1)
    elif ids.dim() == 3 and ids.size(0) == 4 and (shape == ids.shape[1:] if shape else ids.size(2) > 4):
        raise ValueError(
            f"ids of shape {tuple(ids.shape)} seem to be those of text and then M-RoPE's of three axes: pass ids[1:]"
        )
    document = torch.zeros(ids.shape[:2], dtype=torch.int64, device=ids.device)
    if mask is not None:
        if shape is not None and shape != ids.shape[:2] and mask.dim() == 2:
            raise ValueError(f"mask must be {tuple(ids.shape[:2])} like ids, got {tuple(mask.shape)}")
        document = documents_of("mask", mask)
    is_token = document != PADDING
    restarts, order = torch.zeros_like(is_token), counted(is_token)
    both = is_token[:, 1:] & is_token[:, :-1]
    if ids.dim() == 3 and packed:
        if ids.size(2) != 3:
            raise ValueError(f"ids must be (rows, tokens[, 3]) with packed=True, got {tuple(ids.shape)}")
        # Time stays within an image and increases from one part to the next.
        repeats, is_zero = (ids[:, 1:] == ids[:, :-1]).all(-1), (ids[:, 1:] == 0).all(-1)
        restarts[:, 1:] = both & ((ids[:, 1:, 0] < ids[:, :-1, 0]) | repeats | is_zero)
    if ids.dim() == 2 and ids.numel():
        lowest = torch.iinfo(torch.int64).min
        # Higher in each document than in the one before.
        higher = ids.long() + document.clamp(min=0) * (ids.amax() - ids.amin() + 1)
        before = higher if packed else torch.where(is_token, higher, lowest).cummax(1).values
        restarts[:, 1:] = both & (higher[:, 1:] <= before[:, :-1])
        if not packed:  # new tokens beside a cache come after its tokens
            first = ids.gather(1, is_token.long().argmax(1, keepdim=True)).long()
            order = (order + first).masked_fill(~is_token, 0)
    if not packed and is_readable(ids) and bool(restarts.any()):
        raise ValueError(
            "ids must increase along each row, got some that decrease or repeat: pass mask=, 1 = token, if that is "
            "padding, or packed=True for packed documents; otherwise use Positions(coords, order=..., document=...)"
            f"{_inverted(ids, is_token)}"
        )
    if packed and is_readable(ids) and ids.numel() and ids.dim() == 2:
        _check_packed(ids, is_token)
    numbers = (restarts | begins(document)).long().cumsum(1) - 1
    return ids.long(), order, numbers.masked_fill(~is_token, PADDING)


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
                at = step.to(coords.dtype)  # a number times integers would be of single precision
                line = torch.stack([c + s * at for c, s in zip(span.coords, span.steps, strict=True)], -1)
                stated_coords[n, where] = line.reshape(coords[n, where].shape).to(coords.dtype)
    seen = stated_document != PADDING
    same = torch.equal(stated_document, document) and torch.equal(stated_coords, coords)
    return same and torch.equal(stated_order[seen], order[seen])


class PositionError(ValueError):
    """A position that a scheme cannot encode. The message names the scheme, its limit and the position."""


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Positions:
    """The positions of a batch of token rows.

    Each token has:

    - ``coords`` (B or 1, N[, axes]), int64, float32 or float64: what a *scheme* encodes. May be offset, repeated,
      unsorted, fractional, or have several axes (row and column of an image patch).
    - ``order`` (B or 1, N), int64: what the *causal mask* compares. A query attends to keys whose order is not above
      its own, so tokens of equal order, such as a bidirectional prefix, attend to one another.
    - ``document`` (B or 1, N), int64: tokens attend only within their own document. -1 is padding, which attends to
      nothing and is attended to by nothing.
    - ``segment`` (B or 1, N), int64 or None: premise or hypothesis, for schemes that encode it.

    By default ``order`` is 0..N-1 and every token is in document 0. A single row is broadcast over the batch. Instances
    are immutable: every method returns new positions, and the tensors must not be modified in place.

    ``layout`` is what is known of the values without reading them; see `with_layout`.

    >>> Positions.arange(5)[2:].coords
    tensor([[2, 3, 4]])

    Raises ValueError for a wrong shape, dtype or device, naming the argument.
    """

    coords: Shaped[Tensor, "rows tokens *axes"]
    order: Int[Tensor, "rows tokens"]
    document: Int[Tensor, "rows tokens"]
    segment: Int[Tensor, "rows tokens"] | None

    if TYPE_CHECKING:  # not dataclass fields, which `help` lists
        _layout: Layout  # what is known so far
        _is_read: bool  # whether the values were read, or need not be
    _is_shard: ClassVar[bool] = False  # whether the texts have tokens elsewhere; set on instances

    def __init__(
        self,
        coords: Tensor,
        *,
        order: Tensor | None = None,
        document: Tensor | None = None,
        segment: Tensor | None = None,
    ) -> None:
        batch = validation.check_facts(coords, order=order, document=document, segment=segment)
        if coords.is_floating_point() and validation.is_readable(coords) and not coords.isfinite().all():
            raise PositionError("coords must be finite, got inf or nan")
        validation.check_exact(coords)
        tokens = coords.size(1)
        layout = Layout(tokens)
        if order is None and document is None:  # a single text, whatever its coordinates
            layout = Layout(tokens, ((Span(0, tokens, 0, 0, steps=(1,) * validation.axes_of(coords)),),))
        order = torch.arange(tokens, device=coords.device)[None] if order is None else order
        document = torch.zeros((1, tokens), dtype=torch.int64, device=coords.device) if document is None else document
        self._set(coords=coords, order=order, document=document, segment=segment, _layout=layout, _is_read=False)
        self._set(**self._each(lambda x: compat.unsplit(x, 1).expand(batch, *x.shape[1:])))

    def _set(self, **fields: object) -> Positions:
        for name, field in fields.items():  # the class is frozen
            object.__setattr__(self, name, field)
        return self

    def _of(self, layout: Layout) -> Positions:
        return self._set(_layout=layout, _is_read=layout.rows is not None)

    @property
    def layout(self) -> Layout:
        """How the tokens follow one another: known from construction or, on the CPU, read from the values once.

        On a GPU, where reading would synchronize, and in a compiled graph nothing is read: see `with_layout`.
        """
        if not self._is_read and validation.is_readable(self.order):
            self._set(_is_read=True)
            if not self._layout.is_whole:
                self._set(_layout=read(self.coords, self.order, self.document))
        return self._layout

    def with_layout(self, layout: Layout | None = None) -> Positions:
        """The same positions with this layout. By default it is read from the values, which synchronizes a GPU.

        With a layout, attention uses its fast paths in a compiled graph and on a GPU too. Raises ValueError for a
        layout that does not match the values, where they can be read without synchronizing.
        """
        check_type("layout", layout, Layout, None)
        if layout is None:
            return self._like()._of(read(self.coords, self.order, self.document))
        if layout.tokens != self.order.size(1):
            raise ValueError(f"layout must have {len(self)} tokens like the positions, got {layout.tokens}")
        if validation.is_readable(self.order) and not agree(layout, self.coords, self.order, self.document):
            raise ValueError(f"layout must match the positions, {self.layout}, got {layout}")
        return self._like()._of(layout)

    @classmethod
    def arange(cls, n: int, *misplaced: None, start: int = 0, device: torch.device | str | None = None) -> Positions:
        """One row of text: coordinates and order ``start, start + 1, ..., start + n - 1``. ``start`` is passed by name,
        since `torch.arange` takes a start and an end.

        >>> Positions.arange(3, start=7).coords
        tensor([[7, 8, 9]])
        """
        if misplaced:
            raise TypeError(
                f"arange takes the number of tokens by position, and start by name: pass "
                f"Positions.arange({n}, start={misplaced[0]}) for {n} tokens from {misplaced[0]} on, or "
                f"Positions.arange(stop - start, start=start)"
            )
        validation.check_not_negative(n=n)
        validation.check_whole(start=start)
        validation.check_held("start", start, start + n)
        line = torch.arange(start, start + n, device=validation.device_of(device))[None]
        span = Span(0, n, 0, start, coords=(start,))
        bounds = (start, start + n - 1) if n else None
        return cls(line, order=line, document=torch.zeros_like(line))._of(Layout(n, ((span,),), bounds))

    @classmethod
    def grid(
        cls,
        height: int,
        width: int,
        *,
        frames: int | None = None,
        extent: tuple[int, int] | None = None,
        prefix: int = 0,
        device: torch.device | str | None = None,
    ) -> Positions:
        """One row of image patches in raster order, coordinates (row, column); with ``frames``, the patches of a video,
        frame by frame, coordinates (frame, row, column).

        ``extent`` (height, width) is the size of the grid that the model was trained on. The patches of this grid are
        interpolated over it: their centers are at the fractional coordinates (i + 1/2) extent/size - 1/2. ``prefix``
        tokens, such as a class token and registers, come first, at the origin, where a rotation is the identity.

        >>> Positions.grid(2, 3).coords[0].tolist()
        [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
        """
        validation.check_not_negative(height=height, width=width, prefix=prefix, frames=0 if frames is None else frames)
        positions = cls(grid_coords(height, width, frames, extent, prefix, validation.device_of(device)))
        if extent is not None or torch.compiler.is_compiling():  # the number of rows may be symbolic
            return positions
        return positions._of(grid_layout(height, width, frames, prefix))

    @classmethod
    def multimodal(
        cls,
        parts: Sequence[int | tuple[int, int, int] | tuple[int, int, int, float]],
        start: int = 0,
        *,
        tokens_per_second: float | None = None,
        device: torch.device | str | None = None,
    ) -> Positions:
        """One row of text with images or videos in it, coordinates (time, row, column), as M-RoPE defines them.

        An int n is n tokens of text: their three coordinates are equal and increase by one per token. (frames, height,
        width) is a video, or an image of one frame: its patches, frame by frame, are counted along each axis from its
        start. The next part starts at the highest coordinate so far plus one, on every axis; `following` continues this
        way. (frames, height, width, seconds) is a video with so many seconds from one frame of patches to the next,
        such as its temporal patch size divided by its frames per second: frame n is at time floor(n seconds
        ``tokens_per_second``), as in Qwen2.5-VL.

        >>> Positions.multimodal([2, (1, 2, 2), 1]).coords[0].tolist()
        [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [2, 3, 2], [2, 3, 3], [4, 4, 4]]

        `cat` with ``documents="new"`` packs several into one row; `from_ids` takes ids (rows, tokens, 3) and a mask.
        Source: Wang et al. 2024, "Qwen2-VL", section 2.1. In transformers 5.23.0 text after a video starts at the
        larger of height and width, so its coordinates can overlap those of a longer video.
        """
        validation.check_whole(start=start)
        coords, layout = multimodal(parts, start, tokens_per_second, validation.device_of(device))
        return cls(coords) if torch.compiler.is_compiling() else cls(coords)._of(layout)

    @classmethod
    def packed(
        cls,
        lengths: Sequence[int] | Sequence[Sequence[int]] | Int[Tensor, "*rows documents"] | None = None,
        *,
        cu_seqlens: Sequence[int] | Int[Tensor, " ends"] | None = None,
        max_seqlen: int | None = None,
        device: torch.device | str | None = None,
    ) -> Positions:
        """Packed documents: coordinates restart in each, order continues, and documents do not attend to one another.

        ``lengths`` are the document lengths of one row, or one sequence per row; shorter rows are padded on the right.
        ``cu_seqlens`` are their cumulative sums from 0, as for FlashAttention, of one row, and ``max_seqlen`` a bound
        of their lengths, which is checked. A tensor of either is read, which synchronizes a GPU, and its device is the
        default.

        >>> packed = Positions.packed([2, 3])  # or Positions.packed(cu_seqlens=[0, 2, 5])
        >>> packed.coords.tolist(), packed.document.tolist()
        ([[0, 1, 0, 1, 2]], [[0, 0, 1, 1, 1]])
        """
        coords, order, document, layout = packed(lengths, cu_seqlens, max_seqlen, validation.device_of(device))
        return cls(coords, order=order, document=document)._of(layout)

    @classmethod
    def padded(cls, mask: Bool[Tensor, "rows tokens"] | Int[Tensor, "rows tokens"]) -> Positions:
        """Rows of text with padding anywhere (left, right, inside): ``mask`` is True, or 1, where there is a token, or
        numbers the documents of each row: 1 1 1 2 2 0, with 0 for padding.

        Coordinates count the tokens of each document, order those of each row. Both skip the padding.

        >>> Positions.padded(torch.tensor([[False, True, True]])).coords
        tensor([[0, 0, 1]])
        """
        document = validation.documents_of("mask", mask)
        count = counted(document != PADDING)
        first = torch.where(begins(document), count, 0).cummax(1).values
        positions = cls((count - first).clamp(min=0), order=count, document=document)
        return positions._of(Layout(mask.size(1), None, (0, max(mask.size(1) - 1, 0))))

    @classmethod
    def from_ids(
        cls, ids: Int[Tensor, "rows tokens *axes"], mask: Tensor | None = None, *, packed: bool = False
    ) -> Positions:
        """From a model's ``position_ids`` (rows, tokens[, axes]) and its ``attention_mask`` (rows, tokens), 1 = token,
        or the number of a token's document, from 1 on.

        The ids become coordinates. Order counts a row's tokens from its first id, so new tokens come after a cache, but
        from 0 with ``packed`` or several axes. With ``packed`` a document begins wherever an id is not above the
        previous one or, of three axes, the first decreases, all repeat or all are 0. Without it, decreasing ids raise
        ValueError, where they can be read. M-RoPE's (3, rows, tokens) are taken too. Those of two or three tokens
        need a mask, since they may be three rows.

        >>> Positions.from_ids(torch.tensor([[0, 1, 2, 0, 1]]), packed=True).document
        tensor([[0, 0, 0, 1, 1]])
        """
        coords, order, document = of_ids(ids, mask, packed)
        return cls(coords, order=order, document=document)

    @staticmethod
    def cat(parts: Sequence[Positions], *, documents: Literal["same", "new"] | None = None) -> Positions:
        """Concatenates positions along the tokens. Row counts must be equal or 1; all parts have a segment, or none.

        Equal document numbers mean the same document, as for a cache and the tokens that follow it; with
        ``documents="new"`` every part gets new document numbers. By default, parts whose orders overlap within a
        document raise ValueError, since this is usually a mistake; ``documents="same"`` allows it. Coordinates of
        several dtypes are promoted.
        """
        validation.check_parts(parts, Positions, documents)
        batch = max([part.rows for part in parts if part.rows != 1] or [1])  # a graph knows no max with a default
        wide = [part.expand(batch) for part in parts]
        if documents == "new":
            numbered = zip(wide, renumbered([part.document for part in wide]), strict=True)
            wide = [part._like(document=document)._of(Layout(part.order.size(1))) for part, document in numbered]
        layout = join([part.layout for part in wide], batch)
        if documents is None and (twice := overlap(layout)) is not None:
            raise ValueError(
                f"parts have tokens of document {twice} at the same order: pass documents='new' if each part is a "
                "separate text, or use positions.following(n) to continue one"
            )
        named = [part._each(lambda x: x) for part in wide]
        names = [name for name, x in named[0].items() if x is not None]  # all parts have a segment, or none
        joined = Positions(**{name: torch.cat([part[name] for part in named], 1) for name in names})
        return joined._of(layout)._set(_is_shard=any(part._is_shard for part in parts))

    def __getitem__(self, index: slice | Int[Tensor, " chosen"]) -> Positions:
        """Tokens ``a:b`` of every row, or those at an index tensor (a permutation, a shard)."""
        tokens = self.order.size(1)  # len() would specialize a graph to one length
        validation.check_index(index, tokens)
        tensors = self._each(lambda x: x)
        for name, x in tensors.items():  # a function that refers to a symbolic index would have a graph for each
            tensors[name] = None if x is None else x[:, index]
        chosen = Positions(**tensors)._set(_is_shard=self._is_shard)
        if isinstance(index, slice) and index.step in (None, 1):
            start, stop = validation.ends_of(index, tokens)
            layout = self._layout[slice(start, max(start, stop))]
            return chosen._set(_layout=layout, _is_read=self._is_read and layout.rows is not None)
        return chosen._set(_layout=Layout(chosen.order.size(1), None, self._layout.bounds), _is_read=False)

    def shard(self, of: Any, order: Order = "zigzag") -> Positions:
        """The tokens that one process of several holds. ``of`` is a mesh of one axis, or (rank, world); for ``order``
        see `posenc.distributed.Sharding`, which also divides tensors and runs attention.

        >>> Positions.arange(8).shard((1, 2)).coords
        tensor([[2, 3, 4, 5]])
        """
        rank, world = place_of(of)
        return self[indices(self.layout, world, order)[rank].to(self.device)]._set(_is_shard=world > 1)

    def expand(self, rows: int) -> Positions:
        """The same positions for ``rows`` rows: a view of a single row. Raises ValueError if the rows do not match."""
        validation.check_not_negative(rows=rows)
        if self.rows == rows:
            return self
        if self.rows != 1:
            raise ValueError(f"positions have {self.rows} rows, which do not match a batch of {rows}")
        return self._like(**self._each(lambda x: x.expand(rows, *x.shape[1:])))

    def shift(self, offset: int | float) -> Positions:
        """Adds ``offset`` to every coordinate; order and documents stay. A float makes int64 coordinates float64."""
        return self._transformed(1, validation.real("offset", offset))

    def scale(self, factor: int | float) -> Positions:
        """Multiplies every coordinate by ``factor``, as `shift` adds to it."""
        return self._transformed(validation.real("factor", factor), 0)

    def _transformed(self, factor: int | float, offset: int | float) -> Positions:
        if isinstance(factor, float) or isinstance(offset, float) or self.coords.is_floating_point():
            coords = self.coords if self.coords.is_floating_point() else self.coords.double()
            # Coordinates may be rounded, so the layout has to be read again.
            coords = coords * factor + offset
            validation.check_exact(coords)
            return self._like(coords=coords, _layout=self._layout.without_coords(), _is_read=False)
        for end in (0, *(self.layout.bounds or ())):
            validation.check_held("factor" if offset == 0 else "offset", factor * end + offset)
        return self._like(coords=self.coords * factor + offset, _layout=self._layout.shifted(offset, factor))

    def with_coords(self, coords: Shaped[Tensor, "rows tokens *axes"]) -> Positions:
        """The same tokens at other coordinates, with one row or as many as there are. Order and documents stay.

        Raises ValueError for another number of tokens.
        """
        if not isinstance(coords, Tensor) or coords.dim() not in (2, 3) or coords.size(1) != self.order.size(1):
            raise ValueError(f"coords must be a tensor (rows, {len(self)}[, axes]), got {shown(coords)}")
        made = Positions(coords, order=self.order, document=self.document, segment=self.segment)
        return made._set(_layout=self._layout.without_coords(), _is_read=False, _is_shard=self._is_shard)

    def in_chunks(self, size: int) -> Positions:
        """The same tokens, with every chunk of a document as a separate document: for layers with chunked attention.

        The chunk of a token at coordinate p is floor(p / size): chunks restart in each document, padding does not shift
        them, and cached tokens keep theirs.

        >>> Positions.arange(5).in_chunks(2).document.unique_consecutive(return_counts=True)[1]
        tensor([2, 2, 1])
        """
        size = whole("size", size)
        number = self.scalar("in_chunks").div(size, rounding_mode="floor").long()
        layout = Layout(self.order.size(1), None, self._layout.bounds)  # len() would specialize an exported program
        if not torch.compiler.is_compiling():
            layout = self.layout.in_chunks(size, lambda s, n: replace(s, document=document_of_chunk(s.document, n)))
        return self._like(document=document_of_chunk(self.document, number))._of(layout)

    def with_segment(self, segment: Int[Tensor, "rows tokens"]) -> Positions:
        """The same positions, with the segment of each token."""
        made = Positions(self.coords, order=self.order, document=self.document, segment=segment)
        return made._set(_layout=self._layout, _is_read=self._is_read, _is_shard=self._is_shard)

    def following(self, n: int = 1) -> Positions:
        """The ``n`` positions that come after these in each row, for generated tokens.

        They continue the document, coordinate and order of the row's last token. With three axes, (time, row, column)
        as in `multimodal`, they are text: on every axis, the highest coordinate of the last token plus 1 .. n. Raises
        ValueError for two axes: an image has no next token.
        """
        coords = self.coords if validation.axes_of(self.coords) == 3 else self.scalar("following")
        validation.check_not_negative(n=n)
        if self.order.size(1) == 0:
            text = Positions.arange(n, device=self.device).expand(self.rows)
            line = text.coords if coords.dim() == 2 else text.coords[..., None].expand(-1, -1, 3)
            return text if coords.dim() == 2 and coords.dtype == line.dtype else text.with_coords(line.to(coords.dtype))
        known = self._each(lambda x: x) | {"coords": coords}
        return Positions(**after(known, self._layout, n))._of(layout_after(self._layout, n))

    def to(self, device: torch.device | str) -> Positions:
        """The same positions on another device."""
        device = validation.device_of(device) or self.device
        return self._like(**self._each(lambda x: x.to(device)))

    def _each(self, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        tensors = {name: getattr(self, name) for name in ("coords", "order", "document", "segment")}
        return {name: None if x is None else change(x) for name, x in tensors.items()}

    def _like(self, **changes: Any) -> Positions:
        other: Positions = object.__new__(Positions)
        return other._set(**{**vars(self), **changes})

    def __len__(self) -> int:
        return self.coords.size(1)

    @property
    def rows(self) -> int:
        """The batch size, or 1 if one row is broadcast over the batch."""
        return self.coords.size(0)

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.coords.device

    @property
    def last(self) -> Int[Tensor, " rows"]:
        """The index of the last token of each row, that of the highest order. Padding is ignored."""
        return last_of(self.order, self.document)

    @property
    def lengths(self) -> Shaped[Tensor, " rows"]:
        """The length of each row's text: the highest coordinate on any axis, plus one. Padding is ignored.

        Raises ValueError for a shard, and for rows that are known to hold several documents.
        """
        if self._is_shard:
            raise ValueError(
                "a shard does not know the length of its text: use posenc.distributed, or pass "
                "context=Context(lengths=whole.lengths) with the positions of the whole text"
            )
        if any(len({span.document for span in row}) > 1 for row in self.layout.rows or ()):
            raise ValueError(
                "a row of several documents has no single length: give each document its own row, or pass the length "
                "to scale each row by with context=Context(lengths=...)"
            )
        coords = self.coords if self.coords.dim() == 2 else self.coords.amax(-1)
        if not torch.compiler.is_compiling() and coords.size(1) == 0:
            return coords.new_zeros(coords.size(0))
        return coords.masked_fill(self.document == PADDING, -1).amax(1) + 1

    def __repr__(self) -> str:
        axes = f", axes={self.coords.size(2)}" if self.coords.dim() == 3 else ""
        return f"Positions(rows={self.rows}, tokens={len(self)}{axes}, {self.coords.dtype}, {self.device})"

    def scalar(self, scheme: str) -> Shaped[Tensor, "rows tokens"]:
        """The coordinate of each token. Raises ValueError, naming ``scheme``, if tokens have several axes."""
        if validation.axes_of(self.coords) == 1:
            return self.coords.view(self.order.shape)
        raise ValueError(f"{scheme} takes one coordinate per token, got positions of {self.coords.size(2)} axes")


def _flatten(positions: Positions) -> tuple[list[Tensor], tuple[bool, bool]]:
    tensors = (positions.coords, positions.order, positions.document, positions.segment)
    return [x for x in tensors if x is not None], (positions.segment is not None, positions._is_shard)


def _unflatten(tensors: Any, kept: Any) -> Positions:
    """The tensors may have changed, so the layout is dropped."""
    coords, order, document, *segment = tensors
    has_segment, is_shard = kept
    if isinstance(coords, Tensor) and coords.is_floating_point() and coords.dtype not in validation.NUMBERS:
        raise ValueError(
            f"positions were cast to {coords.dtype}, which cannot tell 256 from 257: cast only the other tensors"
        )
    tokens = order.shape[1] if isinstance(order, Tensor) else 0
    fields = {"coords": coords, "order": order, "document": document, "segment": segment[0] if has_segment else None}
    made: Positions = object.__new__(Positions)
    return made._set(**fields, _layout=Layout(tokens), _is_read=False, _is_shard=is_shard)


compat.register_pytree(Positions, _flatten, _unflatten, "posenc.Positions")
