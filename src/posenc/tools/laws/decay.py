"""Long-term decay of rotations: the upper bound, a key that peaks at any distance, and the average score."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor

from posenc.arguments import check_type, shown, whole
from posenc.tools.laws.probe import Probe


def rotary_bound(
    theta: Float[Tensor, " pairs"], distances: Shaped[Tensor, " distances"]
) -> Float64[Tensor, " distances"]:
    """B(r) = (1/n) sum_{j=1..n} |S_j|, S_j = sum_{k<j} e^{i r theta_k}, for n = d/2 pairs, fastest first.

    |q_i . k_j| is at most B(r) times something that does not depend on r. It is a bound and not a behaviour: what lies
    below a falling line need not fall.

    Raises ValueError for what are not two lines of numbers.

    Source: Su et al. 2021, "RoFormer", section 3.4.3, where its fall is called long-term decay.
    """
    for name, x in (("theta", theta), ("distances", distances)):
        if not isinstance(x, Tensor) or x.dim() != 1:
            raise ValueError(f"{name} must be a tensor of one axis, got {shown(x)}")
    phase = distances.double()[:, None] * theta.double()
    return torch.polar(torch.ones_like(phase), phase).cumsum(-1).abs().mean(-1)


def angles(probe: Probe) -> Float64[Tensor, " pairs"] | None:
    """theta_k of the pairs that the scheme turns, fastest first, read off what it does to a query from place 1 to 2.

    None where it rotates nothing, or makes vectors of another width. A turn of more than pi per position would be taken
    for a slower one backwards.
    """
    check_type("probe", probe, Probe)
    maps = probe.maps([1, 2])
    if maps is None:
        return None
    step = torch.linalg.solve(maps[0][0], maps[0][1], left=False)
    # Angles come as +theta and -theta: every size twice, once sorted.
    return torch.linalg.eigvals(step).angle().abs().sort(descending=True).values[::2]


def turns_evenly(probe: Probe) -> bool:
    """Whether a step turns by the same map everywhere, without which no bound is of the distance alone."""
    maps = probe.maps([1, 2, 50, 51])  # at place 0 a map may be none at all
    if maps is None:
        return True
    start, end = maps[0][0::2], maps[0][1::2]
    first, later = torch.linalg.solve(start, end, left=False)
    return bool((first - later).abs().max() < 1e-9 * first.abs().max())


@dataclass(frozen=True, eq=False)
class Counterexample:
    """Scores that a rotation does not let fall.

    ``built``: at the distances 0, 1, 2, ..., of one query and the key built to peak at ``peak``, as a share of the
    product of their norms. ``mean``, ``error`` and ``spread``: at ``distances``, of random Gaussian queries and keys,
    over sqrt(d): the mean score, its standard error, and the standard deviation of the scores.
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
    """For any query and any distance there is a key whose score is highest there, and random ones expect 0 everywhere.

    The key is the query, turned to where the query stands and back from where the key stands. Random ones are tried at
    ``every`` so many of the ``reach`` distances. None where the scheme rotates nothing. ValueError for a ``peak`` past
    them, or fewer than two ``draws``, which have no spread.

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
    ask = maps[0][-1]  # the query stands at the last place, so that the key at distance r is r places before it
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
