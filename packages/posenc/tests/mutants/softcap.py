"""Softcap with another bound."""

from posenc import Softcap
from posenc.schemes import softcap
from tests.mutants import lines, oracles

MUTANTS = lines(
    oracles("softcap"),
    ("does not give the cap back", softcap, "capped", "cap * torch", "torch"),
    ("caps at 1", softcap, "capped", "score / cap", "score"),
    ("caps twice as high", Softcap, "_caps", "self.cap", "2 * self.cap"),
)
