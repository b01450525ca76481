"""The indexer of sparse attention: the top_k keys of the greatest sum over h of w_ih relu(q_ih . k_j), one at a time.

Conventions: of equal scores the earlier key is chosen; a query that sees fewer than top_k keys has them all. In blocks
of consecutive tokens of a document the key is the mean of its keys, at the position of the first; what a query does not
see as a whole block it attends to.
"""

import math
from collections.abc import Callable, Sequence

from .attention import Vector, dot
from .turning import pair, turned

Places = Sequence[tuple[float, int, int]]
"""(coordinate, order, document) of each token; document -1: padding."""


def rotation(layout: str, n: int, first: int, base: float) -> Callable[[Vector, float], Vector]:
    """R(p) of a row, on n channels from ``first`` on."""
    return lambda row, p: turned(row, [(*pair(m, n, layout, first), p * base ** (-2 * m / n)) for m in range(n // 2)])


def score(queries: Sequence[Vector], key: Vector, weights: Sequence[float]) -> float:
    """Of a query's heads with one key, both turned."""
    total = sum(w * max(0.0, dot(q, key)) for q, w in zip(queries, weights, strict=True))
    return total / math.sqrt(len(queries) * len(key))


def sees(query: tuple[float, int, int], key: tuple[float, int, int], is_causal: bool) -> bool:
    return query[2] == key[2] != -1 and not (is_causal and key[1] > query[1])


def attended(
    query: Sequence[Sequence[Vector]],
    key: Sequence[Vector],
    weights: Sequence[Sequence[float]],
    at: Places,
    there: Places,
    turn: Callable[[Vector, float], Vector],
    top_k: int,
    block: int,
    is_causal: bool,
) -> list[list[bool]]:
    """Which keys each query attends to, for one sample: query and weights by head and token."""
    mask = []
    for i, place in enumerate(at):
        mine = [turn(head[i], place[0]) for head in query]
        seen = [j for j in range(len(there)) if sees(place, there[j], is_causal)]
        seen.sort(key=lambda j: there[j][1])
        whole = len(seen) - len(seen) % block
        blocks = [seen[n : n + block] for n in range(0, whole, block)]
        found = []
        for members in blocks:
            mean = [sum(key[j][c] for j in members) / block for c in range(len(key[0]))]
            found.append(score(mine, turn(mean, there[members[0]][0]), [w[i] for w in weights]))
        order = sorted(range(len(blocks)), key=lambda n: (-found[n], blocks[n][0]))
        chosen = {j for n in order[: top_k // block] for j in blocks[n]} | set(seen[whole:])
        mask.append([j in chosen for j in range(len(there))])
    return mask
