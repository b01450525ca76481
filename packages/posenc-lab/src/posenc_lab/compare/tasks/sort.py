"""Sort: different letters, an equals sign, and the same letters in the order of ASCII, capitals first.

    qRtya=Raqty

No letter is repeated, so the next letter of the answer is the smallest one above the previous letter. That follows from
the letters alone: the puzzle tests whether positions do harm where they are not needed.

The task is one of Kazemnejad et al. 2023; `posenc_lab.compare.tasks.copy` has their figures over all tasks.
"""

import string
from collections.abc import Sequence

import numpy as np

from posenc_lab.compare.puzzle import Puzzle, some_of


class Sort(Puzzle):
    """The same letters in order."""

    most = len(string.ascii_letters)
    called = "a row of letters and the same in order"
    lengths = "letters"
    title = "Letters in order"
    axis = "letters to sort"
    how_to_read = (
        "A row is different letters, an equals sign and the same letters in order, capitals first. The letters alone "
        "tell the answer, so what a scheme loses on longer rows it loses because positions are in the way.",
    )
    not_concluded = ("No letter comes twice. Rows with repeated letters have to be counted as well, which is harder.",)

    def pieces(self, rng: np.random.Generator, length: int) -> Sequence[str]:
        letters = some_of(string.ascii_letters, length, rng, again=False)
        return f"{letters}=", "".join(sorted(letters))


TASK = Sort()
