"""STRING: R(p) = exp(sum_a p_a L_a), with skew-symmetric L_a that commute.

Schenck et al. 2025, Learning the RoPEs (arXiv 2502.02562), definition 3.1, equations 9 to 11. The exponential is taken
by its series, of the generators themselves:

    cayley     L_a = P^T G_a P, P = (I - S)(I + S)^-1; G_a x on the pair (k, k + d/2) is f[a][k] (-x_b, x_a)
    circulant  L_a = C_a - C_a^T, C_a[r][s] = c_a[(r - s) mod d]

so that the score is q_i^T exp(sum_a (p_j - p_i)_a L_a) k_j / sqrt(d). S, f and c are learned, for each head of keys or
for all of them.
"""

from typing import Any

from torch import Tensor

from .attention import Matrix, Vector
from .case import HEAD_DIM, KV_HEADS, Case
from .matrices import identity, scores, skew, solved, times


def cayley(upper: Matrix, frequencies: list[Vector]) -> list[Matrix]:
    """L_a for every axis."""
    n, s = len(upper), skew(upper)
    one = identity(n)
    plus, minus = ([[one[i][j] + sign * s[i][j] for j in range(n)] for i in range(n)] for sign in (1, -1))
    basis = times(minus, solved(plus, one))
    back = [list(column) for column in zip(*basis, strict=True)]
    found = []
    for f in frequencies:
        turn = [[0.0] * n for _ in range(n)]
        for k, theta in enumerate(f):
            turn[k][k + n // 2], turn[k + n // 2][k] = -theta, theta
        found.append(times(back, times(turn, basis)))
    return found


def circulant(columns: list[Vector]) -> list[Matrix]:
    """L_a for every axis."""
    n = len(columns[0])
    return [[[c[(r - s) % n] - c[(s - r) % n] for s in range(n)] for r in range(n)] for c in columns]


def _cayley(s: Any, q: Tensor, k: Tensor, x: Any, y: Any) -> dict[str, Any]:
    return scores(q, k, x, y, [cayley(s.skew.tolist(), s.frequencies.tolist())], HEAD_DIM)


def _circulant(s: Any, q: Tensor, k: Tensor, x: Any, y: Any) -> dict[str, Any]:
    by_head = s.circulant.transpose(0, 1).tolist()
    return scores(q, k, x, y, [circulant(columns) for columns in by_head], HEAD_DIM)


CASES = {
    "string": Case(lambda STRING: STRING(HEAD_DIM, 2), pairs=_cayley, axes=2),
    "string circulant": Case(lambda STRING: STRING(HEAD_DIM, 2, "circulant", KV_HEADS), pairs=_circulant, axes=2),
}
