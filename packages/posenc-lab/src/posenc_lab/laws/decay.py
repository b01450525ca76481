"""Computes the long-term decay of rotations: the bound, and counterexamples to the decay of scores."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor

from posenc.arguments import check_type, shown, whole
from posenc_lab.laws.probe import Probe


def rotary_bound(
    theta: Float[Tensor, " pairs"], distances: Shaped[Tensor, " distances"]
) -> Float64[Tensor, " distances"]:
    """B(r) = (1/n) sum_{j=1..n} |S_j|, S_j = sum_{k<j} e^{i r theta_k}, for n = d/2 pairs, fastest first.

    |q_i . k_j| is at most B(r) times a constant that does not depend on r. This is only a bound: scores below a
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
