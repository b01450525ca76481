"""Matrices of plain numbers: what the oracles of learned rotations need, and the exponential by its series."""

import math
from functools import cache
from typing import Any

from torch import Tensor

from .attention import Matrix, Vector, dot
from .turning import scores as scores_of


def identity(n: int) -> Matrix:
    return [[float(i == j) for j in range(n)] for i in range(n)]


def times(a: Matrix, b: Matrix) -> Matrix:
    """a b."""
    columns = [list(column) for column in zip(*b, strict=True)]
    return [[dot(row, column) for column in columns] for row in a]


def combined(factors: Vector, several: list[Matrix]) -> Matrix:
    """sum_n factors_n several_n."""
    n = len(several[0])
    return [[sum(f * one[i][j] for f, one in zip(factors, several, strict=True)) for j in range(n)] for i in range(n)]


def skew(upper: Matrix) -> Matrix:
    """The skew-symmetric matrix with these numbers above the diagonal; those below do not count."""
    n = len(upper)
    return [[upper[i][j] if i < j else -upper[j][i] if j < i else 0.0 for j in range(n)] for i in range(n)]


def solved(a: Matrix, b: Matrix) -> Matrix:
    """x of a x = b, by Gauss's elimination with the largest pivot."""
    n = len(a)
    left = [[*a[i], *b[i]] for i in range(n)]
    for c in range(n):
        best = max(range(c, n), key=lambda i: abs(left[i][c]))
        left[c], left[best] = left[best], left[c]
        left[c] = [value / left[c][c] for value in left[c]]
        for i in range(n):
            if i != c:
                left[i] = [value - left[i][c] * pivot for value, pivot in zip(left[i], left[c], strict=True)]
    return [row[n:] for row in left]


def exponential(a: Matrix) -> Matrix:
    """sum_n a^n/n!, of a matrix halved until it is small, and squared as often."""
    n = len(a)
    size = max(sum(abs(value) for value in row) for row in a)
    halvings = max(0, math.ceil(math.log2(size / 0.25))) if size else 0
    small = [[value / 2.0**halvings for value in row] for row in a]
    total, term = identity(n), identity(n)
    for m in range(1, 15):  # 0.25^15/15! is below 10^-21
        term = [[value / m for value in row] for row in times(term, small)]
        total = [[x + y for x, y in zip(r, s, strict=True)] for r, s in zip(total, term, strict=True)]
    for _ in range(halvings):
        total = times(total, total)
    return total


def scores(query: Tensor, key: Tensor, x: Any, y: Any, generators: list[list[Matrix]], channels: int) -> dict[str, Any]:
    """q_i^T R(p_i)^T R(p_j) k_j / sqrt(d), R(p) = exp(sum_a p_a generators[head of the key][a]) on some channels."""

    @cache
    def at(place: tuple[float, ...], h: int) -> Matrix:
        return exponential(combined(list(place), generators[h]))

    def turn(row: Vector, place: float | Vector, h: int) -> Vector:
        matrix = at(tuple(place) if isinstance(place, list) else (place,), h if len(generators) > 1 else 0)
        return [dot(line, row[:channels]) for line in matrix] + row[channels:]

    return scores_of(query, key, x, y, turn)
