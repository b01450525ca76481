"""Where tokens are: coordinates, order, document and segment, passed as data and never read off a tensor's index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from posenc.arguments import check_type, is_number, shown

PADDING = -1  # the document that no token belongs to


class PositionError(ValueError):
    """A position that a scheme cannot encode: the message names the scheme, its limit and the position."""


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class Positions:
    """The positions of a batch of token rows.

    Four facts about every token, each answering a different question:

    - ``coords`` (B or 1, N[, axes]), int64, float32 or float64: what a *scheme* sees. May be offset, repeated,
      unsorted, fractional, or have several axes (row and column of an image patch).
    - ``order`` (B or 1, N), int64: what *causality* sees. A query sees keys whose order is not above its own.
    - ``document`` (B or 1, N), int64: *who may see whom*. Tokens see their own document alone; -1 is padding, which
      belongs to none: nobody sees it and it sees nobody.
    - ``segment`` (B or 1, N), int64 or None: premise or hypothesis, for schemes that encode it.

    Left out, ``order`` counts 0..N-1 and every token is of document 0. One row serves the whole batch. Instances are
    immutable: every method returns new positions, and the tensors must not be written to either.

    >>> Positions.arange(5)[2:].coords
    tensor([[2, 3, 4]])

    Raises ValueError for a wrong shape, dtype or device, naming the argument.
    """

    coords: Shaped[Tensor, "rows tokens *axes"]
    order: Int[Tensor, "rows tokens"]
    document: Int[Tensor, "rows tokens"]
    segment: Int[Tensor, "rows tokens"] | None
    # What is known of the values without reading them (reading would wait for the GPU, and break a compiled graph):
    _run: tuple[int, int] | None  # one document without padding, order start, start+1, ... stop-1 in every row
    _bounds: tuple[int, int] | None  # every coordinate lies within [lowest, highest]; never too narrow
    _lead: int | None  # of a run: the coordinate of every token is its order plus this

    def __init__(
        self,
        coords: Tensor,
        *,
        order: Tensor | None = None,
        document: Tensor | None = None,
        segment: Tensor | None = None,
        _run: tuple[int, int] | None = None,
        _bounds: tuple[int, int] | None = None,
        _lead: int | None = None,
    ) -> None:
        if not isinstance(coords, Tensor) or coords.dim() not in (2, 3):
            raise ValueError(f"coords must be a tensor (rows, tokens) or (rows, tokens, axes), got {_describe(coords)}")
        if coords.dtype not in (torch.int64, torch.float32, torch.float64):
            raise ValueError(
                "coords must be int64, float32 or float64 (half precision cannot tell 256 from 257), "
                f"got {coords.dtype}"
            )
        read = coords.device.type == "cpu" and not torch.compiler.is_compiling()  # a GPU would wait for it
        if read and coords.is_floating_point() and not coords.isfinite().all():
            raise PositionError("coords must be finite, got one that is infinite or no number")
        tokens = coords.size(1)
        rows = coords.size(0)
        for name, value in (("order", order), ("document", document), ("segment", segment)):
            if value is None:
                continue
            if not isinstance(value, Tensor) or value.dim() != 2 or value.size(1) != tokens:
                raise ValueError(f"{name} must be a tensor (rows, {tokens}) like coords, got {_describe(value)}")
            if value.dtype != torch.int64:
                raise ValueError(f"{name} must be int64, got {value.dtype}")
            if value.device != coords.device:
                raise ValueError(f"{name} must be on {coords.device} like coords, got {value.device}")
            if rows != 1 and value.size(0) not in (1, rows):
                raise ValueError(f"{name} must have 1 or {rows} rows like coords, got {value.size(0)}")
            rows = value.size(0) if rows == 1 else rows  # 0 rows, too, are not 1
        if order is None and document is None and _run is None:
            _run = (0, tokens)
        if order is None:
            order = torch.arange(tokens, device=coords.device)[None]
        if document is None:
            document = torch.zeros((1, tokens), dtype=torch.int64, device=coords.device)
        fields = {
            "coords": coords.expand(rows, *coords.shape[1:]),
            "order": order.expand(rows, -1),
            "document": document.expand(rows, -1),
            "segment": None if segment is None else segment.expand(rows, -1),
            "_run": _run,
            "_bounds": _bounds,
            "_lead": None if _run is None else _lead,
        }
        for name, field in fields.items():  # the class is frozen
            object.__setattr__(self, name, field)

    # -- making them --------------------------------------------------------------------------------------------------

    @classmethod
    def arange(cls, n: int, start: int = 0, *, device: torch.device | str | None = None) -> Positions:
        """One row of text: coordinates and order ``start, start + 1, ..., start + n - 1``.

        >>> Positions.arange(3, start=7).coords
        tensor([[7, 8, 9]])
        """
        _check_whole(n=n, start=start)
        if n < 0:
            raise ValueError(f"n must not be negative, got {n}")
        line = torch.arange(start, start + n, device=_device(device))[None]
        bounds = (start, start + n - 1) if n else None
        return cls(line, order=line, _run=(start, start + n), _bounds=bounds, _lead=0)

    @classmethod
    def grid(cls, height: int, width: int, *, device: torch.device | str | None = None) -> Positions:
        """One row of image patches in raster order, coordinates (row, column).

        >>> Positions.grid(2, 3).coords[0].tolist()
        [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
        """
        _check_whole(height=height, width=width)
        if height < 0 or width < 0:
            raise ValueError(f"height and width must not be negative, got {height} and {width}")
        device = _device(device)
        row, column = torch.meshgrid(
            torch.arange(height, device=device), torch.arange(width, device=device), indexing="ij"
        )
        coords = torch.stack((row.reshape(-1), column.reshape(-1)), dim=-1)[None]
        return cls(coords, _bounds=(0, max(height, width) - 1) if height * width else None)

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
        device = _device(device)
        given: Any = lengths if isinstance(lengths, Sequence) else [None]
        given = [given] if all(isinstance(n, int) for n in given) else given
        rows: list[list[int]] = [list(row) for row in given if isinstance(row, Sequence)]
        if len(rows) != len(given) or not all(type(n) is int for row in rows for n in row):
            raise ValueError(f"lengths must be whole numbers, or a sequence of them for each row, got {lengths!r}")
        if any(n < 0 for row in rows for n in row):
            raise ValueError(f"lengths must not be negative, got {list(lengths)}")
        tokens = max((sum(row) for row in rows), default=0)
        coords = [[p for n in row for p in range(n)] for row in rows]
        document = [[d for d, n in enumerate(row) for _ in range(n)] for row in rows]
        order = [list(range(len(row))) for row in coords]
        fill = [tokens - len(row) for row in coords]
        longest = max((n for row in rows for n in row), default=0)

        def tensor(values: list[list[int]], padding: int) -> Tensor:
            padded = [row + [padding] * f for row, f in zip(values, fill, strict=True)]
            return torch.tensor(padded, dtype=torch.int64, device=device).reshape(len(rows), tokens)

        return cls(
            tensor(coords, 0),
            order=tensor(order, 0),
            document=tensor(document, PADDING),
            _bounds=(0, max(longest - 1, 0)),
        )

    @classmethod
    def padded(cls, mask: Bool[Tensor, "rows tokens"]) -> Positions:
        """Rows of text with padding anywhere (left, right, inside): ``mask`` is True where there is a token.

        Coordinates and order count the tokens of each row and skip the padding.

        >>> Positions.padded(torch.tensor([[False, True, True]])).coords
        tensor([[0, 0, 1]])
        """
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.dim() != 2:
            raise ValueError(f"mask must be a bool tensor (rows, tokens), True = token, got {_describe(mask)}")
        count = (mask.long().cumsum(1) - 1).masked_fill(~mask, 0)
        document = torch.where(mask, 0, PADDING)
        return cls(count, order=count, document=document, _bounds=(0, max(mask.size(1) - 1, 0)))

    @staticmethod
    def cat(parts: Sequence[Positions]) -> Positions:
        """The tokens of all parts, in turn. Rows must agree or be one; every part has a segment or none has."""
        check_type("parts", parts, Sequence)
        if not parts:
            raise ValueError("cat needs at least one Positions, got none")
        for part in parts:
            check_type("parts", part, Positions)
            if part.device != parts[0].device:
                raise ValueError(f"parts must be on one device, got {parts[0].device} and {part.device}")
        rows = max((part.rows for part in parts if part.rows != 1), default=1)
        wide = [part.expand(rows) for part in parts]
        segments = [part.segment for part in wide if part.segment is not None]
        if segments and len(segments) != len(parts):
            raise ValueError("segment must be given in every part or in none")
        for part in parts[1:]:
            if part.coords.dtype != parts[0].coords.dtype or part.coords.shape[2:] != parts[0].coords.shape[2:]:
                raise ValueError(f"cat needs parts of one dtype and as many axes, got {parts[0]} and {part}")
        run = parts[0]._run
        for part in parts[1:]:
            run = (run[0], part._run[1]) if run and part._run and run[1] == part._run[0] else None
        leads = {part._lead for part in parts if len(part)}
        bounds = [part._bounds for part in parts if len(part)]
        known = [b for b in bounds if b is not None]
        return Positions(
            torch.cat([part.coords for part in wide], 1),
            order=torch.cat([part.order for part in wide], 1),
            document=torch.cat([part.document for part in wide], 1),
            segment=torch.cat(segments, 1) if segments else None,
            _run=run,
            _bounds=(min(b[0] for b in known), max(b[1] for b in known))
            if known and len(known) == len(bounds)
            else None,
            _lead=leads.pop() if len(leads) == 1 else None,
        )

    # -- changing them ------------------------------------------------------------------------------------------------

    def __getitem__(self, index: slice | Int[Tensor, " chosen"]) -> Positions:
        """Tokens ``a:b`` of every row, or those at an index tensor (a permutation, a shard)."""
        run = None
        if isinstance(index, slice):
            given = {"start": index.start, "stop": index.stop, "step": index.step}
            ends = {name: end for name, end in given.items() if end is not None}
            _check_whole(**ends)
            if ends.get("step", 1) < 1:
                raise ValueError(f"step must be above 0, got {index.step}")
            if self._run is not None and index.step in (None, 1):
                start, stop = _ends(index, self.order.size(1))
                run = (self._run[0] + start, self._run[0] + max(start, stop))
        elif not (isinstance(index, Tensor) and index.dim() == 1 and index.dtype == torch.int64):
            raise ValueError(
                f"positions are indexed by a slice or a 1-D int64 tensor of tokens, got {_describe(index)}"
            )
        elif index.device.type == "cpu" and index.numel() and not torch.compiler.is_compiling():
            lowest, highest, tokens = int(index.min()), int(index.max()), self.order.size(1)
            if lowest < -tokens or highest >= tokens:
                found = lowest if lowest < -tokens else highest
                raise ValueError(f"index must be within {-tokens}..{tokens - 1}, got {found}")
        return Positions(
            self.coords[:, index],
            order=self.order[:, index],
            document=self.document[:, index],
            segment=None if self.segment is None else self.segment[:, index],
            _run=run,
            _bounds=self._bounds,
            _lead=self._lead,
        )

    def expand(self, rows: int) -> Positions:
        """The same positions for ``rows`` rows: one row is repeated (as a view), as many are kept, else ValueError."""
        _check_whole(rows=rows)
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
        """Every coordinate moved by ``offset``; order and documents stay. By a float, whole ones become float64."""
        given: object = offset
        if not is_number(given) and not isinstance(given, torch.SymInt):  # a compiler's
            raise ValueError(f"offset must be a number, got {shown(given)}")
        if isinstance(offset, float) and not math.isfinite(offset):
            raise ValueError(f"offset must be a finite number, got {offset}")
        if isinstance(offset, float):
            coords = self.coords if self.coords.is_floating_point() else self.coords.double()
            return self._like(coords=coords + offset, _bounds=None, _lead=None)
        bounds = None if self._bounds is None else (self._bounds[0] + offset, self._bounds[1] + offset)
        lead = None if self._lead is None else self._lead + offset
        return self._like(coords=self.coords + offset, _bounds=bounds, _lead=lead)

    def with_segment(self, segment: Int[Tensor, "rows tokens"]) -> Positions:
        """The same positions, with the segment of each token."""
        return self._like(segment=segment)

    def following(self, n: int = 1) -> Positions:
        """The ``n`` positions that come after these in each row: what a model generates next.

        They continue the document of the row's last token, its coordinate and its order. Text only (one axis).
        """
        coords = self.scalar("following")
        _check_whole(n=n)
        if n < 0:
            raise ValueError(f"n must not be negative, got {n}")
        if len(self) == 0:
            text = Positions.arange(n, device=self.device).expand(self.rows)
            return text if coords.dtype == torch.int64 else Positions(text.coords.to(coords.dtype))
        ahead = torch.arange(1, n + 1, device=self.device)
        if self._run is not None:  # the last token is the last in the tensor
            return Positions(
                coords[:, -1:] + ahead,
                order=self.order[:, -1:] + ahead,
                document=self.document[:, -1:].expand(-1, n),
                segment=None if self.segment is None else self.segment[:, -1:].expand(-1, n),
                _run=(self._run[1], self._run[1] + n),
                _bounds=None if self._bounds is None else (self._bounds[0], self._bounds[1] + n),
                _lead=self._lead,
            )
        last = self.last[:, None]
        # A row of padding alone has no document to continue: its first token opens document 0 at position 0.
        empty = (self.document == PADDING).all(1, keepdim=True)
        bounds = None if self._bounds is None else (min(self._bounds[0], 0), max(self._bounds[1], -1) + n)
        return Positions(
            torch.where(empty, ahead - 1, coords.gather(1, last) + ahead),
            order=torch.where(empty, ahead - 1, self.order.gather(1, last) + ahead),
            document=torch.where(empty, 0, self.document.gather(1, last)).expand(-1, n),
            segment=None if self.segment is None else self.segment.gather(1, last).expand(-1, n),
            _bounds=bounds,
        )

    def to(self, device: torch.device | str) -> Positions:
        """The same positions on another device."""
        device = _device(device) or self.device
        segment = None if self.segment is None else self.segment.to(device)
        return self._like(
            coords=self.coords.to(device),
            order=self.order.to(device),
            document=self.document.to(device),
            segment=segment,
        )

    def _like(self, **changes: Any) -> Positions:
        kept = {name: getattr(self, name) for name in Positions.__slots__}
        kept |= changes
        return Positions(kept.pop("coords"), **kept)

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
    def starts_a_text(self) -> bool:
        """True where the tokens are known to be one unbroken text whose order begins at 0."""
        return self._run is not None and self._run[0] == 0 and len(self) > 0

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

    def index(self, scheme: str, limit: int) -> Int[Tensor, "rows tokens"]:
        """The one coordinate of each token as an index into a table of ``limit`` rows.

        Raises ValueError for fractional coordinates, PositionError for one outside 0..limit-1. Padding reads row 0.
        """
        coords = self.scalar(scheme)
        if coords.dtype != torch.int64:
            raise ValueError(f"{scheme} looks positions up in a table and needs int64 coordinates, got {coords.dtype}")
        coords = coords.masked_fill(self.document == PADDING, 0) if self._run is None else coords
        if self._bounds is None or self._bounds[0] < 0 or self._bounds[1] >= limit:
            check_index(coords, limit, scheme, "positions")
        return coords


def check_index(index: Int[Tensor, "..."], limit: int, scheme: str, what: str) -> None:
    """PositionError unless every entry lies within 0..limit-1. Reads the values, so it waits for a GPU.

    A compiled graph cannot raise: there it is a RuntimeError of the same words, up to the value that came.
    """
    if index.numel() == 0 or index.is_meta:
        return
    if torch.compiler.is_compiling():
        inside = ((index >= 0) & (index < limit)).all()
        torch._assert_async(inside, f"{scheme} encodes {what} 0 to {limit - 1}, got one outside")
        return
    lowest, highest = (int(v) for v in torch.aminmax(index))
    if lowest < 0 or highest >= limit:
        raise PositionError(f"{scheme} encodes {what} 0 to {limit - 1}, got {lowest if lowest < 0 else highest}")


def check_reach(query_positions: Positions, key_positions: Positions, reach: tuple[int, ...], scheme: str) -> None:
    """PositionError unless any two tokens that may see one another lie less than ``reach`` apart along each axis."""
    query, key = query_positions, key_positions
    if query._bounds is not None and key._bounds is not None:
        ends = (*query._bounds, *key._bounds)
        if max(ends) - min(ends) < min(reach):
            return
    if query.coords.is_meta or 0 in (query.coords.size(1), key.coords.size(1)):
        return
    seen = visible(query, key, is_causal=False)
    for axis, limit in enumerate(reach):
        x, y = (p.coords if p.coords.dim() == 2 else p.coords[..., axis] for p in (query, key))
        along = "" if len(reach) == 1 else f" along axis {axis}"
        # The ends of all tokens, whoever sees whom, need no table of pairs.
        widest = torch.maximum(x.amax(1) - y.amin(1), y.amax(1) - x.amin(1))
        if seen is None or (not torch.compiler.is_compiling() and bool((widest < limit).all())):
            check_distances(widest, limit, scheme, along)
            continue
        distance = (y[:, None, :] - x[:, :, None]).abs()
        check_distances(distance.masked_fill(~seen, 0), limit, scheme, along)


def check_distances(distances: Int[Tensor, "..."], limit: int, scheme: str, along: str = "") -> None:
    """PositionError unless every distance, to either side, is below ``limit``. Reads the values.

    A compiled graph cannot raise: there it is a RuntimeError of the same words, up to the distance that came.
    """
    if distances.numel() == 0 or distances.is_meta:
        return
    furthest = distances.abs().max()
    words = f"{scheme} encodes distances up to {limit - 1}{along}, got "
    if torch.compiler.is_compiling():
        torch._assert_async(furthest < limit, words + "one further")
    elif int(furthest) >= limit:
        raise PositionError(f"{words}{int(furthest)}")


def visible(
    query_positions: Positions, key_positions: Positions, *, is_causal: bool
) -> Bool[Tensor, "rows queries keys"] | None:
    """Which key each query may see: its own document, no padding and, if causal, no order above its own.

    None where every query is known to see every key, so that nothing needs masking.
    """
    query, key = query_positions, key_positions
    if sees_all(query, key, is_causal=is_causal):
        return None
    same = query.document[:, :, None] == key.document[:, None, :]
    same = same & (key.document != PADDING)[:, None, :]
    return same & (key.order[:, None, :] <= query.order[:, :, None]) if is_causal else same


def sees_all(query_positions: Positions, key_positions: Positions, *, is_causal: bool) -> bool:
    """True where every query is known to see every key."""
    query, key = query_positions._run, key_positions._run
    return query is not None and key is not None and (not is_causal or key[1] - 1 <= query[0])


def same_run(query_positions: Positions, key_positions: Positions) -> bool:
    """True where queries and keys are known to be the same unbroken run of tokens: a plain square of attention."""
    return query_positions._run is not None and query_positions._run == key_positions._run


def key_level_with(query_positions: Positions, key_positions: Positions, *, is_causal: bool) -> int | None:
    """The index of the key at the position of query 0, where query i is then known to be level with key i + that.

    Known of two unbroken runs whose coordinates follow their order; the index may lie outside the keys. With
    ``is_causal``, those are the runs in which a query sees the keys up to the one it is level with.
    """
    query, key = query_positions, key_positions
    if query._run is None or key._run is None or query._lead is None or key._lead is None:
        return None
    if is_causal and query._lead != key._lead:
        return None
    return query._run[0] + query._lead - key._run[0] - key._lead


def _ends(index: slice, tokens: int) -> tuple[int, int]:
    """Where a slice of step 1 begins and ends: slice.indices, which a compiled graph would pin to one length."""
    start, stop = (0 if index.start is None else index.start), (tokens if index.stop is None else index.stop)
    start, stop = (end + tokens if end < 0 else end for end in (start, stop))
    return min(max(start, 0), tokens), min(max(stop, 0), tokens)


def _check_whole(**values: object) -> None:
    """ValueError unless all are whole numbers, if only a compiler's."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral | torch.SymInt):
            raise ValueError(f"{name} must be a whole number, got {shown(value)}")


def _device(device: Any) -> Any:
    """The device; ValueError for what is none."""
    if device is None or isinstance(device, torch.device):
        return device
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"device must be one that torch knows, got {shown(device)}") from None


def _describe(value: object) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else f"{type(value).__name__} {value!r}"
