"""Where tokens are: coordinates, order, document and segment, passed as data and never read off a tensor's index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from posenc import compat
from posenc.arguments import check_choice, check_flag, check_type
from posenc.givens import axes_of, check_whole, described, device_of, ends_of, extent_of, is_readable, real, token_mask
from posenc.layout import PADDING as PADDING
from posenc.layout import Layout, Span, join, overlap, read

NUMBERS = (torch.int64, torch.float32, torch.float64)


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
        if not isinstance(coords, Tensor) or coords.dim() not in (2, 3):
            raise ValueError(f"coords must be a tensor (rows, tokens) or (rows, tokens, axes), got {described(coords)}")
        if coords.dtype not in NUMBERS:
            raise ValueError(
                "coords must be int64, float32 or float64 (half precision cannot tell 256 from 257), "
                f"got {coords.dtype}"
            )
        if coords.is_floating_point() and is_readable(coords) and not coords.isfinite().all():
            raise PositionError("coords must be finite, got one that is infinite or no number")
        tokens, rows = coords.size(1), coords.size(0)
        for name, value in (("order", order), ("document", document), ("segment", segment)):
            if value is None:
                continue
            if not isinstance(value, Tensor) or value.dim() != 2 or value.size(1) != tokens:
                raise ValueError(f"{name} must be a tensor (rows, {tokens}) like coords, got {described(value)}")
            if value.dtype != torch.int64:
                raise ValueError(f"{name} must be int64, got {value.dtype}")
            if value.device != coords.device:
                raise ValueError(f"{name} must be on {coords.device} like coords, got {value.device}")
            if rows != 1 and value.size(0) not in (1, rows):
                raise ValueError(f"{name} must have 1 or {rows} rows like coords, got {value.size(0)}")
            rows = value.size(0) if rows == 1 else rows  # 0 rows, too, are not 1
        layout = Layout(tokens)
        if order is None and document is None:  # one text, wherever its tokens are
            layout = Layout(tokens, ((Span(0, tokens, 0, 0, steps=(1,) * axes_of(coords)),),))
        if order is None:
            order = torch.arange(tokens, device=coords.device)[None]
        if document is None:
            document = torch.zeros((1, tokens), dtype=torch.int64, device=coords.device)
        self._set(
            coords=compat.unsplit(coords, 1).expand(rows, *coords.shape[1:]),
            order=compat.unsplit(order, 1).expand(rows, -1),
            document=compat.unsplit(document, 1).expand(rows, -1),
            segment=None if segment is None else compat.unsplit(segment, 1).expand(rows, -1),
            _layout=layout,
            _is_read=False,
        )

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
        if not (is_whole or self._is_read) and is_readable(self.order):
            self._set(_layout=read(self.coords, self.order, self.document), _is_read=True)
        return self._layout

    def with_layout(self, layout: Layout | None = None) -> Positions:
        """The same positions with this layout. Left out, it is read from the values now, which waits for a GPU.

        With a layout, attention takes the fast ways in a compiled graph and on a GPU too. ValueError for a layout that
        does not agree with the values, where they can be read without waiting.
        """
        check_type("layout", layout, Layout, None)
        stated = read(self.coords, self.order, self.document) if layout is None else layout
        if layout is not None:
            if layout.tokens != len(self):
                raise ValueError(f"layout must be of {len(self)} tokens like the positions, got one of {layout.tokens}")
            if is_readable(self.order) and not _agree(layout, self):
                raise ValueError(f"layout must be that of the positions, {self.layout}, got {layout}")
        return self._like()._of(stated)

    # -- making them --------------------------------------------------------------------------------------------------

    @classmethod
    def arange(cls, n: int, start: int = 0, *, device: torch.device | str | None = None) -> Positions:
        """One row of text: coordinates and order ``start, start + 1, ..., start + n - 1``.

        >>> Positions.arange(3, start=7).coords
        tensor([[7, 8, 9]])
        """
        check_whole(n=n, start=start)
        if n < 0:
            raise ValueError(f"n must not be negative, got {n}")
        line = torch.arange(start, start + n, device=device_of(device))[None]
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
        extent: tuple[int, int] | None = None,
        prefix: int = 0,
        device: torch.device | str | None = None,
    ) -> Positions:
        """One row of image patches in raster order, coordinates (row, column).

        With an ``extent`` (height, width), that of the grid a model was trained on, the patches of this grid are laid
        over that one: their middles are coordinates (i + 1/2) extent/size - 1/2, which are fractional. ``prefix``
        tokens, such as a class token and registers, come first; they stand at (0, 0), where a rotation turns nothing.

        >>> Positions.grid(2, 3).coords[0].tolist()
        [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
        """
        check_whole(height=height, width=width, prefix=prefix)
        if height < 0 or width < 0 or prefix < 0:
            raise ValueError(f"height, width and prefix must not be negative, got {height}, {width} and {prefix}")
        device = device_of(device)
        sides = [torch.arange(height, device=device), torch.arange(width, device=device)]
        if extent is not None:
            sizes = extent_of(extent)
            sides = [(s.double() + 0.5) * (e / n) - 0.5 for s, e, n in zip(sides, sizes, (height, width), strict=True)]
        row, column = torch.meshgrid(*sides, indexing="ij")
        coords = torch.stack((row.reshape(-1), column.reshape(-1)), dim=-1)
        coords = torch.cat((coords.new_zeros(prefix, 2), coords))[None]
        positions = cls(coords)
        if extent is not None or torch.compiler.is_compiling():  # a compiler may not know how many rows there are
            return positions
        heads = tuple(Span(n, n + 1, 0, n, coords=(0, 0), steps=(0, 1)) for n in range(prefix))
        starts = [prefix + n * width for n in range(height)]
        lines = tuple(Span(t, t + width, 0, t, coords=(n, 0), steps=(0, 1)) for n, t in enumerate(starts) if width)
        bounds = (0, max(height, width) - 1) if height * width else (0, 0) if prefix else None
        return positions._of(Layout(len(positions), (heads + lines,), bounds))

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
        device = device_of(device)
        listed: Any = lengths if isinstance(lengths, Sequence) else [None]
        listed = [listed] if all(isinstance(n, int) for n in listed) else listed
        rows: list[list[int]] = [list(row) for row in listed if isinstance(row, Sequence)]
        if len(rows) != len(listed) or not all(type(n) is int for row in rows for n in row):
            raise ValueError(f"lengths must be whole numbers, or a sequence of them for each row, got {lengths!r}")
        if any(n < 0 for row in rows for n in row):
            raise ValueError(f"lengths must not be negative, got {list(lengths)}")
        tokens = max((sum(row) for row in rows), default=0)
        coords = [[p for n in row for p in range(n)] for row in rows]
        document = [[d for d, n in enumerate(row) for _ in range(n)] for row in rows]
        order = [list(range(len(row))) for row in coords]
        fill = [tokens - len(row) for row in coords]

        def tensor(values: list[list[int]], padding: int) -> Tensor:
            padded = [row + [padding] * f for row, f in zip(values, fill, strict=True)]
            return torch.tensor(padded, dtype=torch.int64, device=device).reshape(len(rows), tokens)

        layouts = []
        for row in rows:
            starts = [sum(row[:d]) for d in range(len(row))]
            layouts.append(
                tuple(Span(t, t + n, d, t, coords=(0,)) for d, (t, n) in enumerate(zip(starts, row, strict=True)) if n)
            )
        longest = max((n for row in rows for n in row), default=0)
        same = layouts[:1] if all(row == layouts[0] for row in layouts) else layouts
        positions = cls(tensor(coords, 0), order=tensor(order, 0), document=tensor(document, PADDING))
        return positions._of(Layout(tokens, tuple(same) or ((),), (0, max(longest - 1, 0))))

    @classmethod
    def padded(cls, mask: Bool[Tensor, "rows tokens"] | Int[Tensor, "rows tokens"]) -> Positions:
        """Rows of text with padding anywhere (left, right, inside): ``mask`` is True, or 1, where there is a token.

        Coordinates and order count the tokens of each row and skip the padding.

        >>> Positions.padded(torch.tensor([[False, True, True]])).coords
        tensor([[0, 0, 1]])
        """
        mask = token_mask("mask", mask)
        count = (mask.long().cumsum(1) - 1).masked_fill(~mask, 0)
        document = torch.where(mask, 0, PADDING)
        positions = cls(count, order=count, document=document)
        return positions._set(_layout=Layout(len(positions), None, (0, max(mask.size(1) - 1, 0))))

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
        if not isinstance(ids, Tensor) or ids.dim() not in (2, 3) or ids.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"ids must be an int64 tensor (rows, tokens[, axes]), got {described(ids)}")
        check_flag("packed", packed)
        is_token = torch.ones_like(ids[..., 0] if ids.dim() == 3 else ids, dtype=torch.bool)
        if mask is not None:
            mask = token_mask("mask", mask)
            if mask.shape != is_token.shape:
                raise ValueError(f"mask must be {tuple(is_token.shape)} like ids, got {tuple(mask.shape)}")
            is_token = mask
        ids = ids.long()
        if packed and ids.dim() == 3:
            raise ValueError(f"ids must be (rows, tokens) to tell packed documents apart, got {tuple(ids.shape)}")
        restarts = torch.zeros_like(is_token)
        if ids.dim() == 2 and ids.size(1):
            lowest = torch.iinfo(torch.int64).min
            before = ids if packed else torch.where(is_token, ids, lowest).cummax(1).values  # the highest so far
            restarts[:, 1:] = is_token[:, 1:] & is_token[:, :-1] & (ids[:, 1:] <= before[:, :-1])
        if not packed and is_readable(ids) and bool(restarts.any()):
            raise ValueError(
                "ids must rise along each row, got some that fall or repeat: pass packed=True where they are documents "
                "laid end to end, or make Positions(coords, order=..., document=...)"
            )
        order = (is_token.long().cumsum(1) - 1).masked_fill(~is_token, 0)
        document = restarts.long().cumsum(1).masked_fill(~is_token, PADDING)
        return cls(ids, order=order, document=document)

    @staticmethod
    def cat(parts: Sequence[Positions], *, documents: Literal["same", "new"] | None = None) -> Positions:
        """The tokens of all parts, in turn. Rows must agree or be one; every part has a segment or none has.

        Documents of equal number are one document, as those of a cache and of what follows it are; with
        ``documents="new"`` every part has documents of its own. Left out, parts of one document whose orders overlap
        are a ValueError, since their tokens could not be told apart; ``documents="same"`` says that they are meant so.
        Coordinates of several dtypes become the widest.
        """
        check_type("parts", parts, Sequence)
        if not parts:
            raise ValueError("cat needs at least one Positions, got none")
        if documents is not None:
            check_choice("documents", documents, ("same", "new"))
        for part in parts:
            check_type("parts", part, Positions)
            if part.device != parts[0].device:
                raise ValueError(f"parts must be on one device, got {parts[0].device} and {part.device}")
            if part.coords.shape[2:] != parts[0].coords.shape[2:]:
                raise ValueError(f"cat needs parts of as many axes, got {parts[0]} and {part}")
        rows = max((part.rows for part in parts if part.rows != 1), default=1)
        wide = [part.expand(rows) for part in parts]
        segments = [part.segment for part in wide if part.segment is not None]
        if segments and len(segments) != len(parts):
            raise ValueError("segment must be given in every part or in none")
        if documents == "new":
            wide = _renumbered(wide)
        layout = join([part.layout for part in wide], rows)
        if documents is None and (twice := overlap(layout)) is not None:
            raise ValueError(
                f"parts have tokens of document {twice} at the same order: pass documents='new' if each part is a text "
                "of its own, or positions.following(n) for what continues one"
            )
        whole = Positions(
            torch.cat([part.coords for part in wide], 1),  # of the widest dtype
            order=torch.cat([part.order for part in wide], 1),
            document=torch.cat([part.document for part in wide], 1),
            segment=torch.cat(segments, 1) if segments else None,
        )
        return whole._of(layout)

    # -- changing them ------------------------------------------------------------------------------------------------

    def __getitem__(self, index: slice | Int[Tensor, " chosen"]) -> Positions:
        """Tokens ``a:b`` of every row, or those at an index tensor (a permutation, a shard)."""
        layout = None
        if isinstance(index, slice):
            parts = {"start": index.start, "stop": index.stop, "step": index.step}
            ends = {name: end for name, end in parts.items() if end is not None}
            check_whole(**ends)
            if ends.get("step", 1) < 1:
                raise ValueError(f"step must be above 0, got {index.step}")
            if index.step in (None, 1):
                start, stop = ends_of(index, self.order.size(1))
                layout = self._layout[slice(start, max(start, stop))]
        elif not (isinstance(index, Tensor) and index.dim() == 1 and index.dtype == torch.int64):
            raise ValueError(
                f"positions are indexed by a slice or a 1-D int64 tensor of tokens, got {described(index)}"
            )
        elif index.numel() and is_readable(index):
            lowest, highest, tokens = int(index.min()), int(index.max()), self.order.size(1)
            if lowest < -tokens or highest >= tokens:
                outside = lowest if lowest < -tokens else highest
                raise ValueError(f"index must be within {-tokens}..{tokens - 1}, got {outside}")
        chosen = Positions(
            self.coords[:, index],
            order=self.order[:, index],
            document=self.document[:, index],
            segment=None if self.segment is None else self.segment[:, index],
        )
        of_chosen = Layout(chosen.order.size(1), None, self._layout.bounds) if layout is None else layout
        return chosen._set(_layout=of_chosen, _is_read=layout is not None and self._is_read and layout.rows is not None)

    def expand(self, rows: int) -> Positions:
        """The same positions for ``rows`` rows: one row is repeated (as a view), as many are kept, else ValueError."""
        check_whole(rows=rows)
        if rows < 0:
            raise ValueError(f"rows must not be negative, got {rows}")
        if self.rows == rows:
            return self
        if self.rows != 1:
            raise ValueError(f"positions have {self.rows} rows, which do not fit a batch of {rows}")
        return self._like(
            coords=self.coords.expand(rows, *self.coords.shape[1:]),
            order=self.order.expand(rows, -1),
            document=self.document.expand(rows, -1),
            segment=None if self.segment is None else self.segment.expand(rows, -1),
        )

    def shift(self, offset: int | float) -> Positions:
        """Every coordinate moved by ``offset``; order and documents stay. A float makes whole coordinates float64."""
        return self._transformed(1, real("offset", offset))

    def scale(self, factor: int | float) -> Positions:
        """Every coordinate times ``factor``: a text or a grid laid over a longer or a shorter one. Order and documents
        stay. A float makes whole coordinates float64."""
        return self._transformed(real("factor", factor), 0)

    def _transformed(self, factor: int | float, offset: int | float) -> Positions:
        """Every coordinate c as factor c + offset."""
        if isinstance(factor, float) or isinstance(offset, float) or self.coords.is_floating_point():
            coords = self.coords if self.coords.is_floating_point() else self.coords.double()
            # They may be rounded now, so they are read again.
            return self._like(coords=coords * factor + offset, _layout=self._layout.without_coords(), _is_read=False)
        return self._like(coords=self.coords * factor + offset, _layout=self._layout.shifted(offset, factor))

    def with_segment(self, segment: Int[Tensor, "rows tokens"]) -> Positions:
        """The same positions, with the segment of each token."""
        made = Positions(self.coords, order=self.order, document=self.document, segment=segment)
        return made._set(_layout=self._layout, _is_read=self._is_read)

    def following(self, n: int = 1) -> Positions:
        """The ``n`` positions that come after these in each row: what a model generates next.

        They continue the document of the row's last token, its coordinate and its order. Text only (one axis).
        """
        coords = self.scalar("following")
        check_whole(n=n)
        if n < 0:
            raise ValueError(f"n must not be negative, got {n}")
        if len(self) == 0:
            text = Positions.arange(n, device=self.device).expand(self.rows)
            return text if coords.dtype == torch.int64 else Positions(text.coords.to(coords.dtype))
        ahead = torch.arange(1, n + 1, device=self.device)
        run = self._layout.run
        if run is not None:  # the last token is the last in the tensor
            positions = Positions(
                coords[:, -1:] + ahead,
                order=self.order[:, -1:] + ahead,
                document=self.document[:, -1:].expand(-1, n),
                segment=None if self.segment is None else self.segment[:, -1:].expand(-1, n),
            )
            is_text = run.coords is not None and run.steps == (1,)
            after = run.cut(run.stop, run.stop)
            span = Span(0, n, run.document, after.order, coords=after.coords if is_text else None)
            ends = self._layout.bounds
            bounds = None if ends is None else (ends[0], ends[1] + n)
            return positions._of(Layout(n, ((span,),), bounds))
        last = self.last[:, None]
        # A row of padding alone has no document to continue: its first token opens document 0 at position 0.
        empty = (self.document == PADDING).all(1, keepdim=True)
        positions = Positions(
            torch.where(empty, ahead - 1, coords.gather(1, last) + ahead),
            order=torch.where(empty, ahead - 1, self.order.gather(1, last) + ahead),
            document=torch.where(empty, 0, self.document.gather(1, last)).expand(-1, n),
            segment=None if self.segment is None else self.segment.gather(1, last).expand(-1, n),
        )
        ends = self._layout.bounds
        bounds = None if ends is None else (min(ends[0], 0), max(ends[1], -1) + n)
        return positions._set(_layout=Layout(n, None, bounds))

    def to(self, device: torch.device | str) -> Positions:
        """The same positions on another device."""
        device = device_of(device) or self.device
        segment = None if self.segment is None else self.segment.to(device)
        return self._like(
            coords=self.coords.to(device),
            order=self.order.to(device),
            document=self.document.to(device),
            segment=segment,
        )

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
        unseen = torch.iinfo(torch.int64).min  # below any order, negative ones too
        return self.order.masked_fill(self.document == PADDING, unseen).argmax(1)

    @property
    def lengths(self) -> Shaped[Tensor, " rows"]:
        """How long each row's text is by now: the highest coordinate along any axis, plus one. Padding does not count.

        ValueError for rows that are known to hold several documents, since each has a length of its own.
        """
        if any(len({span.document for span in row}) > 1 for row in self.layout.rows or ()):
            raise ValueError(
                "a row of several documents has no one length: give each document a row of its own, or say the length "
                "to scale every row by with context=Context(lengths=...)"
            )
        coords = self.coords if self.coords.dim() == 2 else self.coords.amax(-1)
        return coords.masked_fill(self.document == PADDING, -1).amax(1) + 1

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


def _agree(layout: Layout, positions: Positions) -> bool:
    """Whether a stated layout says of every token what the values say."""
    rows = layout.rows
    if rows is None or len(rows) not in (1, positions.rows):
        return rows is None
    document = torch.full_like(positions.document, PADDING)
    order, coords = torch.zeros_like(positions.order), positions.coords.clone()
    for n in range(positions.rows):
        for span in layout.of_row(n):
            where, step = slice(span.start, span.stop), torch.arange(span.stop - span.start)
            document[n, where], order[n, where] = span.document, span.order + span.order_step * step
            if span.coords is not None:
                line = torch.stack([c + s * step for c, s in zip(span.coords, span.steps, strict=True)], -1)
                coords[n, where] = line.reshape(coords[n, where].shape).to(coords.dtype)
    seen = document != PADDING
    same = torch.equal(document, positions.document) and torch.equal(coords, positions.coords)
    return same and torch.equal(order[seen], positions.order[seen])


def _renumbered(parts: Sequence[Positions]) -> list[Positions]:
    """Every part with documents numbered after those of the parts before it."""
    first = parts[0].document.new_zeros(())
    renumbered = []
    for part in parts:
        document = torch.where(part.document == PADDING, PADDING, part.document + first)
        made = Positions(part.coords, order=part.order, document=document, segment=part.segment)
        renumbered.append(made)
        if document.numel():
            first = torch.maximum(first, document.max() + 1)
    return renumbered


def _flatten(positions: Positions) -> tuple[list[Tensor], bool]:
    tensors = (positions.coords, positions.order, positions.document, positions.segment)
    return [x for x in tensors if x is not None], positions.segment is not None


def _unflatten(tensors: Any, has_segment: Any) -> Positions:
    """From tensors that may be other ones now: what was known of the values is not taken along."""
    coords, order, document, *segment = tensors
    if isinstance(coords, Tensor) and coords.is_floating_point() and coords.dtype not in NUMBERS:
        raise ValueError(
            f"positions were cast to {coords.dtype}, which cannot tell 256 from 257: cast the tensors beside them"
        )
    tokens = order.shape[1] if isinstance(order, Tensor) else 0
    fields = {"coords": coords, "order": order, "document": document, "segment": segment[0] if has_segment else None}
    made: Positions = object.__new__(Positions)
    return made._set(**fields, _layout=Layout(tokens), _is_read=False)


compat.register_pytree(Positions, _flatten, _unflatten, "posenc.Positions")
