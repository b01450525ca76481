"""Measures each law with one function, from a `Probe` of a scheme to a `Finding`; none of them asserts."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor

from posenc.arguments import check_type, shown, whole
from posenc.positions.positions import PositionError
from posenc.schemes.entry import Law
from posenc_lab.laws.probe import EPS, Finding, Probe, not_applicable

SMALL, MEDIUM, LARGE = 64, 256, 1024
NEAR_RANGE, FAR_RANGE = (
    2**15,
    2**20,
)  # the ranges that are compared to find growth, for a scheme without a largest position
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
        near = torch.cat((torch.arange(SMALL), torch.randint(NEAR_RANGE, (448,), generator=generator)))
        far = torch.randint(NEAR_RANGE, FAR_RANGE, (512,), generator=generator)
    else:
        near = far = torch.arange(probe.limit + 1)
    sizes: list[tuple[str, float, float]] = []
    vectors = [probe.vectors(places) for places in (near, far)]
    if vectors[0] is not None and vectors[1] is not None:
        what = "vector it adds" if "rotate" not in probe.scheme.doors else "vector it has rotated"
        sizes.append((f"norm of a {what}", *(x.norm(dim=-1).max().item() for x in vectors if x is not None)))
    if probe.sees_pairs:
        # The query is the last token, and all keys are before it.
        ends = (NEAR_RANGE, FAR_RANGE) if probe.limit is None else (probe.limit, probe.limit)
        both = zip(ends, (near, far), strict=True)
        found = [probe.effect([end], end - places).abs().max().item() for end, places in both]
        sizes.append(("change of a score", found[0], found[1]))
    if not sizes:
        return Finding(True, 0.0, 0.0, "it opens no door and changes nothing")
    what, close, value = max(sizes, key=lambda size: _ratio(size[2], size[1]))
    value = max(close, value)
    if probe.limit is None:
        words = f"the largest {what} is {close:.4g} up to {NEAR_RANGE} and {value:.4g} up to {FAR_RANGE}"
    else:
        words = f"the largest {what} is {value:.4g}, and its table ends at {probe.limit}"
    return Finding(value <= 1.25 * close, value, 1.25 * close, words, {"near": close})


def rotary_bound(
    theta: Float[Tensor, " pairs"], distances: Shaped[Tensor, " distances"]
) -> Float64[Tensor, " distances"]:
    """``B(r) = (1/n) sum_{j=1..n} |S_j|``, ``S_j = sum_{k<j} e^{i r theta_k}``, for n = d/2 pairs, fastest first.

    ``|q_i . k_j|`` is at most B(r) times a constant that does not depend on r. This is only a bound: scores below a
    decreasing bound need not decrease.

    Raises ValueError unless both are tensors of one axis.

    Source: Su et al. 2021, "RoFormer", section 3.4.3, where its fall is called long-term decay.
    """
    for name, x in (("theta", theta), ("distances", distances)):
        if not isinstance(x, Tensor) or x.dim() != 1:
            raise ValueError(f"{name} must be a tensor of one axis, got {shown(x)}")
    phase = distances.double()[:, None] * theta.double()
    return torch.polar(torch.ones_like(phase), phase).cumsum(-1).abs().mean(-1)


def angles(probe: Probe) -> Float64[Tensor, " pairs"] | None:
    """theta_k of the pairs that the scheme rotates, fastest first: the angles of the map from position 1 to 2.

    None if it rotates nothing, or changes the width of vectors. An angle above pi per position would be read as a
    smaller negative one.
    """
    check_type("probe", probe, Probe)
    maps = probe.maps([1, 2])
    if maps is None:
        return None
    step = torch.linalg.solve(maps[0][0], maps[0][1], left=False)
    # The eigenvalues are e^(+-i theta), so every angle comes twice.
    return torch.linalg.eigvals(step).angle().abs().sort(descending=True).values[::2]


def turns_evenly(probe: Probe) -> bool:
    """Whether a step of one position is the same map at every position; if not, no bound depends on distance alone."""
    maps = probe.maps([1, 2, 50, 51])  # the map at position 0 may be the identity
    if maps is None:
        return True
    start, end = maps[0][0::2], maps[0][1::2]
    first, later = torch.linalg.solve(start, end, left=False)
    return bool((first - later).abs().max() < 1e-9 * first.abs().max())


@dataclass(frozen=True, eq=False)
class Counterexample:
    """Scores under a rotation that do not decay.

    ``built``: the scores, at distances 0, 1, 2, ..., of a query and a key that is constructed to score highest at
    distance ``peak``, divided by the product of their norms. ``mean``, ``error`` and ``spread``: of the scores of
    Gaussian queries and keys at ``distances``, divided by sqrt(d), the mean, its standard error and the standard
    deviation.
    """

    peak: int
    built: Float64[Tensor, " reach"]
    distances: Int64[Tensor, " distances"]
    mean: Float64[Tensor, " distances"]
    error: Float64[Tensor, " distances"]
    spread: Float64[Tensor, " distances"]


def counterexample(
    probe: Probe, peak: int, reach: int = 256, draws: int = 2048, every: int = 1
) -> Counterexample | None:
    """A key whose score with a fixed query is highest at distance ``peak``, and random keys, whose mean score is 0.

    The key is the query, rotated as at the query's position and rotated back as at the key's. Random keys are measured
    at every ``every``-th of ``reach`` distances. None if the scheme rotates nothing. ValueError for a ``peak`` of
    ``reach`` or more, or fewer than two ``draws``.

    Source: Barbero et al. 2025, "Round and Round We Go! What makes Rotary Positional Encodings useful?" (arXiv
    2410.06205), propositions 3.1 and 3.2.
    """
    check_type("probe", probe, Probe)
    whole("reach", reach)
    whole("peak", peak, 0, reach - 1)
    whole("draws", draws, least=2)
    whole("every", every)
    maps = probe.maps(torch.arange(reach))
    if maps is None:
        return None
    ask = maps[0][-1]  # the query is at the last position, and the key at distance r is r positions before it
    keys = maps[1].flip(0)
    d = probe.shape.head_dim
    query = probe.draw(d, seed=7).double()
    key = torch.linalg.solve(keys[peak], ask @ query)
    built = (keys @ key) @ (ask @ query) / (key.norm() * query.norm())
    distances = torch.arange(0, reach, every)
    between = ask.mT @ keys[distances]  # q . between[r] . k
    q, k = probe.draw(draws, d, seed=8).double(), probe.draw(draws, d, seed=9).double()
    scores = torch.einsum("na,rab,nb->rn", q, between, k) / d**0.5
    spread = scores.std(-1)
    return Counterexample(peak, built, distances, scores.mean(-1), spread / draws**0.5, spread)


SHIFTS = (1, 1000, 100_000)
TOKENS = 12
CURVE_DISTANCES = 256  # the number of distances in a curve, on each side
LATE_POSITION = 1000  # the later position of a phrase


def _segments(tokens: int) -> Tensor:
    return torch.arange(tokens) % 2


# --- shifts ---------------------------------------------------------------------------------------------------------


def _moved(probe: Probe) -> tuple[dict[int, float], float]:
    """The largest change of the internals under each shift that the scheme can encode, and their magnitude."""
    content, segment, places = probe.content(TOKENS), _segments(TOKENS), torch.arange(TOKENS)
    here = probe.internals(places, places, content=content, segment=segment)
    moved = {}
    for shift in SHIFTS:
        try:
            there = probe.internals(places + shift, places + shift, content=content, segment=segment)
        except PositionError:
            continue
        moved[shift] = (there - here).abs().max().item()
    return moved, max(1.0, here.abs().max().item())


def relative(probe: Probe) -> Finding:
    """A shift of all positions changes nothing. A phase or a distance at position p has a rounding error of p eps, and
    a score is a sum of several: ten such errors are allowed."""
    moved, size = _moved(probe)
    shift = max(moved)
    value, threshold = max(moved.values()), 10 * size * shift * EPS
    words = f"scores change by at most {value:.1e} when every position moves, by up to {shift}"
    return Finding(value <= threshold, value, threshold, words)


def absolute(probe: Probe) -> Finding:
    """Every shift of all positions, however long, changes the scores by more than 1e-4 of their magnitude."""
    moved, size = _moved(probe)
    shift = min(moved, key=lambda shift: moved[shift])
    value, threshold = moved[shift], 1e-4 * size
    words = f"scores change by at least {value:.1e} when every position moves (least for a shift by {shift})"
    return Finding(value > threshold, value, threshold, words)


# --- distance and direction -----------------------------------------------------------------------------------------


def directed(probe: Probe) -> Finding:
    """For two equal tokens, s(i, j) differs from s(j, i) by more than rounding, 100 eps."""
    places = torch.arange(16)
    found = probe.internals(places, places)
    size = max(1.0, found.abs().max().item())
    value, threshold = (found - found.transpose(2, 3)).abs().max().item(), 100 * EPS * size
    tied = probe.internals(places, places, tied=True)
    alike = (tied - tied.transpose(2, 3)).abs().max().item()
    words = f"s(i, j) and s(j, i) differ by up to {value:.1e}, for equal tokens"
    if value > threshold >= alike:
        words += "; they are equal if queries and keys have the same projection, so direction is in the projections"
    return Finding(value > threshold, value, threshold, words, {"projected alike": alike})


def curves(probe: Probe) -> tuple[Float[Tensor, "curves distances"], Float[Tensor, "curves distances"]]:
    """Curves over distance, from 0 on, for keys before a token and for keys after it: the scores of equal tokens, a
    curve for each content and head. For a scheme that only adds vectors, the inner products of its vectors."""
    reach = CURVE_DISTANCES if probe.limit is None else min(CURVE_DISTANCES, probe.limit // 2 + 1)
    middle = reach - 1
    places = torch.arange(2 * reach - 1)
    if probe.scheme.doors == ("add",):
        vectors = probe.vectors(places)
        assert vectors is not None
        found = (vectors @ vectors[middle])[None]
    else:
        found = probe.internals([middle], places)[:, :, 0].movedim(-1, 2).flatten(0, 2)
    return found[:, : middle + 1].flip(-1), found[:, middle:]


def _turn(curve: Tensor) -> int | None:
    """The first distance at which a curve reverses its initial direction by more than rounding; None if never."""
    steps = curve.diff()
    steps = torch.where(steps.abs() <= 100 * EPS * curve.abs().max().clamp(min=1.0), 0.0, steps).sign()
    moving = steps.nonzero()[:, 0]
    if not len(moving):
        return None
    against = (steps == -steps[moving[0]]).nonzero()[:, 0]
    return int(against[0]) + 1 if len(against) else None


def spearman(curve: Float[Tensor, " distances"]) -> float:
    """The rank correlation of a curve with the distance."""
    distance = torch.arange(curve.numel(), dtype=torch.float64)
    ranks = torch.empty_like(distance)
    ranks[curve.argsort(stable=True)] = distance
    return torch.corrcoef(torch.stack((distance, ranks)))[0, 1].item()


def _flat(curve: Tensor) -> bool:
    return (curve.max() - curve.min()).item() <= 100 * EPS * max(1.0, curve.abs().max().item())


def monotone(probe: Probe) -> Finding:
    """On each side of a token, the score of a fixed content is monotone in distance. The value is the smallest absolute
    value of Spearman's rank correlation with distance, over heads and contents."""
    moving = [curve for side in curves(probe) for curve in side if not _flat(curve)]
    if not moving:
        return not_applicable("scores do not depend on positions")
    turns = [turn for turn in map(_turn, moving) if turn is not None]
    value = min(abs(spearman(curve)) for curve in moving)
    where = "the inner product of two vectors" if probe.scheme.doors == ("add",) else "the score"
    words = f"Spearman's correlation of {where} with distance is at least {value:.3f} in size"
    words += f"; it turns at distance {min(turns)}" if turns else "; it never turns"
    return Finding(not turns, value, None, words, {"first turn": min(turns)} if turns else {})


