"""Fourier features of coordinates.

    P[x] = [ cos 2 pi b_1.x .. cos 2 pi b_m.x | sin 2 pi b_1.x .. sin 2 pi b_m.x ],        m = dim/2
    learned:  y = W2 gelu( W1 P[x] / sqrt(dim) + b1 ) + b2,        gelu(z) = z (1 + erf(z / sqrt 2)) / 2

Tancik et al. 2020 (arXiv 2006.10739), the Gaussian mapping; learned: Li et al. 2021 (arXiv 2106.02795), Eqs. 2 and 6,
with one group. Conventions: all cosines come first; `directions` is (m, axes), one row a direction, drawn from N(0,
sigma^2) by whoever calls; coordinates are taken as they come, neither centred nor divided by the grid's size. Li's W_r
has no 2 pi in front: it is 2 pi B. The dim under the root counts the features, not the width of y. Weights are (out,
in). The norm of P is sqrt(dim/2) everywhere; P[x].P[y] depends on x - y alone and its mean over the draw of B is
(dim/2) exp(-2 pi^2 sigma^2 |x - y|^2). Any real coordinates will do.

    perceiver  P[x] = [ sin pi f_ak x_a, axis after axis | cos pi f_ak x_a, likewise ],
               f_ak = 1 + k (resolution_a / 2 - 1) / (K - 1),  k = 0 .. K-1
    nerf       P[x] = [ sin x_1 .. sin x_A | cos x_1 .. cos x_A | sin 2 x_1 .. | cos 2^(K-1) x_1 .. ]

Jaegle et al. 2021 (arXiv 2103.03206), section 3.2, in the order of transformers (models/perceiver,
`generate_fourier_features`); Mildenhall et al. 2020 (arXiv 2003.08934), section 5.1, in the order of bmild/nerf
(run_nerf_helpers.py), which has no pi. Both append x too.
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


def perceiver_table(coords: Sequence[Sequence[float]], count: int, resolution: Sequence[float]) -> Matrix:
    """One row of 2 A count numbers per point of A coordinates."""
    out: Matrix = []
    for point in coords:
        angles: Vector = []
        for x, points in zip(point, resolution, strict=True):
            for k in range(count):
                angles.append(math.pi * (1 + (k * (points / 2 - 1) / (count - 1) if k else 0.0)) * x)
        out.append([*map(math.sin, angles), *map(math.cos, angles)])
    return out


def nerf_table(coords: Sequence[Sequence[float]], count: int) -> Matrix:
    """One row of 2 A count numbers per point of A coordinates."""
    out: Matrix = []
    for point in coords:
        row: Vector = []
        for k in range(count):
            row += [math.sin(2.0**k * x) for x in point]
            row += [math.cos(2.0**k * x) for x in point]
        out.append(row)
    return out


def _in_bands(x: Tensor, p: Any, scheme: Any) -> Tensor:
    points = [[point if isinstance(point, list) else [point] for point in row] for row in rows(p)]
    count = scheme.dim // (2 * scheme.axes)
    resolution = scheme.resolution
    if resolution is None:
        vectors = [nerf_table(row, count) for row in points]
    else:
        vectors = [perceiver_table(row, count, resolution) for row in points]
    return x + torch.tensor(vectors, dtype=torch.float64)


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
    "fourier perceiver": Case(
        lambda FourierFeatures: FourierFeatures(DIM, axes=2, bands="perceiver", resolution=(7.0, 4.5)),
        add=_in_bands,
        axes=2,
    ),
    "fourier nerf": Case(lambda FourierFeatures: FourierFeatures(DIM, axes=3, bands="nerf"), add=_in_bands, axes=3),
}
