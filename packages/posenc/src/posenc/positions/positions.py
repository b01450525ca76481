"""Token positions: coordinates, order, document and segment, passed as data instead of inferred from tensor indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from posenc import compat
from posenc.arguments import check_type, shown, whole
from posenc.positions import builders, orders, validation
from posenc.positions.layout import PADDING as PADDING
from posenc.positions.layout import Layout, Span, document_of_chunk, join, read


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
        """These new positions, with their layout set."""
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
        if layout.tokens != len(self):
            raise ValueError(f"layout must have {len(self)} tokens like the positions, got {layout.tokens}")
        if validation.is_readable(self.order) and not builders.agree(layout, self.coords, self.order, self.document):
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
        positions = cls(builders.grid_coords(height, width, frames, extent, prefix, validation.device_of(device)))
        if extent is not None or torch.compiler.is_compiling():  # the number of rows may be symbolic
            return positions
        return positions._of(builders.grid_layout(height, width, frames, prefix))

    @classmethod
    def multimodal(
        cls,
        parts: Sequence[int | tuple[int, int, int]],
        start: int = 0,
        *,
        device: torch.device | str | None = None,
    ) -> Positions:
        """One row of text with images or videos in it, coordinates (time, row, column), as M-RoPE defines them.

        An int n is n tokens of text: their three coordinates are equal and increase by one per token. (frames, height,
        width) is a video, or an image of one frame: its patches, frame by frame, are counted along each axis from its
        start. The next part starts at the highest coordinate so far plus one, on every axis; `following` continues this
        way.

        >>> Positions.multimodal([2, (1, 2, 2), 1]).coords[0].tolist()
        [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [2, 3, 2], [2, 3, 3], [4, 4, 4]]

        `cat` with ``documents="new"`` packs several into one row; `from_ids` takes ids (rows, tokens, 3) and a mask.
        Source: Wang et al. 2024, "Qwen2-VL", section 2.1. In transformers 5.23.0 text after a video starts at the
        larger of height and width, so its coordinates can overlap those of a longer video.
        """
        validation.check_whole(start=start)
        coords, layout = builders.multimodal(parts, start, validation.device_of(device))
        return cls(coords) if torch.compiler.is_compiling() else cls(coords)._of(layout)

    @classmethod
    def packed(
        cls,
        lengths: Sequence[int] | Sequence[Sequence[int]] | Int[Tensor, "*rows documents"] | None = None,
        *,
        cu_seqlens: Sequence[int] | Int[Tensor, " ends"] | None = None,
        device: torch.device | str | None = None,
    ) -> Positions:
        """Packed documents: coordinates restart in each, order continues, and documents do not attend to one another.

        ``lengths`` are the document lengths of one row, or one sequence per row; shorter rows are padded on the right.
        ``cu_seqlens`` are their cumulative sums from 0, as for FlashAttention, of one row. A tensor of either is read,
        which synchronizes a GPU, and its device is the default.

        >>> packed = Positions.packed([2, 3])  # or Positions.packed(cu_seqlens=[0, 2, 5])
        >>> packed.coords.tolist(), packed.document.tolist()
        ([[0, 1, 0, 1, 2]], [[0, 0, 1, 1, 1]])
        """
        coords, order, document, layout = builders.packed(lengths, cu_seqlens, validation.device_of(device))
        return cls(coords, order=order, document=document)._of(layout)

    @classmethod
    def padded(cls, mask: Bool[Tensor, "rows tokens"] | Int[Tensor, "rows tokens"]) -> Positions:
        """Rows of text with padding anywhere (left, right, inside): ``mask`` is True, or 1, where there is a token.

        Coordinates and order count the tokens of each row and skip the padding.

        >>> Positions.padded(torch.tensor([[False, True, True]])).coords
        tensor([[0, 0, 1]])
        """
        mask = validation.token_mask("mask", mask)
        count = builders.counted(mask)
        positions = cls(count, order=count, document=torch.where(mask, 0, PADDING))
        return positions._of(Layout(len(positions), None, (0, max(mask.size(1) - 1, 0))))

    @classmethod
    def from_ids(
        cls, ids: Int[Tensor, "rows tokens *axes"], mask: Tensor | None = None, *, packed: bool = False
    ) -> Positions:
        """From a model's ``position_ids`` (rows, tokens[, axes]) and its ``attention_mask`` (rows, tokens), 1 = token.

        The ids become coordinates. Order counts a row's tokens from its first id, so new tokens come after a cache, but
        from 0 with ``packed`` or several axes. With ``packed`` a document begins wherever an id is not above the
        previous one. Without it, decreasing ids raise ValueError, where they can be read.

        >>> Positions.from_ids(torch.tensor([[0, 1, 2, 0, 1]]), packed=True).document
        tensor([[0, 0, 0, 1, 1]])
        """
        order, document = builders.of_ids(ids, mask, packed)
        return cls(ids.long(), order=order, document=document)

    @staticmethod
    def cat(parts: Sequence[Positions], *, documents: Literal["same", "new"] | None = None) -> Positions:
        """Concatenates positions along the tokens. Row counts must be equal or 1; all parts have a segment, or none.

        Equal document numbers mean the same document, as for a cache and the tokens that follow it; with
        ``documents="new"`` every part gets new document numbers. By default, parts whose orders overlap within a
        document raise ValueError, since this is usually a mistake; ``documents="same"`` allows it. Coordinates of
        several dtypes are promoted.
        """
        validation.check_parts(parts, Positions, documents)
        batch = max((part.rows for part in parts if part.rows != 1), default=1)
        wide = [part.expand(batch) for part in parts]
        if documents == "new":
            numbered = zip(wide, builders.renumbered([part.document for part in wide]), strict=True)
            wide = [part._like(document=document)._of(Layout(len(part))) for part, document in numbered]
        layout = join([part.layout for part in wide], batch)
        builders.check_apart(layout, documents)
        named = [part._each(lambda x: x) for part in wide]
        names = [name for name, x in named[0].items() if x is not None]  # all parts have a segment, or none
        joined = Positions(**{name: torch.cat([part[name] for part in named], 1) for name in names})
        return joined._of(layout)._set(_is_shard=any(part._is_shard for part in parts))

    def __getitem__(self, index: slice | Int[Tensor, " chosen"]) -> Positions:
        """Tokens ``a:b`` of every row, or those at an index tensor (a permutation, a shard)."""
        tokens = self.order.size(1)  # len() would specialize a graph to one length
        validation.check_index(index, tokens)
        chosen = Positions(**self._each(lambda x: x[:, index]))._set(_is_shard=self._is_shard)
        if isinstance(index, slice) and index.step in (None, 1):
            start, stop = validation.ends_of(index, tokens)
            layout = self._layout[slice(start, max(start, stop))]
            return chosen._set(_layout=layout, _is_read=self._is_read and layout.rows is not None)
        return chosen._set(_layout=Layout(chosen.order.size(1), None, self._layout.bounds), _is_read=False)

    def shard(self, of: Any, order: orders.Order = "zigzag") -> Positions:
        """The tokens that one process of several holds. ``of`` is a mesh of one axis, or (rank, world); for ``order``
        see `posenc.distributed.Sharding`, which also divides tensors and runs attention.

        >>> Positions.arange(8).shard((1, 2)).coords
        tensor([[2, 3, 4, 5]])
        """
        index, world = orders.shard(self.layout, of, order)
        return self[index.to(self.device)]._set(_is_shard=world > 1)

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
        """Every coordinate c as factor c + offset."""
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
        if not isinstance(coords, Tensor) or coords.dim() not in (2, 3) or coords.size(1) != len(self):
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
        layout = Layout(len(self), None, self._layout.bounds)
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
        if len(self) == 0:
            text = Positions.arange(n, device=self.device).expand(self.rows)
            line = text.coords if coords.dim() == 2 else text.coords[..., None].expand(-1, -1, 3)
            return text if coords.dim() == 2 and coords.dtype == line.dtype else text.with_coords(line.to(coords.dtype))
        known = self._each(lambda x: x) | {"coords": coords}
        return Positions(**builders.after(known, self._layout, n))._of(builders.layout_after(self._layout, n))

    def to(self, device: torch.device | str) -> Positions:
        """The same positions on another device."""
        device = validation.device_of(device) or self.device
        return self._like(**self._each(lambda x: x.to(device)))

    def _each(self, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """The tensors by name, each with ``change`` applied."""
        tensors = {name: getattr(self, name) for name in ("coords", "order", "document", "segment")}
        return {name: None if x is None else change(x) for name, x in tensors.items()}

    def _like(self, **changes: Any) -> Positions:
        """Positions of the same tokens, with these fields changed."""
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
        return builders.last_of(self.order, self.document)

    @property
    def lengths(self) -> Shaped[Tensor, " rows"]:
        """The length of each row's text: the highest coordinate on any axis, plus one. Padding is ignored.

        Raises ValueError for a shard, and for rows that are known to hold several documents.
        """
        if self._is_shard:
            raise ValueError(orders.OF_SHARD)
        return builders.lengths_of(self.layout, self.coords, self.document)

    def __repr__(self) -> str:
        axes = f", axes={self.coords.size(2)}" if self.coords.dim() == 3 else ""
        return f"Positions(rows={self.rows}, tokens={len(self)}{axes}, {self.coords.dtype}, {self.device})"

    def scalar(self, scheme: str) -> Shaped[Tensor, "rows tokens"]:
        """The coordinate of each token. Raises ValueError, naming ``scheme``, if tokens have several axes."""
        if validation.axes_of(self.coords) == 1:
            return self.coords.view(self.order.shape)
        raise ValueError(f"{scheme} takes one coordinate per token, got positions of {self.coords.size(2)} axes")
