"""AbsoluteInAttention that reads another row, or lets another meet it."""

from functools import partial

from posenc import AbsoluteInAttention
from tests.laws.audits import check_claim
from tests.mutants import lines, oracles, undrawn

ROWS = 'table_index(key_positions, "AbsoluteInAttention", self.max_positions)'
MUTANTS = (
    *lines(
        oracles("absolute_in_attention"),
        ("reads the next row", AbsoluteInAttention, "score", "[rows]", "[(rows + 1) % self.max_positions]"),
    ),
    *lines(
        partial(check_claim, "absolute_in_attention", "length_free"),
        (
            "clamps positions",
            AbsoluteInAttention,
            "score",
            ROWS,
            "key_positions.coords.clamp(0, self.max_positions - 1)",
        ),
    ),
    undrawn(AbsoluteInAttention, "absolute_in_attention"),
)
