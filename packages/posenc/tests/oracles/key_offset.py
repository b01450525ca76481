"""Partial key offset: some channels of a key are those of the token before it in its document.

    k_jc <- k_ic  for the offset channels c, i being the token of the next lower order in the document of j

The code of modded-nanogpt: the last half of the channels, or the last quarter of either half. Conventions: the first
token of a document keeps its own channels, and no channel comes from another document.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .case import HEAD_DIM, Case


def before(order: list[int], document: list[int], j: int) -> int:
    """The token before j, or j."""
    earlier = [i for i in range(len(order)) if document[i] == document[j] and order[i] < order[j]]
    return max(earlier, key=lambda i: order[i], default=j)


def is_offset(c: int, d: int, form: str) -> bool:
    return c >= d // 2 if form == "partial" else d // 4 <= c < d // 2 or c >= 3 * d // 4


def offset(form: str) -> Callable[[Tensor, Any, Any], Tensor]:
    def turn(x: Tensor, positions: Any, scheme: Any) -> Tensor:
        wide = positions.expand(x.size(0))
        out = x.clone()
        for b, (order, document) in enumerate(zip(wide.order.tolist(), wide.document.tolist(), strict=True)):
            for j in range(x.size(2)):
                for c in range(x.size(3)):
                    if is_offset(c, x.size(3), form):
                        out[b, :, j, c] = x[b, :, before(order, document, j), c]
        return out

    return turn


CASES = {"key_offset": Case(lambda KeyOffset: KeyOffset(HEAD_DIM), turn_key=offset("partial"))}
