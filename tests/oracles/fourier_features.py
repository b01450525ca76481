"""Fourier features of coordinates.

    P[x] = [ cos 2 pi b_1.x .. cos 2 pi b_m.x | sin 2 pi b_1.x .. sin 2 pi b_m.x ],        m = dim/2
    learned:  y = W2 gelu( W1 P[x] / sqrt(dim) + b1 ) + b2,        gelu(z) = z (1 + erf(z / sqrt 2)) / 2

Tancik et al. 2020 (arXiv 2006.10739), the Gaussian mapping; learned: Li et al. 2021 (arXiv 2106.02795), Eqs. 2 and 6,
with one group. Conventions: all cosines come first; `directions` is (m, axes), one row a direction, drawn from N(0,
sigma^2) by whoever calls; coordinates are taken as they come, neither centred nor divided by the grid's size. Li's W_r
has no 2 pi in front: it is 2 pi B. The dim under the root counts the features, not the width of y. Weights are (out,
in). The norm of P is sqrt(dim/2) everywhere; P[x].P[y] depends on x - y alone and its mean over the draw of B is
(dim/2) exp(-2 pi^2 sigma^2 |x - y|^2). Any real coordinates will do.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .attention import Matrix, Vector, dot, matrix, vector
from .case import DIM, Case, rows


def table(coords: Sequence[Sequence[float]], directions: Tensor | Matrix) -> Matrix:
    """One row of dim numbers per point; a point has one coordinate an axis."""
    b = matrix(directions)
    rows: Matrix = []
    for point in coords:
        angles = [2.0 * math.pi * dot(direction, list(point)) for direction in b]
        rows.append([math.cos(a) for a in angles] + [math.sin(a) for a in angles])
    return rows


def gelu(z: float) -> float:
    """z Phi(z), exactly; not the tanh approximation."""
    return 0.5 * z * (1.0 + math.erf(z / math.sqrt(2.0)))


def learned_table(
    coords: Sequence[Sequence[float]],
    directions: Tensor | Matrix,
    w1: Tensor | Matrix,
    b1: Tensor | Vector,
    w2: Tensor | Matrix,
    b2: Tensor | Vector,
) -> Matrix:
    """One row of the second layer's width per point; w1: (hidden, dim), w2: (out, hidden)."""
    first, second = list(zip(matrix(w1), vector(b1), strict=True)), list(zip(matrix(w2), vector(b2), strict=True))
    rows: Matrix = []
    for features in table(coords, directions):
        scaled = [f / math.sqrt(len(features)) for f in features]
        hidden = [gelu(dot(weights, scaled) + bias) for weights, bias in first]
        rows.append([dot(weights, hidden) + bias for weights, bias in second])
    return rows


def _added(x: Tensor, p: Any, scheme: Any) -> Tensor:
    points = [[point if isinstance(point, list) else [point] for point in row] for row in rows(p)]
    directions = matrix(scheme._directions(x.device))
    if scheme.mix is None:
        vectors = [table(row, directions) for row in points]
    else:
        first, _, second = scheme.mix
        weights = (matrix(first.weight), vector(first.bias), matrix(second.weight), vector(second.bias))
        vectors = [learned_table(row, directions, *weights) for row in points]
    return x + torch.tensor(vectors, dtype=torch.float64)


CASES = {
    "fourier": Case(lambda FourierFeatures: FourierFeatures(DIM, sigma=0.3, seed=5), add=_added),
    "fourier 2d learned": Case(
        lambda FourierFeatures: FourierFeatures(DIM, axes=2, learned=True),
        add=_added,
        axes=2,
        wide=False,  # two such layers make scores in the hundreds, too steep for finite differences
    ),
}
