"""Pairs of channels that turn, token by token: what the oracles of rotations share.

(x_a, x_b) <- (x_a cos φ - x_b sin φ,  x_a sin φ + x_b cos φ)
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from .attention import Heads, Vector, dot, heads


def pair(k: int, n: int, layout: str, start: int = 0) -> tuple[int, int]:
    """The channels of pair k of the n that are paired: (k, k + n/2) in the half layout, (2k, 2k + 1) interleaved."""
    if layout == "half":
        return start + k, start + k + n // 2
    assert layout == "interleaved", f"layout must be half or interleaved, got {layout!r}"
    return start + 2 * k, start + 2 * k + 1


def turned(row: Vector, pairs: Iterable[tuple[int, int, float]]) -> Vector:
    """The row with each pair (a, b, φ) turned by its angle."""
    out = list(row)
    for a, b, angle in pairs:
        out[a] = row[a] * math.cos(angle) - row[b] * math.sin(angle)
        out[b] = row[a] * math.sin(angle) + row[b] * math.cos(angle)
    return out


def turn(row: Vector, angle: float, base: float, layout: str) -> Vector:
    """R(angle) of a row of D channels: pair m by angle base^(-2m/D), counter-clockwise."""
    n = len(row)
    return turned(row, [(*pair(m, n, layout), angle * base ** (-2 * m / n)) for m in range(n // 2)])


def every_token(x: Tensor | Heads, places: Any, turn: Callable[[Vector, Any, int], Vector]) -> Heads:
    """``turn(row, place, head)`` of every token of x (batch, heads, tokens, channels), at places (batch, tokens)."""
    return [
        [[turn(row, places[b][n], h) for n, row in enumerate(tokens)] for h, tokens in enumerate(sample)]
        for b, sample in enumerate(heads(x))
    ]


def turns(angles: Callable[[Vector, Any], Iterable[tuple[int, int, float]]]) -> Callable[[Tensor, Any], Tensor]:
    """Every token's pairs (a, b, φ), as ``angles(row, place)`` has them."""

    def of_all(x: Tensor, positions: Any) -> Tensor:
        places = positions.expand(2).coords.tolist()
        out = every_token(x, places, lambda row, place, _: turned(row, angles(row, place)))
        return torch.tensor(out, dtype=torch.float64)

    return of_all


def scores(
    query: Tensor, key: Tensor, x: Any, y: Any, turn: Callable[[Vector, Any, int], Vector]
) -> dict[str, Callable[..., float]]:
    """q_i . k_j / sqrt(d) from nothing, each after ``turn(row, place, head)``; the head is the key's."""
    group = query.shape[1] // key.shape[1]
    here, there = (p.expand(2).coords.tolist() for p in (x, y))
    q, k = every_token(query, here, lambda row, place, h: turn(row, place, h // group)), every_token(key, there, turn)
    return {"score": lambda _, b, h, i, j: dot(q[b][h][i], k[b][h // group][j]) / math.sqrt(len(q[b][h][i]))}