def decaying(probe: Probe) -> Finding:
    """For keys before the query, every score decreases with distance, whatever the content. The value is the share of
    heads and contents for which this holds."""
    if not probe.sees_places:
        return not_applicable("scores do not depend on positions")
    back, _ = curves(probe)
    falls = [not _flat(curve) and _turn(curve) is None and bool(curve[-1] < curve[0]) for curve in back]
    value = sum(falls) / len(falls)
    what = "the inner product of two vectors falls" if probe.scheme.doors == ("add",) else "the score falls"
    words = f"looking back, {what} with distance and never rises for {value:.0%} of heads and contents"
    return Finding(value == 1.0, value, 1.0, words)


def decaying_bound(probe: Probe) -> Finding:
    """Bound, not behaviour: the bound B(r) of a rotation, averaged over distances from 512 to 1023, is below half of
    its value at 0. Scores need not decay: a key can be constructed to score highest far away, and the scores of random
    keys have mean 0 and the same spread at every distance. With several axes, the head is widened so that each axis has
    as many channels as one axis alone."""
    axes, shape = probe.axes, probe.shape
    probe = replace(probe, shape=replace(shape, dim=shape.dim * axes, head_dim=shape.head_dim * axes))
    theta = angles(probe)
    if theta is None:
        return not_applicable(
            "no token has a rotation of its own"
            if probe.turns_pairs
            else "it rotates nothing, or changes the width of vectors"
        )
    if not turns_evenly(probe):
        return not_applicable("its rotation is not the same at every step, so no bound depends on distance alone")
    bound = rotary_bound(theta, torch.arange(LARGE))
    far = counterexample(probe, peak=200, every=5)
    assert far is not None
    value = (bound[LARGE // 2 :].mean() / bound[0]).item()
    deviation = (far.mean / far.error).abs().max().item()
    mean, peak, last = value * bound[0].item(), int(far.built.argmax()), int(far.distances[-1])
    words = (
        f"bound, not behaviour: B falls from {bound[0].item():.3g} at 0 to a mean of {mean:.3g} past {LARGE // 2}; yet "
        f"a key built for distance {far.peak} scores highest at {peak}, and random keys average 0 at every distance "
        f"(within {deviation:.1f} standard errors) with the same spread ({far.spread[0].item():.2f} at 0, "
        f"{far.spread[-1].item():.2f} at {last})"
    )
    numbers: dict[str, float | int] = {f"B({r})": bound[r].item() for r in (0, 10, 50, 100, 255)}
    numbers |= {"built key peaks at": peak, "random mean in standard errors": deviation}
    numbers |= {"spread at 0": far.spread[0].item(), f"spread at {last}": far.spread[-1].item()}
    return Finding(value < 0.5, value, 0.5, words, numbers)


# --- more axes ------------------------------------------------------------------------------------------------------


def separable(probe: Probe) -> Finding:
    """On a grid, a score is the sum of a term for the row and a term for the column: the residual of a two-way analysis
    of variance is rounding, less than a share eps of the variance."""
    flat = probe.with_axes(2)
    if flat is None:
        return not_applicable("it takes one coordinate per token")
    if not probe.sees_coordinates:
        return not_applicable("scores do not depend on positions")
    height, width = 7, 9
    grid = torch.cartesian_prod(torch.arange(height), torch.arange(width))
    found = flat.effect(torch.tensor([[3, 4]]), grid)[:, :, 0].movedim(-1, 2).flatten(0, 2)
    table = found.unflatten(-1, (height, width))
    table = table - table.mean((-1, -2), keepdim=True)
    rest = table - table.mean(-1, keepdim=True) - table.mean(-2, keepdim=True)
    value = (rest.square().sum() / table.square().sum()).item()
    energy = torch.linalg.svdvals(table).square()
    first = (energy[:, 0].sum() / energy.sum()).item()
    words = f"rows and columns leave {value:.1e} of the variance of scores on a {height} x {width} grid unexplained"
    words += f"; the first singular component holds {first:.0%} of it"
    return Finding(value <= EPS, value, EPS, words, {"rank-1 energy": first})


def extensible(probe: Probe) -> Finding:
    """The scheme can be built for tokens with two and with three coordinates, and distinguishes tokens along each
    coordinate. The value is the largest number of coordinates."""
    if not probe.sees_coordinates:
        return not_applicable("it sees no coordinates, however many there are")
    taken = []
    for axes in (1, 2, 3):
        other = probe.with_axes(axes)
        if other is None:
            continue
        places = torch.zeros(2, axes, dtype=torch.int64)
        seen = []
        for axis in range(axes):
            moved = places.clone()
            moved[1, axis] = 3
            seen.append(not torch.equal(other.internals(places, places), other.internals(moved, moved)))
        if all(seen):
            taken.append(axes)
    words = f"numbers of axes with which it tells tokens apart along each: {', '.join(map(str, taken))}"
    return Finding({2, 3} <= set(taken), float(max(taken)), 3.0, words)


# --- any position ---------------------------------------------------------------------------------------------------


def length_free(probe: Probe) -> Finding:
    """Every integer position from 0 to 2^31 has an encoding, and so does every distance between them."""
    if probe.limit is None:
        below = probe.encodes([0, -7])
        words = f"positions up to 2^31 have an encoding, those below 0 {'too' if below else 'have none'}"
        return Finding(True, 2.0**31, 2.0**31, words)
    return Finding(False, float(probe.limit), 2.0**31, probe.end)


def fractional(probe: Probe) -> Finding:
    """Real positions have an encoding that is continuous in them: a step of 1e-6 changes scores by at most 1e-3, and
    does change them, unless the scheme does not depend on coordinates."""
    base = torch.tensor([0.5, 2.75, 4.0], dtype=torch.float64)
    try:
        here, there = (probe.internals(places, places) for places in (base, base + torch.tensor([0.0, 0.0, 1e-6])))
    except ValueError as error:
        return Finding(False, None, 1e-3, f"it refuses them: {error}")
    value = (here - there).abs().max().item()
    holds = value <= 1e-3 and (value > 0) == probe.sees_coordinates
    return Finding(holds, value, 1e-3, f"a step of 1e-6 changes scores by {value:.1e}")


# --- how it is built ------------------------------------------------------------------------------------------------


def deterministic(probe: Probe) -> Finding:
    """The configuration determines the encoding: called twice or built twice, the scheme gives equal bits."""
    places, content = torch.arange(TOKENS), probe.content(TOKENS)
    found = [
        other.internals(places, places, content=content, segment=_segments(TOKENS))
        for other in (probe, probe, replace(probe, seed=probe.seed + 1))
    ]
    again, rebuilt = ((found[0] - other).abs().max().item() for other in found[1:])
    words = "called twice it is the same" if again == 0 else f"called twice it differs by {again:.1e}"
    words += ", built twice too" if rebuilt == 0 else f", built twice it differs by {rebuilt:.1e}: it is random"
    value = max(again, rebuilt)
    return Finding(value == 0, value, 0.0, words, {"called again": again, "built again": rebuilt})


def parameter_free(probe: Probe) -> Finding:
    """Nothing is learned. The value is the number of parameters."""
    count = sum(parameter.numel() for parameter in probe.scheme.parameters())
    return Finding(count == 0, float(count), 0.0, f"it learns {count} numbers")


def order_free(probe: Probe) -> Finding:
    """Without a mask, attention is equivariant to permutations: if tokens are permuted and positions are not, the
    output is permuted in the same way. This holds without a scheme; the law is that it holds with it."""
    content, segment, places = probe.content(9), _segments(9), torch.arange(9)
    shuffle = torch.tensor([4, 1, 8, 0, 6, 2, 7, 3, 5])

    def moved(other: Probe) -> float:
        straight = other.output(places, content, segment)[:, :, shuffle]
        return (other.output(places, content[:, shuffle], segment[shuffle]) - straight).abs().max().item()

    value, threshold = moved(probe), 1000 * EPS
    without = moved(Probe.named("nope", probe.shape))
    words = f"a permutation of tokens changes their outputs by up to {value:.1e}; without it by {without:.1e}"
    return Finding(value <= threshold, value, threshold, words, {"without it": without})


# --- two questions --------------------------------------------------------------------------------------------------


def fixed_ahead(probe: Probe) -> Finding:
    """Must the set of positions be fixed ahead of time? Yes if there is a largest position, which is the value."""
    if probe.limit is None:
        return Finding(False, None, None, "no: no end up to 2^31")
    return Finding(True, float(probe.limit), None, f"yes: {probe.end}")


def hinders(probe: Probe) -> Finding:
    """Does the scheme hinder generalising to new positions? A phrase of three tokens is moved from positions 2 to 4 to
    positions 1000 to 1002 (or to the end of the table). The value is the change of the scores between its tokens,
    relative to their spread (root mean square over standard deviation). If vectors are added, the content is scaled to
    their magnitude; ``numbers`` also has the value for content from N(0, 1)."""
    late = LATE_POSITION if probe.limit is None else min(LATE_POSITION, probe.limit - 4)
    early, content = torch.arange(2, 5), probe.content(3)
    added = probe.scheme.tokens(probe.positions(early), dtype=torch.float64).tables
    power = torch.stack([table.square().mean() for table in added]).sum() if added else content.square().mean()
    scale = (power / content.square().mean()).sqrt().item()

    def share(x: Tensor) -> tuple[float, float]:
        here, there = (probe.internals(at, at, content=x, segment=_segments(3)) for at in (early, early - 2 + late))
        spread = here[..., 0].std().item()
        return (there - here).square().mean().sqrt().item() / spread, here.abs().max().item() / spread

    value, size = share(scale * content)
    threshold = 10 * max(1.0, size) * late * EPS
    between = f"from position 2 to {late}"
    if value > threshold:
        words = f"yes: scores within a phrase move by {value:.2f} of their spread {between}"
    else:
        words = f"no: scores within a phrase are the same, but for rounding, {between}"
    return Finding(value > threshold, value, threshold, words, {"unit content": share(content)[0]})


_MEASURES = (
    relative,
    absolute,
    unique,
    linear,
    orthogonal,
    bounded,
    directed,
    monotone,
    decaying,
    decaying_bound,
    length_free,
    fractional,
    extensible,
    separable,
    deterministic,
    parameter_free,
    order_free,
)
LAWS: dict[str, Callable[[Probe], Finding]] = dict(zip(Law, _MEASURES, strict=True))
"""The laws that a scheme may claim in the catalog, and the functions that measure them."""

QUESTIONS: dict[str, Callable[[Probe], Finding]] = {"fixed_ahead": fixed_ahead, "hinders": hinders}
"""Must the set of positions be fixed ahead of time? Does the scheme hinder generalising to new positions?"""
