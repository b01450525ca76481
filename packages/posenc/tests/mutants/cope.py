"""CoPE that counts other tokens, or looks its count up elsewhere."""

from posenc import CoPE
from tests.mutants import lines, oracles

COUNT = "following(g, key_positions, itself=True)"
MUTANTS = lines(
    oracles("cope"),
    ("leaves the key itself out", CoPE, "_row_scores", "itself=True", "itself=False"),
    ("counts by index and not by order", CoPE, "_row_scores", COUNT, "g.flip(-1).cumsum(-1).flip(-1)"),
    ("counts from the beginning", CoPE, "_row_scores", COUNT, "g.cumsum(-1)"),
)
