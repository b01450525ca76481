"""The palette is measured, not claimed: contrast, and distance as colour-blind eyes see it."""

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from posenc_lab.kit import style

# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as seen without one kind of cone.
SEEN = {
    "all cones": np.eye(3),
    "protanopia": np.array([[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]),
    "deuteranopia": np.array([[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]),
    "tritanopia": np.array([[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]]),
}


def linear(color: str) -> NDArray[np.float64]:
    values = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio."""
    dark, bright = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (bright + 0.05) / (dark + 0.05)


def lab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    """CIELAB of linear sRGB, white D65."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(np.maximum(to_xyz @ np.clip(rgb, 0, 1) / [0.9505, 1.0, 1.089], 1e-9))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("dark", [False, True])
def test_every_colour_stands_out_from_the_paper_and_the_ink_more(dark: bool) -> None:
    theme = style.theme(dark)
    assert min(contrast(color, theme.background) for color in theme.palette) >= 3
    assert contrast(theme.ink, theme.background) >= 7
    assert contrast(theme.faint, theme.background) >= 4.5


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("eyes", SEEN)
def test_every_two_colours_stay_apart(dark: bool, eyes: str) -> None:
    seen = [lab(SEEN[eyes] @ linear(color)) for color in style.theme(dark).palette]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) > 20
