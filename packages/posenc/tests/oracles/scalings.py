"""Frequencies of a stretched RoPE, a pair at a time; YaRN along the index is in `yarn`.

With θ_k = base^(-2k/D), s the factor, L the trained length, n the length of the text and r_k = L θ_k/(2 pi) turns:

    linear        θ_k / s                                    Chen et al. 2023 (arXiv 2306.15595), eq. 4
    ntk           b^(-2k/D), b = base s^(D/(D-2))            Peng et al. 2023 (arXiv 2309.00071), definition 1
    dynamic       the same with b = base (s n/L - (s-1))^(D/(D-2)) where n > L, else θ_k
    ratio         γ θ_k + (1-γ) θ_k/s, γ by r_k: 0 up to slow, 1 from fast on, straight between      definition 2
    llama3        by λ = 2 pi/θ_k: θ_k below L/high, θ_k/s above L/low, else mixed by (L/λ - low)/(high - low)
    by parts      g θ_k + (1-g) (h ntk_k + (1-h) θ_k/s), g and h the ramps of `yarn` from 16 to 2 turns and from 1.25
                  to 0.75, as in LlamaPartNTKScaledRotaryEmbedding.py of the authors of YaRN
    longrope      θ_k / list[k], the long list where n > L   Ding et al. 2024 (arXiv 2402.13753), eq. 2
    clipped       θ_k (1 + cos(pi m/(c-1)))/2 for the m-th of the c pairs with 2 pi/θ_k > L, or of the last c, m from 0
    resonance     2 pi/round(2 pi/θ_k)
    riflex        θ_k, but share 2 pi/n for the k with the |round(2 pi/θ_k) - N| that is the least
    proportional  θ_k for k < floor(p D/2), else 0           Barbero et al. 2024 (arXiv 2410.06205), section 6
"""

import math
from collections.abc import Sequence

from .attention import Vector
from .yarn import correction_range


def linear(dim: int, base: float, s: float) -> Vector:
    return [base ** (-2 * k / dim) / s for k in range(dim // 2)]


def ntk(dim: int, base: float, s: float) -> Vector:
    changed = base * s ** (dim / (dim - 2))
    return [changed ** (-2 * k / dim) for k in range(dim // 2)]


def by_parts(dim: int, base: float, s: float, trained: int) -> Vector:
    def kept(k: int, fast: float, slow: float) -> float:
        low, high = correction_range(dim, base, trained, fast, slow)
        width = high - low if low < high else 0.001
        return 1.0 - min(max((k - low) / width, 0.0), 1.0)

    out = []
    for k, stretched in enumerate(ntk(dim, base, s)):
        theta = base ** (-2 * k / dim)
        g, h = kept(k, 16.0, 2.0), kept(k, 1.25, 0.75)
        out.append(g * theta + (1 - g) * (h * stretched + (1 - h) * theta / s))
    return out


def dynamic(dim: int, base: float, s: float, trained: int, length: int) -> Vector:
    if length <= trained:
        return [base ** (-2 * k / dim) for k in range(dim // 2)]
    return ntk(dim, base, s * length / trained - (s - 1))


def ratio(dim: int, base: float, s: float, trained: int, fast: float = 32.0, slow: float = 1.0) -> Vector:
    out = []
    for k in range(dim // 2):
        theta = base ** (-2 * k / dim)
        turns = trained * theta / (2 * math.pi)
        if turns < slow:
            kept = 0.0
        elif turns > fast:
            kept = 1.0
        else:
            kept = (turns - slow) / (fast - slow)
        out.append(kept * theta + (1 - kept) * theta / s)
    return out


def llama3(dim: int, base: float, s: float, trained: int, low: float = 1.0, high: float = 4.0) -> Vector:
    out = []
    for k in range(dim // 2):
        theta = base ** (-2 * k / dim)
        wavelength = 2 * math.pi / theta
        if wavelength < trained / high:
            out.append(theta)
        elif wavelength > trained / low:
            out.append(theta / s)
        else:
            smooth = (trained / wavelength - low) / (high - low)
            out.append((1 - smooth) * theta / s + smooth * theta)
    return out


def longrope(dim: int, base: float, short: Sequence[float], long: Sequence[float], trained: int, length: int) -> Vector:
    factors = long if length > trained else short
    return [base ** (-2 * k / dim) / factors[k] for k in range(dim // 2)]


def longrope_magnitude(s: float, trained: int) -> float:
    return math.sqrt(1 + math.log(s) / math.log(trained))


def proportional(dim: int, base: float, share: float) -> Vector:
    return [base ** (-2 * k / dim) if k < math.floor(share * dim / 2) else 0.0 for k in range(dim // 2)]


def clipped(theta: Vector, trained: int | None = None, pairs: int | None = None) -> Vector:
    slow = [k for k in range(len(theta)) if (2 * math.pi / theta[k] > trained if trained else k >= len(theta) - pairs)]
    out = list(theta)
    for m, k in enumerate(slow):
        out[k] = theta[k] * 0.5 * (1 + math.cos(math.pi * m / (len(slow) - 1 or 1)))
    return out


def resonance(theta: Vector) -> Vector:
    return [2 * math.pi / round(2 * math.pi / each) for each in theta]


def riflex(dim: int, base: float, length: int, seen: float, share: float = 0.9) -> tuple[int, Vector]:
    """The pair that is changed too."""
    theta = [base ** (-2 * k / dim) for k in range(dim // 2)]
    away = [abs(round(2 * math.pi / each) - seen) for each in theta]
    k = away.index(min(away))
    return k, [share * 2 * math.pi / length if n == k else each for n, each in enumerate(theta)]
