"""Where tokens are: coordinates, order, document and segment, passed as data and never read off a tensor's index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from posenc import compat
from posenc.arguments import check_type, shown, whole
from posenc.positions import builders as facts
from posenc.positions import validation as givens
from posenc.positions.layout import PADDING as PADDING
from posenc.positions.layout import Layout, Span, document_of_chunk, join, overlap, read


class PositionError(ValueError):
    """A position that a scheme cannot encode: the message names the scheme, its limit and the position."""


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Positions:
    """The positions of a batch of token rows.

    Four facts about every token, each answering a different question:

    - ``coords`` (B or 1, N[, axes]), int64, float32 or float64: what a *scheme* sees. May be offset, repeated,
      unsorted, fractional, or have several axes (row and column of an image patch).
    - ``order`` (B or 1, N), int64: what *causality* sees. A query sees keys whose order is not above its own, so tokens
      of equal order, such as a prefix that sees itself whole, see one another.
    - ``document`` (B or 1, N), int64: *who may see whom*. Tokens see their own document alone; -1 is padding, which
      belongs to none: nobody sees it and it sees nobody.
    - ``segment`` (B or 1, N), int64 or None: premise or hypothesis, for schemes that encode it.

    Left out, ``order`` counts 0..N-1 and every token is of document 0. One row serves the whole batch. Instances are
    immutable: every method returns new positions, and the tensors must not be written to either.

    ``layout`` says what is known of the values without reading them; see `with_layout`.

    >>> Positions.arange(5)[2:].coords
    tensor([[2, 3, 4]])

    Raises ValueError for a wrong shape, dtype or device, naming the argument.
    """

    coords: Shaped[Tensor, "rows tokens *axes"]
    order: Int[Tensor, "rows tokens"]
    document: Int[Tensor, "rows tokens"]
    segment: Int[Tensor, "rows tokens"] | None

    if TYPE_CHECKING:  # not among the fields, which `help` lists
        _layout: Layout  # what is known so far
        _is_read: bool  # whether the values have nothing more to say

    def __init__(
        self,
        coords: Tensor,
        *,
        order: Tensor | None = None,
        document: Tensor | None = None,
        segment: Tensor | None = None,
    ) -> None:
        batch = givens.check_facts(coords, order=order, document=document, segment=segment)
        if coords.is_floating_point() and givens.is_readable(coords) and not coords.isfinite().all():
            raise PositionError("coords must be finite, got one that is infinite or no number")
        tokens = coords.size(1)
        layout = Layout(tokens)
        if order is None and document is None:  # one text, wherever its tokens are
            layout = Layout(tokens, ((Span(0, tokens, 0, 0, steps=(1,) * givens.axes_of(coords)),),))
        if order is None:
            order = torch.arange(tokens, device=coords.device)[None]
        if document is None:
            document = torch.zeros((1, tokens), dtype=torch.int64, device=coords.device)
        self._set(coords=coords, order=order, document=document, segment=segment, _layout=layout, _is_read=False)
        self._set(**self._each(lambda x: compat.unsplit(x, 1).expand(batch, *x.shape[1:])))

    def _set(self, **fields: object) -> Positions:
        for name, field in fields.items():  # the class is frozen
            object.__setattr__(self, name, field)
        return self

    def _of(self, layout: Layout) -> Positions:
        """The same positions, just made, with their layout."""
        return self._set(_layout=layout, _is_read=layout.rows is not None)

    # -- what is known of them ----------------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """How the tokens follow one another: kept from how they were made or, on the CPU, read from the values once.

        On a GPU, where this would wait, and in a compiled graph nothing is read: see `with_layout`.
        """
        is_whole = self._layout.rows is not None and all(span.coords is not None for span in sum(self._layout.rows, ()))
        if not (is_whole or self._is_read) and givens.is_readable(self.order):
            self._set(_layout=read(self.coords, self.order, self.document), _is_read=True)
        return self._layout

    def with_layout(self, layout: Layout | None = None) -> Positions:
        """The same positions with this layout. Left out, it is read from the values now, which waits for a GPU.

        With a layout, attention takes the fast ways in a compiled graph and on a GPU too. ValueError for a layout that
        does not agree with the values, where they can be read without waiting.
        """
        check_type("layout", layout, Layout, None)
        if layout is None:
            return self._like()._of(read(self.coords, self.order, self.document))
        if layout.tokens != len(self):
            raise ValueError(f"layout must be of {len(self)} tokens like the positions, got one of {layout.tokens}")
        if givens.is_readable(self.order) and not facts.agree(layout, self.coords, self.order, self.document):
            raise ValueError(f"layout must be that of the positions, {self.layout}, got {layout}")
        return self._like()._of(layout)

    # -- making them --------------------------------------------------------------------------------------------------

    @classmethod
    def arange(cls, n: int, start: int = 0, *, device: torch.device | str | None = None) -> Positions:
        """One row of text: coordinates and order ``start, start + 1, ..., start + n - 1``.

        >>> Positions.arange(3, start=7).coords
        tensor([[7, 8, 9]])
        """
        givens.check_whole(n=n, start=start)
        givens.check_not_negative(n=n)
        line = torch.arange(start, start + n, device=givens.device_of(device))[None]
        document = torch.zeros_like(line)
        span = Span(0, n, 0, start, coords=(start,))
        bounds = (start, start + n - 1) if n else None
        return cls(line, order=line, document=document)._of(Layout(n, ((span,),), bounds))

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
        """One row of image patches in raster order, coordinates (row, column); with ``frames``, of a video's patches,
        frame by frame, coordinates (frame, row, column).

        With an ``extent`` (height, width), that of the grid a model was trained on, the patches of this grid are laid
        over that one: their middles are coordinates (i + 1/2) extent/size - 1/2, which are fractional. ``prefix``
        tokens, such as a class token and registers, come first; they stand at the origin, where a rotation turns
        nothing.

        >>> Positions.grid(2, 3).coords[0].tolist()
        [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
        """
        givens.check_not_negative(height=height, width=width, prefix=prefix)
        if frames is not None:
            givens.check_not_negative(frames=frames)
        positions = cls(facts.grid_coords(height, width, frames, extent, prefix, givens.device_of(device)))
        if extent is not None or torch.compiler.is_compiling():  # a compiler may not know how many rows there are
            return positions
        return positions._of(facts.grid_layout(height, width, frames, prefix))

    @classmethod
    def multimodal(
        cls,
        parts: Sequence[int | tuple[int, int, int]],
        start: int = 0,
        *,
        device: torch.device | str | None = None,
    ) -> Positions:
        """One row of text with images or videos in it, coordinates (time, row, column), by the rule of M-RoPE.

        A number is so many tokens of text, whose three coordinates are equal and count on. (frames, height, width) is
        an image, of one frame, or a video: patches frame by frame, counted along each axis from where it begins. What
        comes next begins at the highest coordinate so far plus one, along every axis; `following` goes on by that rule.

        >>> Positions.multimodal([2, (1, 2, 2), 1]).coords[0].tolist()
        [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [2, 3, 2], [2, 3, 3], [4, 4, 4]]

        `cat` with ``documents="new"`` packs several into one row; `from_ids` takes ids (rows, tokens, 3) and a mask.
        Source: Wang et al. 2024, "Qwen2-VL", section 2.1. In transformers 5.23.0 text after a video begins at the
        larger of height and width, so a longer video is overtaken.
        """
        givens.check_whole(start=start)
        coords, layout = facts.multimodal(parts, start, givens.device_of(device))
        positions = cls(coords)
        return positions if torch.compiler.is_compiling() else positions._of(layout)

    @classmethod
    def packed(
        cls, lengths: Sequence[int] | Sequence[Sequence[int]], *, device: torch.device | str | None = None
    ) -> Positions:
        """Documents laid end to end: coordinates restart in each, order runs on, no document sees another.

        ``lengths`` are those of one row, or one sequence per row; rows that end early are padded on the right.

        >>> packed = Positions.packed([2, 3])
        >>> packed.coords.tolist(), packed.document.tolist()
        ([[0, 1, 0, 1, 2]], [[0, 0, 1, 1, 1]])
        """
        coords, order, document, layout = facts.packed(lengths, givens.device_of(device))
        return cls(coords, order=order, document=document)._of(layout)

    @classmethod
    def padded(cls, mask: Bool[Tensor, "rows tokens"] | Int[Tensor, "rows tokens"]) -> Positions:
        """Rows of text with padding anywhere (left, right, inside): ``mask`` is True, or 1, where there is a token.

        Coordinates and order count the tokens of each row and skip the padding.

        >>> Positions.padded(torch.tensor([[False, True, True]])).coords
        tensor([[0, 0, 1]])
        """
        mask = givens.token_mask("mask", mask)
        count = facts.counted(mask)
        positions = cls(count, order=count, document=torch.where(mask, 0, PADDING))
        return positions._of(Layout(len(positions), None, (0, max(mask.size(1) - 1, 0))))

    @classmethod
    def from_ids(
        cls, ids: Int[Tensor, "rows tokens *axes"], mask: Tensor | None = None, *, packed: bool = False
    ) -> Positions:
        """From a model's ``position_ids`` (rows, tokens[, axes]) and its mask of tokens (rows, tokens), 1 = token.

        The ids become coordinates; order counts the tokens of each row. With ``packed`` a document begins wherever an
        id is not above the one before it. Without it, ids that fall are a ValueError, where they can be read.

        >>> Positions.from_ids(torch.tensor([[0, 1, 2, 0, 1]]), packed=True).document
        tensor([[0, 0, 0, 1, 1]])
        """
        order, document = facts.of_ids(ids, mask, packed)
        return cls(ids.long(), order=order, document=document)

    @staticmethod
    def cat(parts: Sequence[Positions], *, documents: Literal["same", "new"] | None = None) -> Positions:
        """The tokens of all parts, in turn. Rows must agree or be one; every part has a segment or none has.

        Documents of equal number are one document, as those of a cache and of what follows it are; with
        ``documents="new"`` every part has documents of its own. Left out, parts of one document whose orders overlap
        are a ValueError, since their tokens could not be told apart; ``documents="same"`` says that they are meant so.
        Coordinates of several dtypes become the widest.
        """
        givens.check_parts(parts, Positions, documents)
        batch = max((part.rows for part in parts if part.rows != 1), default=1)
        wide = [part.expand(batch) for part in parts]
        segments = [part.segment for part in wide if part.segment is not None]
        if documents == "new":
            numbered = facts.renumbered([part.document for part in wide])
            wide = [part._like(document=d)._of(Layout(len(part))) for part, d in zip(wide, numbered, strict=True)]
        layout = join([part.layout for part in wide], batch)
        if documents is None and (twice := overlap(layout)) is not None:
            raise ValueError(
                f"parts have tokens of document {twice} at the same order: pass documents='new' if each part is a text "
                "of its own, or positions.following(n) for what continues one"
            )
        joined = {name: torch.cat([getattr(p, name) for p in wide], 1) for name in ("coords", "order", "document")}
        return Positions(**joined, segment=torch.cat(segments, 1) if segments else None)._of(layout)

    # -- changing them ------------------------------------------------------------------------------------------------

    def __getitem__(self, index: slice | Int[Tensor, " chosen"]) -> Positions:
        """Tokens ``a:b`` of every row, or those at an index tensor (a permutation, a shard)."""
        tokens = self.order.size(1)  # len() would pin a graph to one length
        givens.check_index(index, tokens)
        chosen = Positions(**self._each(lambda x: x[:, index]))
        if isinstance(index, slice) and index.step in (None, 1):
            start, stop = givens.ends_of(index, tokens)
            layout = self._layout[slice(start, max(start, stop))]
            return chosen._set(_layout=layout, _is_read=self._is_read and layout.rows is not None)
        return chosen._set(_layout=Layout(chosen.order.size(1), None, self._layout.bounds), _is_read=False)

    def expand(self, rows: int) -> Positions:
        """The same positions for ``rows`` rows: one row is repeated (as a view), as many are kept, else ValueError."""
        givens.check_not_negative(rows=rows)
        if self.rows == rows:
            return self
        if self.rows != 1:
            raise ValueError(f"positions have {self.rows} rows, which do not fit a batch of {rows}")
        return self._like(**self._each(lambda x: x.expand(rows, *x.shape[1:])))

    def shift(self, offset: int | float) -> Positions:
        """Every coordinate moved by ``offset``; order and documents stay. A float makes whole coordinates float64."""
        return self._transformed(1, givens.real("offset", offset))

    def scale(self, factor: int | float) -> Positions:
        """Every coordinate times ``factor``: a text or a grid laid over a longer or a shorter one. Order and documents
        stay. A float makes whole coordinates float64."""
        return self._transformed(givens.real("factor", factor), 0)

    def _transformed(self, factor: int | float, offset: int | float) -> Positions:
        """Every coordinate c as factor c + offset."""
        if isinstance(factor, float) or isinstance(offset, float) or self.coords.is_floating_point():
            coords = self.coords if self.coords.is_floating_point() else self.coords.double()
            # They may be rounded now, so they are read again.
            return self._like(coords=coords * factor + offset, _layout=self._layout.without_coords(), _is_read=False)
        return self._like(coords=self.coords * factor + offset, _layout=self._layout.shifted(offset, factor))

    def with_coords(self, coords: Shaped[Tensor, "rows tokens *axes"]) -> Positions:
        """The same tokens at other coordinates, one row of them for all or one each. Order and documents stay.

        ValueError for coordinates of another number of tokens.
        """
        if not isinstance(coords, Tensor) or coords.dim() not in (2, 3) or coords.size(1) != len(self):
            raise ValueError(f"coords must be a tensor (rows, {len(self)}[, axes]), got {shown(coords)}")
        made = Positions(coords, order=self.order, document=self.document, segment=self.segment)
        return made._set(_layout=self._layout.without_coords(), _is_read=False)

    def in_chunks(self, size: int) -> Positions:
        """The same tokens, each chunk of a document a document of its own: what layers see that attend by chunks.

        Chunks are counted along the one coordinate, floor(p / size): they begin anew in each document, padding moves
        none, and tokens of a cache have the chunks that they had.

        >>> Positions.arange(5).in_chunks(2).document.unique_consecutive(return_counts=True)[1]
        tensor([2, 2, 1])
        """
        size = whole("size", size)
        number = self.scalar("in_chunks").div(size, rounding_mode="floor").long()
        document = document_of_chunk(self.document, number)
        cut = None if torch.compiler.is_compiling() else self.layout.in_chunks(size)
        if cut is None:
            return self._like(document=document, _layout=Layout(len(self), None, self._layout.bounds), _is_read=False)
        rows = [tuple(replace(s, document=document_of_chunk(s.document, n)) for s, n in row) for row in cut]
        return self._like(document=document)._of(Layout(len(self), tuple(rows), self._layout.bounds))

    def with_segment(self, segment: Int[Tensor, "rows tokens"]) -> Positions:
        """The same positions, with the segment of each token."""
        made = Positions(self.coords, order=self.order, document=self.document, segment=segment)
        return made._set(_layout=self._layout, _is_read=self._is_read)

    def following(self, n: int = 1) -> Positions:
        """The ``n`` positions that come after these in each row: what a model generates next.

        They continue the document of the row's last token, its coordinate and its order. With three axes, (time, row,
        column) as in `multimodal`, they are text: along every axis the highest coordinate of the last token, which for
        an image is that of its last corner, plus 1 .. n. Two axes are those of an image, which nothing continues.
        """
        coords = self.coords if givens.axes_of(self.coords) == 3 else self.scalar("following")
        givens.check_not_negative(n=n)
        if len(self) == 0:
            text = Positions.arange(n, device=self.device).expand(self.rows)
            line = text.coords if coords.dim() == 2 else text.coords[..., None].expand(-1, -1, 3)
            is_text = coords.dim() == 2 and coords.dtype == torch.int64
            return text if is_text else Positions(line.to(coords.dtype), order=text.order)
        known = self._each(lambda x: x) | {"coords": coords}
        return Positions(**facts.after(known, self._layout, n))._of(facts.layout_after(self._layout, n))

    def to(self, device: torch.device | str) -> Positions:
        """The same positions on another device."""
        device = givens.device_of(device) or self.device
        return self._like(**self._each(lambda x: x.to(device)))

    def _each(self, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """The facts by name, each changed so."""
        tensors = {name: getattr(self, name) for name in ("coords", "order", "document", "segment")}
        return {name: None if x is None else change(x) for name, x in tensors.items()}

    def _like(self, **changes: Any) -> Positions:
        """Positions of the same tokens, with these fields changed."""
        other: Positions = object.__new__(Positions)
        return other._set(**{**vars(self), **changes})

    # -- reading them -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.coords.size(1)

    @property
    def rows(self) -> int:
        """Rows of positions: the batch size, or 1 where one row serves all."""
        return self.coords.size(0)

    @property
    def device(self) -> torch.device:
        """Where the positions are kept."""
        return self.coords.device

    @property
    def last(self) -> Int[Tensor, " rows"]:
        """The index in each row of its last token, the one of the highest order; padding does not count."""
        return facts.last_of(self.order, self.document)

    @property
    def lengths(self) -> Shaped[Tensor, " rows"]:
        """How long each row's text is by now: the highest coordinate along any axis, plus one. Padding does not count.

        ValueError for rows that are known to hold several documents, since each has a length of its own.
        """
        return facts.lengths_of(self.layout, self.coords, self.document)

    def __repr__(self) -> str:
        axes = f", axes={self.coords.size(2)}" if self.coords.dim() == 3 else ""
        return f"Positions(rows={self.rows}, tokens={len(self)}{axes}, {self.coords.dtype}, {self.device})"

    def scalar(self, scheme: str) -> Shaped[Tensor, "rows tokens"]:
        """The one coordinate of each token; ValueError in the name of ``scheme`` where tokens have several axes."""
        if self.coords.dim() == 2:
            return self.coords
        if self.coords.size(2) == 1:
            return self.coords[..., 0]
        raise ValueError(f"{scheme} takes one coordinate per token, got positions of {self.coords.size(2)} axes")


def _flatten(positions: Positions) -> tuple[list[Tensor], bool]:
    tensors = (positions.coords, positions.order, positions.document, positions.segment)
    return [x for x in tensors if x is not None], positions.segment is not None


def _unflatten(tensors: Any, has_segment: Any) -> Positions:
    """From tensors that may be other ones now: what was known of the values is not taken along."""
    coords, order, document, *segment = tensors
    givens.check_cast(coords)
    tokens = order.shape[1] if isinstance(order, Tensor) else 0
    fields = {"coords": coords, "order": order, "document": document, "segment": segment[0] if has_segment else None}
    made: Positions = object.__new__(Positions)
    return made._set(**fields, _layout=Layout(tokens), _is_read=False)


compat.register_pytree(Positions, _flatten, _unflatten, "posenc.Positions")
