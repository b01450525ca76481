"""Cameras as relative positions of patches.

    P_n = [K_n 0; 0 1] T_n of view n, with K_n for an image of side 1 whose middle is the origin
    each four of the first c channels:  q <- P^T q,  k <- P^-1 k,  v <- P^-1 v,  o <- P o
    the next r channels, half of them by the column, half by the row: pair m of a half, (m, m + r/4), is turned by
    -p base^(-4m/r) in q, k and v, and by p base^(-4m/r) in o

Li et al. 2025 (arXiv 2507.10496), after the authors' code; Miyato et al. 2024 (arXiv 2310.10375) without K. A
position is (view, row, column).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .attention import Matrix, Vector, heads
from .case import HEAD_DIM, Case, rows
from .matrices import identity, solved, times
from .turning import turned


def projection(camera: Matrix, intrinsics: Matrix | None, image: tuple[int, int]) -> Matrix:
    """P of one view; the intrinsics are for an image of (height, width)."""
    if intrinsics is None:
        return camera
    height, width = image
    (f_x, skew, c_x), (_, f_y, c_y), _ = intrinsics
    lifted = [
        [f_x / width, skew / width, c_x / width - 0.5, 0.0],
        [0.0, f_y / height, c_y / height - 0.5, 0.0],
        [0.0, 0.0, 1.0, 0.0],
        [0.0, 0.0, 0.0, 1.0],
    ]
    return times(lifted, camera)


def mapped(row: Vector, matrix: Matrix, y: float, x: float, c: int, r: int, base: float, sense: int) -> Vector:
    """One token's query, key, value (sense 1) or output (-1)."""
    out = list(row)
    for four in range(0, c, 4):
        for i in range(4):
            out[four + i] = sum(matrix[i][j] * row[four + j] for j in range(4))
    turns = [
        (first + m, first + m + r // 4, -sense * p * base ** (-4.0 * m / r))
        for first, p in ((c, x), (c + r // 2, y))
        for m in range(r // 4)
    ]
    return turned(out, turns)


def of_all(
    x: Tensor,
    positions: Sequence[Sequence[Sequence[int]]],
    which: str,
    cameras: Tensor,
    intrinsics: Tensor | None,
    image: tuple[int, int],
    channels: tuple[int, int],
    base: float,
) -> Tensor:
    """Every token of x (B, H, N, d): "query", "key" (also values) or "output". Cameras are (B or 1, views, 4, 4)."""
    out = heads(x)
    for b, sample in enumerate(heads(x)):
        for h, tokens in enumerate(sample):
            for n, row in enumerate(tokens):
                view, y, column = positions[b][n]
                camera = cameras[b % len(cameras)][view].tolist()
                inner = None if intrinsics is None else intrinsics[b % len(intrinsics)][view].tolist()
                P = projection(camera, inner, image)
                transposed = [list(line) for line in zip(*P, strict=True)]
                matrix = {"query": transposed, "key": solved(P, identity(4)), "output": P}[which]
                out[b][h][n] = mapped(row, matrix, y, column, *channels, base, -1 if which == "output" else 1)
    return torch.tensor(out, dtype=torch.float64)


def rig(*size: int, seed: int = 0) -> Tensor:
    """World-to-camera matrices, general affine maps, (*size, 4, 4)."""

    def line(n: int, i: int) -> Vector:
        return [float(i == j) + 0.3 * math.sin(1 + 97 * seed + 31 * n + 7 * i + 3 * j) for j in range(4)]

    made = [[*(line(n, i) for i in range(3)), [0.0, 0.0, 0.0, 1.0]] for n in range(math.prod(size))]
    return torch.tensor(made, dtype=torch.float64).view(*size, 4, 4)


def lenses(*size: int) -> Tensor:
    """Intrinsics with a skew, for images of 48 x 80, (*size, 3, 3)."""
    made = [[[60.0 + n, 3.0, 41.0 - n], [0.0, 55.0 - n, 20.0 + n], [0.0, 0.0, 1.0]] for n in range(math.prod(size))]
    return torch.tensor(made, dtype=torch.float64).view(*size, 3, 3)


IMAGE = (48, 80)


def _case(cameras: Tensor, intrinsics: Tensor | None = None) -> Case:
    image = None if intrinsics is None else IMAGE

    def by(which: str) -> Callable[[Tensor, Any], Tensor]:
        inner = None if intrinsics is None else intrinsics.view(-1, *intrinsics.shape[-3:])
        rigs = cameras.view(-1, *cameras.shape[-3:])
        return lambda x, p: of_all(x, rows(p), which, rigs, inner, IMAGE, (4, 0), 100.0)

    return Case(
        lambda Cameras: Cameras(HEAD_DIM, cameras, intrinsics, image, camera_dim=4, rotary_dim=0),
        turn_query=lambda q, p, scheme: by("query")(q, p),
        turn_key=lambda k, p, scheme: by("key")(k, p),
        turn_values=lambda v, p, sense: by("key" if sense == 1 else "output")(v, p),
        axes=3,
        from_zero=True,
    )


CASES = {"cameras": _case(rig(3)), "cameras of each row": _case(rig(2, 3), lenses(2, 3))}
