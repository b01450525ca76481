"""Implementations with the bugs that users met, each planted once, and their correct twins."""

from dataclasses import dataclass

from posenc_check import Subject


@dataclass(frozen=True)
class Mutant:
    """A subject with one bug, the number of the check that must catch it, and the pain it is of."""

    name: str
    subject: Subject
    caught_by: int
    pain: int
