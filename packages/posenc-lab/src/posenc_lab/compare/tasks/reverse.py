"""Reverse: letters, an equals sign, and the same letters from the last to the first.

    qRtya=aytRq

Letters are drawn uniformly from 52, so some are repeated. The first letter of the answer is two places after its
original, and the last one a whole row, so the distance differs for every letter.

The task is one of Kazemnejad et al. 2023; `posenc_lab.compare.tasks.copy` has their figures over all tasks.
"""

import string
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from posenc_lab.compare.puzzle import Puzzle, some_of


class Reverse(Puzzle):
    """The same letters backwards."""

    defaults: ClassVar = {**Puzzle.defaults, "train_length": 16, "steps": 1200}
    called = "a row of letters and their reverse"
    lengths = "letters"
    title = "Letters in reverse"
    axis = "letters to reverse"
    how_to_read = (
        "A row is letters, an equals sign and the same letters from the last to the first. The answer begins beside "
        "its originals and ends a whole row away from them.",
    )
    not_concluded = (
        "Letters are told apart here by what they are as well as by where they stand, since most come once in a row. "
        "A scheme that reverses these need not reverse rows of few different letters.",
    )

    def pieces(self, rng: np.random.Generator, length: int) -> Sequence[str]:
        letters = some_of(string.ascii_letters, length, rng)
        return f"{letters}=", letters[::-1]


TASK = Reverse()
