"""Passkey: a number said once in a text, and asked for at the end.

    the sky is blue. the s#40718un is yellow. here we go. the#40718

The filler is that of Mohtashami & Jaggi 2023 (arXiv 2305.16300), the same sentences repeated, from a random place on.
The number, of five digits, is at a random place between two signs, instead of the sentence "The pass key is", so that a
small model can read it: ``#`` announces a number, and asks for it at the end.

Large models trained on far longer text find the key at any depth within their trained length and, with RoPE as it is,
hardly ever past it (Chen et al. 2023, arXiv 2306.15595).
"""

import string
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from posenc_lab.compare.puzzle import Puzzle, some_of

DIGITS = 5
FILLER = "the grass is green. the sky is blue. the sun is yellow. here we go. there and back again. "


class Passkey(Puzzle):
    """A number said once."""

    defaults: ClassVar = {**Puzzle.defaults, "train_length": 32, "steps": 900, "learning_rate": 2e-3}
    multiples = (1, 2, 4, 8)
    shortest = least = 16
    called = "a text with a number in it"
    lengths = "characters"
    title = "A number said once"
    axis = "characters before the question"
    how_to_read = (
        f"A row is a text of sentences that repeat, with a number of {DIGITS} digits anywhere in it, and the number "
        "again. At a greater length it stands, on average, as many times further back.",
    )
    not_concluded = (
        "The sentences repeat and no other number is in them, so the key stands out. This asks whether a scheme lets a "
        "model look that far back, not whether it finds one fact among many alike.",
    )

    def pieces(self, rng: np.random.Generator, length: int) -> Sequence[str]:
        key = some_of(string.digits, DIGITS, rng)
        size = length - DIGITS - 1
        begin, at = int(rng.integers(len(FILLER))), int(rng.integers(size + 1))
        text = (FILLER * (2 + size // len(FILLER)))[begin : begin + size]
        return f"{text[:at]}#{key}{text[at:]}#", key


TASK = Passkey()
