"""Parity, a control: bits, an equals sign, and whether an odd number of them is 1.

    0110100=1

It *must fail* past the training length. No trained Transformer that answers at once is known to do this at lengths that
it was not trained on (Anil et al. 2022, arXiv 2207.04901; Delétang et al. 2023, arXiv 2207.02098). Every single bit
turns the answer over, and attention averages (Hahn 2020, arXiv 1906.06755). Where a scheme seems to tell the parity of
twice as many bits, look for a mistake in the comparison first.

The other control is `classify` with the scheme nope, which cannot tell the order of words.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from posenc.lab.puzzle import Puzzle, some_of


class Parity(Puzzle):
    """Whether an odd number of bits is 1."""

    defaults: ClassVar = {**Puzzle.defaults, "train_length": 12}
    chance = 0.5
    least = 12  # bits: of 4,096 rows there are enough to test with
    called = "a row of bits and their parity"
    lengths = "bits"
    title = "Parity, a control"
    axis = "bits"
    how_to_read = (
        "A row is bits, an equals sign, and 1 if an odd number of the bits is 1.",
        "This is a control, which must fail: no Transformer that answers at once is known to tell the parity of more "
        "bits than it was trained on. A scheme that seems to is a reason to look for a mistake.",
    )
    not_concluded = ("It is no measure of a scheme: none can pass it at lengths that were not trained.",)

    def pieces(self, rng: np.random.Generator, length: int) -> Sequence[str]:
        bits = some_of("01", length, rng)
        return f"{bits}=", str(bits.count("1") % 2)


TASK = Parity()
