"""Shaw that reads another row of its tables, or adds it in the wrong place."""

from posenc import Positions, Shaw
from posenc.encoding.encoding import Context
from posenc.encoding.pieces import Value
from tests.mutants import Mutant, elsewhere, index, oracles
from tests.mutants.backends import Line


def nothing(self: Shaw, queries: Positions, keys: Positions, context: Context | None = None) -> tuple[Value, ...]:
    return ()


COMPARED = oracles("shaw")
MUTANTS = (
    Mutant("takes distances between indices", Shaw, "score", elsewhere(Shaw, index, index), oracles("shaw")),
    Mutant("leaves the values out", Shaw, "value", nothing, COMPARED),
    Line("takes query minus key", Shaw, "_rows", ("r.clamp(-k, k) + k", "(-r).clamp(-k, k) + k"), COMPARED),
    Line("clips one too early", Shaw, "_rows", ("r.clamp(-k, k) + k", "r.clamp(1 - k, k - 1) + k"), COMPARED),
    Line(
        "adds the values' table to the keys",
        Shaw,
        "score",
        ("self._rows(self.key_table)", "self._rows(self.key_table if self.value_table is None else self.value_table)"),
        COMPARED,
    ),
)
