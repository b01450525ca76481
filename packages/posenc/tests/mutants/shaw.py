"""Shaw that reads another row of its tables, or adds it in the wrong place."""

from posenc import Shaw
from tests.mutants import Mutant, elsewhere, index, lines, oracles

COMPARED = oracles("shaw")
VALUES = "self._rows(self.key_table if self.value_table is None else self.value_table)"
MUTANTS = (
    Mutant("takes distances between indices", Shaw, "score", elsewhere(Shaw, index, index), COMPARED),
    Mutant("leaves the values out", Shaw, "value", lambda self, *where: (), COMPARED),
    *lines(
        COMPARED,
        ("takes query minus key", Shaw, "_rows", "r.clamp(-k, k) + k", "(-r).clamp(-k, k) + k"),
        ("clips one too early", Shaw, "_rows", "r.clamp(-k, k) + k", "r.clamp(1 - k, k - 1) + k"),
        ("adds the values' table to the keys", Shaw, "score", "self._rows(self.key_table)", VALUES),
    ),
)
