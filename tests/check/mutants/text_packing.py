"""Documents packed one after the other, as cu_seqlens and positions that begin again tell them apart."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.tools.check import Layer
from tests.check.mutants import Mutant
from tests.check.mutants.text_caches import Attention, Growing
from tests.check.mutants.text_rotary import rates


class Packed(Attention):
    """Documents one after the other, cut where cu_seqlens say, and positions that begin again in each."""

    def cu_seqlens(self, document: Tensor) -> list[int]:
        """Of one row: where its documents begin, and where the last one ends."""
        return [0, *(document.diff().nonzero().flatten() + 1).tolist(), len(document)]

    def segments(self, document: Tensor) -> Tensor:
        """(rows, tokens): the number of the part that a token is in."""
        rows = []
        for row in document:
            starts = torch.tensor(self.cu_seqlens(row)[1:-1], dtype=torch.long)
            rows.append(torch.bucketize(torch.arange(len(row)), starts, right=True))
        return torch.stack(rows)

    def reset(self, segment: Tensor) -> Tensor:
        """Positions from 0 in each part."""
        index = torch.arange(segment.size(1)).expand_as(segment)
        begins = F.pad(segment.diff() != 0, (1, 0), value=True)
        return index - torch.where(begins, index, 0).cummax(-1)[0]


class PackedAndStanding(Packed):
    """Adds what is told by sines, so that where positions begin counts."""

    def forward(self, x: Tensor, positions: Tensor | None, *rest: Any) -> Tensor:
        assert positions is not None
        phase = positions[..., None].float() * rates(32, 100.0)
        return super().forward(x + torch.cat((phase.sin(), phase.cos()), -1).to(x.dtype), positions * 0, *rest)


def packed(layer: Packed, x: Tensor, document: Tensor | None = None) -> Tensor:
    if document is None:
        document = torch.zeros(x.shape[:2]).long()
    segment = layer.segments(document)
    return layer(x, layer.reset(segment), document != -1, Growing(), segment)


# -- bugs -------------------------------------------------------------------------------------------------------------


class DocumentsSeeOneAnother(Packed):
    """Positions begin again, and the mask is that of one text."""

    def same(self, document: Tensor) -> Tensor:
        return torch.ones(document.size(0), document.size(1), document.size(1)).bool()


class EndsTakenForStarts(Packed):
    """cu_seqlens less one: the first token of a document is the last of the one before."""

    def cu_seqlens(self, document: Tensor) -> list[int]:
        first, *inner, last = super().cu_seqlens(document)
        return [first, *(end + 1 for end in inner if end + 1 < last), last]


class CutsOfTheFirstRow(Packed):
    def segments(self, document: Tensor) -> Tensor:
        return super().segments(document)[:1].expand_as(document)


class LastCutLost(Packed):
    """The last document is part of the one before."""

    def cu_seqlens(self, document: Tensor) -> list[int]:
        cuts = super().cu_seqlens(document)
        return cuts if len(cuts) < 4 else [*cuts[:-2], cuts[-1]]


class CountsOn(PackedAndStanding):
    """Documents are apart, and positions count on."""

    def reset(self, segment: Tensor) -> Tensor:
        return torch.arange(segment.size(1)).expand_as(segment)


class ResetOneLate(PackedAndStanding):
    """Each document but the first begins at 1."""

    def reset(self, segment: Tensor) -> Tensor:
        return super().reset(segment) + (segment > 0).long()


def of_packed(build: Any = Packed) -> Layer:
    return Layer(build=build, call=packed, causal=True)


CORRECT = (of_packed(), of_packed(PackedAndStanding))
MUTANTS = (
    Mutant("cu_seqlens, documents see one another", of_packed(DocumentsSeeOneAnother), 11, 4),
    Mutant("cu_seqlens, cut one late", of_packed(EndsTakenForStarts), 11, 4),
    Mutant("cu_seqlens, those of the first row", of_packed(CutsOfTheFirstRow), 11, 4),
    Mutant("cu_seqlens, the last one lost", of_packed(LastCutLost), 11, 4),
    Mutant("packed sines that count on", of_packed(CountsOn), 11, 4),
    Mutant("packed sines that begin at 1", of_packed(ResetOneLate), 11, 4),
)
