"""Axial rotary position embedding for images, under the conventions of released models.

    pairs of an axis at coordinate p:  (a, b) <- (a cos φ - b sin φ,  a sin φ + b cos φ),  φ = unit p θ_k
    θ_k = base^(-4k/D),  k = 0 .. D/4 - 1,  D = rotary_dim

Heo et al. 2024 (arXiv 2403.13298), section 3.2, and the released code of each model. Conventions, for a position
(y, x): "index", "llama4" and "pe" give x the first D/4 pairs and y the others, pair k being the channels (2k, 2k+1);
"eva" the same with y first; "dinov3" has y first, pair k being (k, k + D/2), and unit = 2π; "gemma4" has x
in the first half of the channels and y in the other, pair k of each being (k, k + D/4) there; "step3" has x first,
pair k being (k, k + D/2). Coordinates are given; `coordinates` says which a convention gives to patch (i, j) of h x w.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from .attention import Vector
from .case import HEAD_DIM, Case
from .turning import turns


def coordinates(convention: str, i: int, j: int, h: int, w: int, extent: tuple[int, int] = (0, 0)) -> Vector:
    """(y, x) of the patch in row i of h and column j of w."""
    if convention in ("index", "gemma4", "step3"):
        return [float(i), float(j)]
    if convention in ("llama4", "pe"):
        return [i + 1.0, j + 1.0]
    if convention == "eva":
        return [i / h * extent[0], j / w * extent[1]]
    assert convention == "dinov3", convention
    return [2.0 * (i + 0.5) / h - 1.0, 2.0 * (j + 0.5) / w - 1.0]


def turned(convention: str, base: float, rotary_dim: int, slower: float = 1.0) -> Callable[[Tensor, Any], Tensor]:
    each = rotary_dim // 4
    rows_first = convention in ("eva", "dinov3")  # gemma4 counts (x, y)

    def angles(_: Vector, position: tuple[float, float]) -> Iterator[tuple[int, int, float]]:
        y, x = position
        for k in range(2 * each):
            first, place = (k < each), k % each
            coordinate = y if first == rows_first else x
            angle = coordinate * base ** (-4.0 * place / rotary_dim) / slower
            if convention == "dinov3":
                yield k, k + rotary_dim // 2, 2 * math.pi * angle
            elif convention == "step3":
                yield k, k + rotary_dim // 2, angle
            elif convention == "gemma4":
                a = place if first else place + 2 * each
                yield a, a + each, angle
            else:
                yield 2 * k, 2 * k + 1, angle

    return turns(angles)


def _case(convention: str, base: float, **more: Any) -> Case:
    return Case(
        lambda AxialRoPE: AxialRoPE(HEAD_DIM, convention, base, rotary_dim=4, **more),
        rotate=turned(convention, base, 4),
        axes=2,
        real_only=convention == "dinov3",
    )


CASES = {
    "axial_rope": Case(lambda AxialRoPE: AxialRoPE(HEAD_DIM, rotary_dim=4), rotate=turned("index", 100.0, 4), axes=2),
    "axial_rope larger": Case(
        lambda AxialRoPE: AxialRoPE(HEAD_DIM, rotary_dim=4, scaling=lambda theta: (theta / 3, 1.0)),
        rotate=turned("index", 100.0, 4, slower=3.0),
        axes=2,
    ),
    "axial_rope llama4": _case("llama4", 77.0),
    "axial_rope eva": _case("eva", 313.0, extent=(16, 16)),
    "axial_rope dinov3": _case("dinov3", 77.0),
    "axial_rope gemma4": _case("gemma4", 77.0),
    "axial_rope step3": _case("step3", 313.0, scaling={"rope_type": "axial", "rope_theta": 313.0}),
}
