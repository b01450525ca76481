"""Kernel arguments of a call, as tensors by name, and autograd for operators that take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from posenc import compat
from posenc.backends.call import Call
from posenc.backends.eligible import line_of, reach_of
from posenc.backends.plane import tables_of_plane
from posenc.encoding.pieces import Bias, BrokenLine, Clock, Distance, Fold, Function, Meeting
from posenc.lowering.block import Block
from posenc.lowering.forms import check_width, meets
from posenc.positions.tiles import Tiling

TABLES = ("bias", "vectors", "values", "factor", "key_vectors", "away")
POSSIBLE = (*TABLES, "plane")  # those that begin at some distance
IN_DOUBLE = ("query_clock", "key_clock", "lines", "share")
# Those that no query, key or feature is part of.
OF_POSITIONS = frozenset(
    (*TABLES, "slopes", "shift", "share", "lines", "ends", "query_cos", "query_sin", "key_cos", "key_sin")
)
FUNCTIONS = {"relu times": 1, "cap": 2}  # functions that kernels support, by `Function.formula`


class Form(NamedTuple):
    """What an operator takes in whole numbers: a function of the score and whether it comes last; the distance of the
    first entry of each possible table; and where the kernel rotates, the first channel and 1 if interleaved, else 0."""

    function: Sequence[int]
    lows: Sequence[int]
    turn: Sequence[int] = ()

    def low_of(self, name: str) -> int:
        """The distance of the first entry of a table."""
        return self.lows[POSSIBLE.index(name)]

    def flat(self) -> list[int]:
        """As one list."""
        return [*self.function, *self.lows, *self.turn]

    @staticmethod
    def unflat(numbers: Sequence[int]) -> Form:
        """The inverse of `flat`."""
        past = 2 + len(POSSIBLE)
        return Form(numbers[:2], numbers[2:past], numbers[past:])


class Given:
    """The arguments of a kernel besides query and value: the key, tensors by name, and the first entries of tables.

    - "bias" and "factor" (heads or 1, entries, 1), "vectors" and "values" (heads or 1, entries, width).
    - "key_vectors", scaled, to multiply with keys.
    - "shift" (heads, head_dim), added to the query.
    - "meeting" (batch, heads, queries, width), multiplied with the vectors instead of the query.
    - "query_clock" and "key_clock" (batch, heads, tokens), in float64.
    - The tables of `tables_of_plane`.
    - "away" (1, entries, 1), "share" (rows, queries) and "lines" (heads, lines, 2) of a `BrokenLine`, the latter two in
      float64, and "ends" (rows, queries, lines - 1), the number of entries of "away" before each break of a query.
    """

    tails: tuple[str | None, ...] = ("constant",)  # those for which a table ends where they begin

    def __init__(self, call: Call) -> None:
        planar = [piece for piece in call.pieces if piece.is_planar and isinstance(piece, (Bias, Meeting))]
        if planar:
            call = replace(call, pieces=tuple(piece for piece in call.pieces if not piece.is_planar))
        self.call = call
        self.reach = reach_of(call)
        self.key = call.key
        self.tensors: dict[str, Tensor] = {}
        self.lows: dict[str, int] = {}
        self.function = [0, 0]
        block = call.raw_block()
        self._biases_and_meetings(block)
        self._others(block)
        if planar:
            self.lows["plane"], tables = tables_of_plane(planar, call, block)
            self.tensors.update(tables)

    def _entries(self, distances: Sequence[Distance]) -> tuple[int, Tensor]:
        """The first distance of a table for all of these, and its distances: those of any pair or, if every term is
        constant beyond some distance, only up to that. The kernel repeats the end entries."""
        lowest, highest = self.reach
        if all(distance.tail in self.tails for distance in distances):
            past = max(distance.past for distance in distances)
            lowest, highest = (compat.sym_min(compat.sym_max(end, lowest), highest) for end in (-past, past))
        return lowest, torch.arange(lowest, highest + 1, device=self.call.query.device)

    def _put(self, name: str, low: int, table: Tensor) -> None:
        """A table (heads or 1, entries[, width])."""
        self.tensors[name], self.lows[name] = (table if table.dim() == 3 else table[..., None]), low

    def _biases_and_meetings(self, block: Block) -> None:
        """The biases, and the vectors with their multiplicands."""
        call, heads = self.call, self.call.query.size(1)
        biases = [piece for piece in call.pieces if isinstance(piece, Bias)]
        meetings = [piece for piece in call.pieces if isinstance(piece, Meeting)]
        shifted = [piece for piece in meetings if piece.shift is not None]  # these also add a bias
        of_vectors = [piece.distance for piece in meetings]
        of_lines = [piece.distance for piece in biases]
        if shifted:
            of_vectors = of_lines = [*of_vectors, *of_lines]
        lines: list[Tensor] = []
        vectors: list[Tensor] = []
        key_vectors: list[Tensor] = []
        features: list[tuple[Tensor, Tensor]] = []
        if meetings:
            low, r = self._entries(of_vectors)
        for meeting in meetings:
            line = line_of(meeting.at, meeting.distance, block, r)
            feature = call.query if meeting.feature is None else meets(meeting, block)
            check_width(line, feature, meeting.distance.scheme)
            if meeting.feature is not None:
                features.append((feature, line.expand(heads, -1, -1)))
                continue
            (vectors if meeting.side == "query" else key_vectors).append(line)
            if meeting.shift is not None:
                v = block.of_heads(meeting.shift.to(call.dtype), meeting.distance.scheme)
                lines.append((line @ v[..., None])[..., 0] * call.scale)
        if features:
            if vectors:
                features.insert(
                    0, (call.query.to(call.dtype) * call.scale, reduce(torch.add, vectors).expand(heads, -1, -1))
                )
            self.tensors["meeting"], joined = (torch.cat(each, -1) for each in zip(*features, strict=True))
            self._put("vectors", low, joined)
        elif vectors:
            self._put("vectors", low, reduce(torch.add, vectors))
        if key_vectors:
            self._put("key_vectors", low, reduce(torch.add, key_vectors) * call.scale)
        if biases or shifted:
            low, r = self._entries(of_lines)
            lines += [line_of(bias.at, bias.distance, block, r) for bias in biases]
            self._put("bias", low, reduce(torch.add, lines))

    def _others(self, block: Block) -> None:
        """Vectors of the output, folds, cumulative features, and a function."""
        call = self.call
        if call.values:
            low, r = self._entries([term.distance for term in call.values])
            lines = [line_of(term.vectors, term.distance, block, r) for term in call.values]
            self._put("values", low, reduce(torch.add, lines))
        for piece in call.pieces:
            if isinstance(piece, Fold):
                self._fold(piece, block)
            elif isinstance(piece, Clock):
                self._clock(piece, block)
            elif isinstance(piece, Function):
                self._function(piece, block)

    def _fold(self, piece: Fold, block: Block) -> None:
        """Vectors added to the query or to the key."""
        if piece.key is not None:
            check_width(piece.key, self.call.query, piece.scheme)
            self.key = self.key + piece.key.to(self.call.dtype)
        elif piece.query is not None:
            check_width(piece.query, self.call.query, piece.scheme)
            heads = self.call.query.size(1)
            u = block.of_heads(piece.query[0, :, 0].to(self.call.dtype), piece.scheme).expand(heads, -1)
            self.tensors["shift"] = self.tensors["shift"] + u if "shift" in self.tensors else u

    def _clock(self, piece: Clock, block: Block) -> None:
        """A cumulative feature."""
        batch, heads = self.call.query.shape[:2]
        for side in ("query", "key"):
            self.tensors[f"{side}_clock"] = block.feature(piece.feature, side).expand(batch, heads, -1).double()

    def _function(self, piece: Function, block: Block) -> None:
        """A function of the score that kernels support."""
        if piece.broken is not None:
            return self._broken(piece.broken, piece.scheme, block)
        assert piece.formula is not None
        assert piece.distance is not None
        low, r = self._entries([piece.distance])
        (c,) = piece.coefficients(r)
        self._put("factor", low, block.of_heads(c.to(self.call.dtype), piece.distance.scheme))
        self.function = [FUNCTIONS[piece.formula], self._is_last(piece)]

    def _is_last(self, piece: Function) -> int:
        return int(len(self.call.pieces) > 1 and self.call.pieces[-1] is piece)

    def _broken(self, piece: BrokenLine, scheme: str, block: Block) -> None:
        """A piecewise linear function of both coordinates."""
        low, r = self._entries([Distance(scheme)])
        away, share = piece.away(r), piece.share(block.query_positions.scalar(scheme))
        breaks, lines = piece.lines()
        # Entries decrease: those before the n-th end are beyond the n-th break.
        least = (breaks / share[..., None]).detach()
        ends = away.size(0) - torch.searchsorted(away.detach().flip(0), least, right=True)
        self._put("away", low, away.to(self.call.dtype)[None])
        heads = block.query.size(1)
        self.tensors.update(share=share, lines=block.of_heads(lines, scheme).expand(heads, -1, -1), ends=ends)

    @property
    def is_of_positions(self) -> bool:
        """Whether the tensors follow from positions and fixed parameters alone, so that another layer has the same."""
        return OF_POSITIONS.issuperset(self.tensors) and not any(x.requires_grad for x in self.tensors.values())

    def arguments(self, turn: Sequence[int] = ()) -> tuple[object, ...]:
        """The arguments of an operator from ``given`` on, except the scale."""
        is_learned = torch.is_grad_enabled()
        assert self.call.layouts is not None
        return (
            [x.contiguous() for x in self.tensors.values()],
            " ".join(self.tensors),
            " ".join(name for name, x in self.tensors.items() if is_learned and x.requires_grad),
            Tiling(*self.call.layouts, self.call.visibility).flat(),
            Form(self.function, [self.lows.get(name, 0) for name in POSSIBLE], turn).flat(),
        )
