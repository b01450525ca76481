"""Segment that looks elsewhere than at the segment."""

from posenc import Segment
from tests.mutants import lines, oracles

MUTANTS = lines(
    oracles("segment"),
    ("ignores the segment", Segment, "table", "[segment]", "[0 * segment]"),
    ("is off by one", Segment, "table", "[segment]", "[(segment + 1) % self.num_segments]"),
    ("reads the document", Segment, "table", "[segment]", "[positions.document.clamp(0, self.num_segments - 1)]"),
)
