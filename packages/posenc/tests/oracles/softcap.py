"""A smooth bound on every score.

    s_ij <- cap tanh(s_ij / cap)

Gemma 2 (2024), section 2; transformers, models/gemma2. Conventions: after the division by sqrt(d), before the mask.
"""

import math

from .attention import Score
from .case import Case

CAP = 0.7


def score(cap: float) -> Score:
    """The capped logit."""
    return lambda s, b, h, i, j: cap * math.tanh(s / cap)


CASES = {
    "softcap": Case(
        lambda Softcap: Softcap(CAP), pairs=lambda s, q, k, x, y: {"score": score(CAP)}, refused_by=("sdpa",)
    )
}
