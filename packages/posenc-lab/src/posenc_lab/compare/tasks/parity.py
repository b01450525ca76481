"""Parity, a control: bits, an equals sign, and whether an odd number of them is 1.

    0110100=1

It *must not be solved* at twice the training length. No trained Transformer that answers at once is known to do that
(Anil et al. 2022, arXiv 2207.04901; Delétang et al. 2023, arXiv 2207.02098): every single bit turns the answer over,
and attention averages (Hahn 2020, arXiv 1906.06755). Somewhat above guessing is no mistake. Where a scheme solves it,
look for one in the comparison first.

The other control is `classify` with the scheme nope, which cannot tell the order of words.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from posenc_lab.compare.puzzle import Puzzle, some_of


class Parity(Puzzle):
    """Whether an odd number of bits is 1."""

    defaults: ClassVar = {**Puzzle.defaults, "train_length": 10, "steps": 1200}
    multiples = (1, 2, 4)
    chance = 0.5
    least = 10  # bits: of 1,024 rows there are enough to test with
    called = "a row of bits and their parity"
    lengths = "bits"
    title = "Parity, a control"
    axis = "bits"
    how_to_read = (
        "A row is bits, an equals sign, and 1 if an odd number of the bits is 1.",
        "This is a control. No Transformer that answers at once is known to solve it for twice as many bits as it was "
        "trained on, so a scheme that does is a reason to look for a mistake. Somewhat above guessing is none.",
    )
    not_concluded = ("It is no measure of a scheme: none should pass it at lengths that were not trained.",)

    def pieces(self, rng: np.random.Generator, length: int) -> Sequence[str]:
        bits = some_of("01", length, rng)
        return f"{bits}=", str(bits.count("1") % 2)


TASK = Parity()
