"""Index: a list of letters, then numbers of places in it, and after each number the letter at that place.

    qrtyakmb=2t7b0q2t

Places are counted from zero and written as in base 36, 0 to 9 and then A to Z. Letters are drawn from 26 and
repeat, so they can only be found by position. Lists beyond the training length are asked for places that did not occur
in training.

Gopalakrishnan et al. 2025 (arXiv 2509.10534) ask for a letter so many steps from another one, found by its name
(indirect indexing), and report 95 % for PoPE and 11 % for RoPE. This puzzle counts from the beginning of the list, so
those figures are not to be expected here.
"""

import string
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from posenc_lab.compare.puzzle import Puzzle, some_of

QUESTIONS = 4
PLACES = string.digits + string.ascii_uppercase


class Index(Puzzle):
    """The letters at places of a list."""

    defaults: ClassVar = {
        **Puzzle.defaults,
        "schemes": ("nope", "learned", "sinusoidal", "rope", "pope", "alibi", "t5"),
        "train_length": 16,
    }
    shortest = least = 8
    most = len(PLACES)
    called = "a row of letters and places among them"
    lengths = "letters"
    title = "The letter at a place"
    axis = "letters of the list"
    how_to_read = (
        f"A row is a list of letters and {QUESTIONS} questions: the number of a place, counted from zero, and the "
        "letter there. All of them must be right. Letters come several times, so only their places tell them apart.",
        "Longer lists are also asked for places that no training asked for.",
    )
    not_concluded = (
        "Places are counted from the beginning of the row, which suits schemes that know it. Counted from elsewhere, "
        "the order of the schemes may be another.",
    )

    def pieces(self, rng: np.random.Generator, length: int) -> Sequence[str]:
        letters = some_of(string.ascii_lowercase, length, rng)
        asked = [piece for place in rng.integers(length, size=QUESTIONS) for piece in (PLACES[place], letters[place])]
        return [f"{letters}={asked[0]}", *asked[1:]]


TASK = Index()
