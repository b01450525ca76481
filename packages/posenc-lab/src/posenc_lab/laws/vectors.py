"""Measures the laws of position vectors, and of the scores at each distance."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from posenc_lab.laws.probe import EPS, Finding, Probe, not_applicable

SMALL, MEDIUM, LARGE = 64, 256, 1024
NEAR, FAR = 2**15, 2**20  # the ranges that are compared to find growth, for a scheme without a largest position
FITTED = 512  # positions to fit and to test a linear map on
LINEAR = 1000 * FITTED * EPS


def _patterns(probe: Probe, count: int) -> Float[Tensor, "distances channels"]:
    """The effect at distances 0 .. count - 1 before a query, for equal tokens."""
    found = probe.effect([count - 1], torch.arange(count - 1, -1, -1))[:, :, 0]
    scores, values = found[..., :1], found[:1, ..., 1:]  # the value door does not depend on the content
    return torch.cat([part.movedim(2, 0).flatten(1) for part in (scores, values)], -1)


class _Code:
    """The codes of positions or of distances in a dtype, one per row, and the distances between all rows."""

    def __init__(self, kind: str, rows: Float[Tensor, "count channels"], dtype: torch.dtype) -> None:
        rows = rows.float()  # exact, since they are in float32 or less
        self.kind, self.apart = kind, torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
        self.apart.fill_diagonal_(torch.inf)
        self.step = torch.finfo(dtype).eps * rows.norm(dim=-1).max().item()  # one rounding step of the largest row

    def closest(self, count: int | None = None) -> float:
        """The smallest distance between two of the first ``count`` rows."""
        return self.apart[:count, :count].min().item()

    @property
    def collision(self) -> int:
        """The first row within a rounding step of an earlier one; -1 if there is none."""
        clash = (self.apart <= self.step).tril(-1).any(-1)
        return int(clash.int().argmax()) if clash.any() else -1


def _codes(probe: Probe, dtype: torch.dtype, count: int) -> list[_Code]:
    other, codes = replace(probe, dtype=dtype), []
    vectors = other.vectors(torch.arange(count))
    if vectors is not None:
        codes.append(_Code("positions", vectors, dtype))
    if probe.sees_pairs:  # scores are in float32 in a model of any dtype
        codes.append(_Code("distances", _patterns(other, count), torch.float32))
    return codes


def unique(probe: Probe) -> Finding:
    """No two positions have the same vector or, for pair doors, no two distances the same scores: of 1024 codes, the
    closest two differ by more than one rounding step of the largest code, in float32. bfloat16 is measured too."""
    count = LARGE if probe.limit is None else min(LARGE, probe.limit + 1)
    numbers: dict[str, float | int] = {}
    found: _Code | None = None
    for dtype in (torch.bfloat16, torch.float32):
        found = max(_codes(probe, dtype, count), key=lambda code: _ratio(code.closest(), code.step), default=None)
        if found is None:
            return Finding(False, 0.0, 0.0, "it opens no door, so it does not distinguish positions")
        name = str(dtype).removeprefix("torch.")
        numbers |= {f"{name} at {size}": found.closest(size) for size in (SMALL, MEDIUM, LARGE) if size <= count}
        numbers[f"{name} first collision"] = found.collision
    assert found is not None
    value, threshold = found.closest(), found.step
    words = f"the closest two of {count} {found.kind} are {value:.1e} apart in float32"
    if found.collision >= 0:
        words += f"; {found.kind[:-1]} {found.collision} is the first with the code of an earlier one"
    return Finding(value > threshold, value, threshold, words, numbers)


def _ratio(value: float, threshold: float) -> float:
    return value / threshold if threshold else 0.0


@dataclass(frozen=True, eq=False)
class LinearMap:
    """The errors of a map M_k that is fitted to the vectors at three quarters of the positions, measured at the others
    and relative to the vectors' magnitude: ``residual`` of M_k p_t = p_{t+k}, ``bend`` of (M_k p) . (M_k p') = p . p',
    and ``composed`` of M_l M_k = M_{k+l}."""

    residual: float
    bend: float
    composed: float


def linear_map(probe: Probe, near: int = 3, far: int = 5) -> LinearMap | None:
    """Fits a linear map from the vectors at positions t to those at t + near, and on to t + near + far. None if
    positions have no vectors.

    The least squares use singular values, since slow channels are nearly collinear. Only 12 channels are used: among a
    hundred smooth channels, some linear combination equals any one of them a few positions on, to the last digit.
    """
    probe = replace(probe, shape=replace(probe.shape, dim=12, num_heads=3, head_dim=4))
    count = FITTED if probe.limit is None else min(FITTED, probe.limit + 1 - near - far)
    vectors = probe.vectors(torch.arange(count + near + far))
    if vectors is None:
        return None
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(10))
    fit, held = shuffled[: 3 * count // 4], shuffled[3 * count // 4 :]

    def between(k: int) -> Tensor:
        return torch.linalg.lstsq(vectors[fit], vectors[fit + k], driver="gelsd").solution

    here, there, beyond = (vectors[held + k] for k in (0, near, near + far))
    by_near, by_far, by_both = between(near), between(far), between(near + far)
    moved = here @ by_near
    size, energy = vectors.norm(dim=-1).max(), (here @ here.mT).abs().max()
    return LinearMap(
        residual=((moved - there).norm(dim=-1).max() / size).item(),
        bend=((moved @ moved.mT - here @ here.mT).abs().max() / energy).item(),
        composed=((torch.stack((here @ by_both, beyond)) - moved @ by_far).norm(dim=-1).max() / size).item(),
    )


def _linear(probe: Probe) -> LinearMap | Finding:
    if not probe.sees_coordinates:
        return not_applicable("it sees no coordinates, so no position has a vector of its own")
    return linear_map(probe) or not_applicable("it encodes pairs of positions, and no position has a vector")


def linear(probe: Probe) -> Finding:
    """One matrix M_k maps the vector of every position t to that of t + k, and M_l M_k = M_{k+l}. It is fitted to some
    positions, with 12 channels, and tested on others. A thousand rounding errors per position are allowed."""
    found = _linear(probe)
    if isinstance(found, Finding):
        return found
    value = max(found.residual, found.composed)
    words = f"at positions that it was not fitted to, M_3 has an error of {found.residual:.1e} of a vector's length"
    words += f", and M_5 M_3 = M_8 by {found.composed:.1e}"
    return Finding(value <= LINEAR, value, LINEAR, words, {"residual": found.residual, "composition": found.composed})


def orthogonal(probe: Probe) -> Finding:
    """The matrix M_k of the linear relation is orthogonal: it keeps lengths and angles."""
    found = _linear(probe)
    if isinstance(found, Finding):
        return found
    value = max(found.bend, found.residual)
    words = f"M_3 changes inner products of vectors by up to {found.bend:.1e} of the largest"
    return Finding(value <= LINEAR, value, LINEAR, words, {"inner products": found.bend})


def bounded(probe: Probe) -> Finding:
    """The added or rotated vectors and the changes of scores are bounded: the largest up to position 2^20 is at most a
    quarter above the largest up to 2^15. (A logarithm grows by a third.) A finite table is always bounded."""
    if probe.sees_places and not probe.sees_coordinates:
        return not_applicable("it depends on the tokens between two, not on the distance between them")
    generator = torch.Generator().manual_seed(11)
    if probe.limit is None:
        near = torch.cat((torch.arange(SMALL), torch.randint(NEAR, (448,), generator=generator)))
        far = torch.randint(NEAR, FAR, (512,), generator=generator)
    else:
        near = far = torch.arange(probe.limit + 1)
    sizes: list[tuple[str, float, float]] = []
    vectors = [probe.vectors(places) for places in (near, far)]
    if vectors[0] is not None and vectors[1] is not None:
        what = "vector it adds" if "rotate" not in probe.scheme.doors else "vector it has turned"
        sizes.append((f"norm of a {what}", *(x.norm(dim=-1).max().item() for x in vectors if x is not None)))
    if probe.sees_pairs:
        # The query is the last token, and all keys are before it.
        ends = (NEAR, FAR) if probe.limit is None else (probe.limit, probe.limit)
        both = zip(ends, (near, far), strict=True)
        found = [probe.effect([end], end - places).abs().max().item() for end, places in both]
        sizes.append(("change of a score", found[0], found[1]))
    if not sizes:
        return Finding(True, 0.0, 0.0, "it opens no door and changes nothing")
    what, close, value = max(sizes, key=lambda size: _ratio(size[2], size[1]))
    value = max(close, value)
    if probe.limit is None:
        words = f"the largest {what} is {close:.4g} up to {NEAR} and {value:.4g} up to {FAR}"
    else:
        words = f"the largest {what} is {value:.4g}, and its table ends at {probe.limit}"
    return Finding(value <= 1.25 * close, value, 1.25 * close, words, {"near": close})
