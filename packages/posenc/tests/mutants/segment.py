"""Segment that looks elsewhere than at the segment."""

import torch
from torch import Tensor

from posenc import Positions, Segment
from tests.hard.wrong import sizes
from tests.mutants import Mutant, oracles


def reading(segment: str) -> object:
    def wrong(self: Segment, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
        assert positions.segment is not None
        index = {
            "the first": torch.zeros_like(positions.segment),
            "the next": (positions.segment + 1) % self.weight.size(0),
            "the document": positions.document.clamp(0, self.weight.size(0) - 1),
            "the position": positions.order % self.weight.size(0),
        }[segment]
        return self.weight[index].to(dtype)

    return wrong


MUTANTS = (
    Mutant("ignores the segment", Segment, "table", reading("the first"), oracles("segment")),
    Mutant("is off by one", Segment, "table", reading("the next"), oracles("segment")),
    Mutant("reads the document", Segment, "table", reading("the document"), oracles("segment")),
)


REFUSED = {
    "Segment": sizes(Segment, {"num_segments": 2, "dim": 8}, "num_segments", "dim"),
}
