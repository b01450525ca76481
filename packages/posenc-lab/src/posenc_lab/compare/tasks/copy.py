"""Copy: letters, an equals sign, and the same letters again.

    qRtya=qRtya

Letters are drawn uniformly from 52, so some are repeated: then the previous letter does not determine the next one, and
the model needs two letters, or the distance to the original.

The task is that of Kazemnejad et al. 2023 (arXiv 2305.19466) and Jelassi et al. 2024 (arXiv 2402.01032). Over all tasks
of the former, trained at up to 20 and tested at up to 40 (40,000 steps of 64 rows, learning rate 3e-5, 107 million
parameters), the mean reciprocal rank of NoPE is 0.69, of T5's bias 0.55, of ALiBi 0.50, of RoPE 0.33 and of learned
positions 0.22.
"""

import string
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from posenc_lab.compare.puzzle import Puzzle, some_of


class Copy(Puzzle):
    """The same letters again."""

    defaults: ClassVar = {**Puzzle.defaults, "steps": 1000}
    called = "a row of letters and their copy"
    lengths = "letters"
    title = "A copy of letters"
    axis = "letters to copy"
    how_to_read = (
        "A row is letters, an equals sign and the same letters again. Each letter of the copy stands as far from its "
        "original as the row is long, so a longer row asks for a distance that no training had.",
    )
    not_concluded = (
        "A small model copies here what it can find again among 52 letters. It does not show that a scheme copies text "
        "in a large one, where whole words are told from what stands around them.",
    )

    def pieces(self, rng: np.random.Generator, length: int) -> Sequence[str]:
        letters = some_of(string.ascii_letters, length, rng)
        return f"{letters}=", letters


TASK = Copy()
