"""The native backend: what goes by distance, on the CPU, in one loop over tasks that share nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from posenc.backends.call import Backend, Call
from posenc.backends.native.library import REALS, missing
from posenc.backends.native.operator import TABLES
from posenc.backends.tiled import TILED, is_spread, line_of, reach_of
from posenc.block import Block
from posenc.forms import check_width, meets
from posenc.layout import flat
from posenc.pieces import Bias, Clock, Distance, Fold, Function, Meeting

FUNCTIONS = {"relu times": 1}  # those that the kernel knows, by the name that `Function.formula` gives


def _refuses(call: Call) -> str | None:
    if call.query.device.type != "cpu":
        return "it runs on the CPU alone"
    if call.query.dtype not in REALS:
        return "it computes in float32 and float64 alone"
    reason = TILED.refuses(call)
    if reason is not None:
        return reason
    for piece in call.pieces:
        if isinstance(piece, Meeting) and piece.side == "key":
            return "a key meets a vector"
        if isinstance(piece, Function) and (piece.formula not in FUNCTIONS or piece.distance is None):
            return "a score term is a function of the score that the kernel does not know"
    distances = [getattr(term, "distance", None) for term in (*call.pieces, *call.values)]
    if any(d is not None and d.tail != "constant" for d in distances) and is_spread(call):
        return "a term needs a table of all distances between the least and the greatest, which lie too far apart"
    return missing(call.query.dtype)


class _Given:
    """What the kernel is given beside query, key and value: tensors by name, and where its tables begin."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.reach = reach_of(call)
        self.key = call.key
        self.tensors: dict[str, Tensor] = {}
        self.lows: dict[str, int] = {}
        self.function = [0, 0]

    def entries(self, distances: Sequence[Distance]) -> tuple[int, Tensor]:
        """The first of the distances that a table for all of these holds, and all of them: those of any pair, and where
        every term is constant from some distance on, no further than that. The kernel goes on with the end entries."""
        lowest, highest = self.reach
        if all(distance.tail == "constant" for distance in distances):
            past = max(distance.past for distance in distances)
            lowest, highest = (torch.sym_min(torch.sym_max(end, lowest), highest) for end in (-past, past))
        return lowest, torch.arange(lowest, highest + 1, device=self.call.query.device)

    def put(self, name: str, low: int, table: Tensor) -> None:
        """A table (heads or 1, entries[, width])."""
        self.tensors[name], self.lows[name] = (table if table.dim() == 3 else table[..., None]), low

    def biases_and_meetings(self, block: Block) -> None:
        """The lines of numbers, and the vectors and what meets them."""
        call, heads = self.call, self.call.query.size(1)
        biases = [piece for piece in call.pieces if isinstance(piece, Bias)]
        meetings = [piece for piece in call.pieces if isinstance(piece, Meeting)]
        shifted = [piece for piece in meetings if piece.shift is not None]  # of these a line comes too
        of_vectors = [piece.distance for piece in meetings]
        of_lines = [piece.distance for piece in biases]
        if shifted:
            of_vectors = of_lines = [*of_vectors, *of_lines]
        lines: list[Tensor] = []
        vectors: list[Tensor] = []
        features: list[tuple[Tensor, Tensor]] = []
        if meetings:
            low, r = self.entries(of_vectors)
        for meeting in meetings:
            line = line_of(meeting.at, meeting.distance, block, r)
            feature = call.query if meeting.feature is None else meets(meeting, block)
            check_width(line, feature, meeting.distance.scheme)
            if meeting.feature is not None:
                features.append((feature, line.expand(heads, -1, -1)))
                continue
            vectors.append(line)
            if meeting.shift is not None:
                v = block.of_heads(meeting.shift.to(call.dtype), meeting.distance.scheme)
                lines.append((line @ v[..., None])[..., 0] * call.scale)
        if features:
            if vectors:
                features.insert(0, (call.query * call.scale, reduce(torch.add, vectors).expand(heads, -1, -1)))
            self.tensors["meeting"], joined = (torch.cat(part, -1) for part in zip(*features, strict=True))
            self.put("vectors", low, joined)
        elif vectors:
            self.put("vectors", low, reduce(torch.add, vectors))
        if biases or shifted:
            low, r = self.entries(of_lines)
            lines += [line_of(bias.at, bias.distance, block, r) for bias in biases]
            self.put("bias", low, reduce(torch.add, lines))

    def others(self, block: Block) -> None:
        """Vectors of the output, folds, clocks, and a function."""
        call, heads = self.call, self.call.query.size(1)
        if call.values:
            low, r = self.entries([term.distance for term in call.values])
            lines = [line_of(term.vectors, term.distance, block, r) for term in call.values]
            self.put("values", low, reduce(torch.add, lines))
        for piece in call.pieces:
            if isinstance(piece, Fold) and piece.key is not None:
                check_width(piece.key, call.query, piece.scheme)
                self.key = (self.key + piece.key.to(call.dtype)).to(call.key.dtype)
            elif isinstance(piece, Fold) and piece.query is not None:
                check_width(piece.query, call.query, piece.scheme)
                u = block.of_heads(piece.query[0, :, 0].to(call.dtype), piece.scheme).expand(heads, -1)
                self.tensors["shift"] = self.tensors["shift"] + u if "shift" in self.tensors else u
            elif isinstance(piece, Clock):
                for side in ("query", "key"):
                    clock = block.feature(piece.feature, side)
                    self.tensors[f"{side}_clock"] = clock.expand(call.query.size(0), heads, -1).double()
            elif isinstance(piece, Function):
                assert piece.formula is not None
                assert piece.distance is not None
                low, r = self.entries([piece.distance])
                (c,) = piece.coefficients(r)
                self.put("factor", low, block.of_heads(c.to(call.dtype), piece.distance.scheme))
                self.function = [FUNCTIONS[piece.formula], int(len(call.pieces) > 1 and call.pieces[-1] is piece)]


def _run(call: Call) -> tuple[Tensor, Tensor | None]:
    assert call.layouts is not None
    call.check()
    given = _Given(call)
    block = call.raw_block()
    given.biases_and_meetings(block)
    given.others(block)
    tensors = given.tensors
    is_learned = torch.is_grad_enabled()
    seen = call.visibility
    out, lse = torch.ops.posenc.native(
        call.query,
        given.key,
        call.value,
        [x.contiguous() for x in tensors.values()],
        " ".join(tensors),
        " ".join(name for name, x in tensors.items() if is_learned and x.requires_grad),
        [given.lows.get(name, 0) for name in TABLES],
        flat(call.layouts[0]),
        flat(call.layouts[1]),
        [int(seen.is_causal), int(seen.left is not None), seen.left or 0, int(seen.right is not None), seen.right or 0],
        given.function,
        call.scale,
        call.skip_below,
    )
    return out, lse if call.return_lse else None


NATIVE = Backend("native", refuses=_refuses, run=_run)
