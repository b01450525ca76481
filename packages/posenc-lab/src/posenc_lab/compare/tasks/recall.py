"""Recall: pairs of a key and a value with filler between them, and then keys again, each with its value.

    ..gD.....aH..fB.cB..=fBgDcBfBaHgDgDaH

This is multi-query associative recall (MQAR, Arora et al. 2023, Zoology, arXiv 2312.04927) with 8 keys and 8 values for
its 8,192 tokens, and with a fixed number of pairs: what grows with the length is the filler, so the distance to a value
and nothing else. The keys of a row differ, its values may not. Keys are asked for at random and are given. Where one
comes again its value stands nearer, but a row is right only if the first time is right too.

In the paper, attention solves it at its training lengths; here it is tested beyond them.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from posenc_lab.compare.puzzle import Puzzle, some_of

PAIRS, QUESTIONS = 4, 8
KEYS, VALUES = "abcdefgh", "ABCDEFGH"


class Recall(Puzzle):
    """The values of keys."""

    defaults: ClassVar = {**Puzzle.defaults, "train_length": 16}
    multiples = (1, 2, 4, 8)
    shortest = least = 2 * PAIRS
    called = "a row of keys and values among filler"
    lengths = "characters"
    title = "The values of keys"
    axis = "characters before the questions"
    how_to_read = (
        f"A row has {PAIRS} pairs of a key and a value with filler between them, and then {QUESTIONS} times a key "
        "whose value is to be told. All of them must be right.",
        "There are as many pairs at every length: what grows is the filler, and so the distance to the values.",
    )
    not_concluded = (
        "The filler is one character over and over, and easy to pass over. In text what lies between is more like what "
        "is looked for.",
    )

    def pieces(self, rng: np.random.Generator, length: int) -> Sequence[str]:
        keys = some_of(KEYS, PAIRS, rng, again=False)
        values = some_of(VALUES, PAIRS, rng)
        filler = length - 2 * PAIRS
        gaps = np.diff(np.sort(rng.integers(filler + 1, size=PAIRS)), prepend=0, append=filler)
        pairs = [key + value for key, value in zip(keys, values, strict=True)]
        text = "".join("." * gap + pair for gap, pair in zip(gaps, [*pairs, "="], strict=True))
        asked = [character for n in rng.integers(PAIRS, size=QUESTIONS) for character in pairs[n]]
        return [text + asked[0], *asked[1:]]


TASK = Recall()
