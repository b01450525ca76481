"""M-RoPE: RoPE whose pairs are dealt out to time, row and column.

    (x_a, x_b) <- (x_a cos p θ_k - x_b sin p θ_k,  x_a sin p θ_k + x_b cos p θ_k)
    θ_k = base^(-2k/d),  k = 0 .. d/2 - 1;  in a part of the channels d is their number

where p is the coordinate along the axis of pair k. Wang et al. 2024, Qwen2-VL (arXiv 2409.12191), section 2.1, and the
code of Qwen3-VL and ERNIE 4.5 VL. A position is (t, h, w); ``sections`` are the pairs of t, h and w:

    sections     t ... t h ... h w ... w                                                pair k: (k, k + d/2)
    interleaved  t h w t h w ...; h for k = 1, 4, .. < 3 n_h, w for k = 2, 5, .. < 3 n_w, else t   (k, k + d/2)
    ernie        h w h w ... t ... t                                                    pair k: (2k, 2k + 1)
    videorope    h w h w ... t ... t                                                    pair k: (k, k + d/2)

Wei et al. 2025, VideoRoPE (arXiv 2502.05173), section 4, and its code: a patch's row and column count from the middle
of the frame, whose time is its place on the line on which text is.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from .attention import Vector
from .case import HEAD_DIM, Case
from .turning import pair, turns


def axis_of(k: int, sections: Sequence[int], form: str) -> int:
    """0 for t, 1 for h, 2 for w."""
    of_time, of_rows, of_columns = sections
    if form == "sections":
        return 0 if k < of_time else 1 if k < of_time + of_rows else 2
    if form in ("ernie", "videorope"):
        return 0 if k >= of_rows + of_columns else 1 if k % 2 == 0 else 2
    assert form == "interleaved", form
    if k % 3 == 1 and k < 3 * of_rows:
        return 1
    return 2 if k % 3 == 2 and k < 3 * of_columns else 0


def turned(sections: Sequence[int], form: str, base: float, slower: float = 1.0) -> Callable[[Tensor, Any], Tensor]:
    def angles(row: Vector, position: Sequence[float]) -> Iterator[tuple[int, int, float]]:
        d = 2 * sum(sections)
        for k in range(d // 2):
            channels = pair(k, d, "interleaved" if form == "ernie" else "half")
            yield *channels, position[axis_of(k, sections, form)] * base ** (-2.0 * k / d) / slower

    return turns(angles)


def rule(parts: Sequence[Any], start: int = 0) -> list[list[int]]:
    """Coordinates of text tokens (a number) and images (t, h, w): each part begins one past the highest so far."""
    out: list[list[int]] = []
    for part in parts:
        begin = max((max(place) for place in out), default=start - 1) + 1
        if isinstance(part, int):
            out += [[begin + n] * 3 for n in range(part)]
            continue
        frames, height, width = part
        for t in range(frames):
            for h in range(height):
                out += [[begin + t, begin + h, begin + w] for w in range(width)]
    return out


def diagonal(parts: Sequence[Any], start: int, spacing: float) -> list[list[float]]:
    """Coordinates by VideoRoPE's code: each part begins one past the last time so far."""
    out: list[list[float]] = []
    for part in parts:
        begin = out[-1][0] + 1 if out else start
        if isinstance(part, int):
            out += [[begin + n] * 3 for n in range(part)]
            continue
        frames, height, width = part
        for f in range(frames):
            t = begin + f * spacing
            for h in range(height):
                out += [[t, t + (h - (height - 1) // 2), t + (w - (width - 1) // 2)] for w in range(width)]
    return out


def _case(form: str, base: float, sections: tuple[int, int, int] = (1, 1, 1)) -> Case:
    return Case(lambda MRoPE: MRoPE(HEAD_DIM, sections, form, base), rotate=turned(sections, form, base), axes=3)


CASES = {
    "mrope": _case("sections", 77.0),
    "mrope interleaved": _case("interleaved", 313.0, (2, 1, 0)),
    "mrope ernie": _case("ernie", 5.0),
    "mrope partial": Case(
        lambda MRoPE: MRoPE(HEAD_DIM, (1, 1, 0), base=77.0, rotary_dim=4, scaling=lambda theta: (theta / 4, 1.0)),
        rotate=turned((1, 1, 0), "sections", 77.0, slower=4.0),
        axes=3,
    ),
    "videorope": _case("videorope", 5.0),
}
