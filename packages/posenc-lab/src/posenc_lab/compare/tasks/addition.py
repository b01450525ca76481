"""Addition: two binary numbers of as many digits, an equals sign, and their sum, which has one more digit.

    01101+01011=011000

The most significant digit comes first; leading zeros give all rows of a length the same size. Numbers are binary
because a model this small did not learn sums of four decimal digits in a minute, in either order of the digits.

Published set-ups differ, and with them what generalises. Kazemnejad et al. 2023 (arXiv 2305.19466) add decimal numbers,
the most significant digit first; Lee et al. 2023 (arXiv 2307.03381) and McLeish et al. 2024 (arXiv 2405.17399) put the
least significant one first, so that a carry is known before the digit that takes it. `copy` has the
figures of the first over all their tasks.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from posenc_lab.compare.puzzle import Puzzle, some_of


class Addition(Puzzle):
    """The sum of two numbers."""

    defaults: ClassVar = {**Puzzle.defaults, "train_length": 5, "steps": 2000}
    least = 5  # digits: of 1,024 rows there are enough to test with
    called = "a row of two numbers and their sum"
    lengths = "digits"
    title = "The sum of two numbers"
    axis = "digits of each number"
    how_to_read = (
        "A row is two binary numbers of as many digits and their sum, the most significant digit first. A digit of the "
        "sum is told from two digits that stand as far from each other as the numbers are long, and from the carry, "
        "which comes from the digits to the right.",
    )
    not_concluded = ("Decimal, or written from the least significant digit, the order of the schemes may be another.",)

    def pieces(self, rng: np.random.Generator, length: int) -> Sequence[str]:
        one, other = (some_of("01", length, rng) for _ in range(2))
        return f"{one}+{other}=", f"{int(one, 2) + int(other, 2):0{length + 1}b}"


TASK = Addition()
