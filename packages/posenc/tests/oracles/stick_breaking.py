"""Stick-breaking attention: keys, from the nearest on, each take their share of what is left.

    A_ij = b_ij prod_{t between j and i} (1 - b_it),   b_ij = sigmoid(s_ij),   o_i = sum_j A_ij v_j

Tan et al. 2025 (arXiv 2410.17980), section 2. Conventions: keys before the query alone, by the tokens' order; with
``itself`` the query's own key comes first. What a query does not see takes nothing. The weights are not normalised.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from .attention import Row, Vector
from .case import Case
from .cope import sigmoid


def row(query_order: Sequence[Sequence[int]], key_order: Sequence[Sequence[int]], *, itself: bool) -> Row:
    """The logarithms of the weights of one query, -inf where there is none."""

    def taken(logits: Vector, b: int, h: int, i: int, visible: list[bool]) -> Vector:
        here, order = query_order[b][i], key_order[b]
        out = [-math.inf] * len(logits)
        left = 1.0
        for j in sorted(range(len(logits)), key=lambda j: -order[j]):
            if visible[j] and (order[j] < here or (itself and order[j] == here)):
                share = sigmoid(logits[j])
                out[j] = math.log(left * share)
                left *= 1.0 - share
        return out

    return taken


def _broken(itself: bool) -> Callable[..., dict[str, Any]]:
    return lambda s, q, k, x, y: {
        "row": row(x.expand(2).order.tolist(), y.expand(2).order.tolist(), itself=itself),
        "normalised": False,
    }


CASES = {
    "stick_breaking": Case(lambda StickBreaking: StickBreaking(), pairs=_broken(itself=False), refused_by=("sdpa",)),
    "stick_breaking of itself too": Case(
        lambda StickBreaking: StickBreaking(sees_itself=True), pairs=_broken(itself=True), refused_by=("sdpa",)
    ),
}
