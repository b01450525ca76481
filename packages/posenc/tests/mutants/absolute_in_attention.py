"""AbsoluteInAttention that reads another row, or lets another meet it."""

from posenc import AbsoluteInAttention
from posenc.schemes.catalog import entries_of
from tests.mutants import lines, oracles, undrawn
from tests.schemes import test_laws


def of_a_fixed_length() -> None:
    test_laws.check_claim(*entries_of("absolute_in_attention"), "length_free")


ROWS = 'table_index(key_positions, "AbsoluteInAttention", self.max_positions)'
MUTANTS = (
    *lines(
        oracles("absolute_in_attention"),
        ("reads the next row", AbsoluteInAttention, "score", "[rows]", "[(rows + 1) % self.max_positions]"),
    ),
    *lines(
        of_a_fixed_length,
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
