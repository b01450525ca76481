"""Measures rotations channel by channel: which are pairs, which are rotated, and that norms are kept (check 15)."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from posenc_check.outcome import Outcomes, near
from posenc_check.subjects import REFUSALS, Batch, NotApplicableError, Rotary, Subject, applies, require
from posenc_check.trial import AT_0_ALONE, Case, Check, Trial, TrialPlan


def row_of(batch: Batch) -> list[Any]:
    """The positions of a batch of one row."""
    assert batch.positions is not None
    return batch.positions[0]


def first_axis(position: Any) -> int:
    """The position, or its coordinate on every axis: only where these are the same is the expected rotation known."""
    if not isinstance(position, list):
        return position
    applies(len(set(position)) == 1, f"what to expect of {position} is known on the diagonal alone")
    return position[0]


def of_two_tokens(batch: Batch) -> bool:
    """Whether every row has the same tokens, of which the first two differ."""
    return batch.tokens > 1 and len({tuple(row) for row in batch.ids}) == 1 and batch.ids[0][0] != batch.ids[0][1]


def sides(subject: Rotary) -> list[tuple[str, int]]:
    """What is rotated, by name and index: queries, and keys where they are rotated separately."""
    return [("query", 0), ("key", 1)] if subject.takes("key") else [("x", 0)]


def rotate_vectors(subject: Rotary, made: Any, vectors: Tensor, positions: list[Any], which: int = 0) -> Tensor:
    """Every vector, rotated to every position: (vectors, heads, positions, head_dim) from (vectors, head_dim)."""

    def at(where: Any) -> Tensor:
        here = torch.tensor(where, device=vectors.device)
        x = vectors[:, None, None].repeat(1, subject.heads, len(where), 1)
        return subject.rotate(made, x, here.repeat(len(vectors), *[1] * here.dim()), which).detach()

    if subject.takes("positions"):
        return at(positions)
    if not subject.takes("offset"):
        return at(list(range(max(positions) + 1)))[:, :, positions]
    by_run = groupby(enumerate(positions), key=lambda numbered: numbered[1] - numbered[0])
    runs = [[position for _, position in run] for _, run in by_run]
    return torch.cat([at(run) for run in runs], 2)


def matrices(subject: Rotary, made: Any, positions: list[Any], which: int = 0) -> Tensor:
    """The rotation at every position, (positions, heads, head_dim, head_dim); column c is channel c, rotated."""
    basis = torch.eye(subject.head_dim, device=subject.device, dtype=subject.dtype)
    return rotate_vectors(subject, made, basis, positions, which).permute(2, 1, 3, 0)


def unit(rotations: Tensor) -> Tensor:
    """The rotations without their scale, in float64."""
    rotations = rotations.double()
    return rotations / rotations.norm(dim=-2, keepdim=True)


def pairs(subject: Rotary, layout: str) -> list[tuple[int, int]]:
    """The channels of each pair."""
    half = (subject.rotary_dim or subject.head_dim) // 2
    return [(c, c + half) if layout == "half" else (2 * c, 2 * c + 1) for c in range(half)]


def frequencies(subject: Rotary) -> list[float] | None:
    """The radians per position of each pair that are claimed, by themselves or by the base; None: nothing is."""
    rotary = subject.rotary_dim or subject.head_dim
    if subject.frequencies is not None:
        return [float(frequency) for frequency in subject.frequencies]
    return None if subject.base is None else [subject.base ** (-2 * c / rotary) for c in range(rotary // 2)]


def claimed(subject: Rotary, positions: list[Any], like: Tensor) -> Tensor | None:
    """The rotations that are claimed, without their scale, in the shape of ``like``; None if nothing is claimed.

    Nothing is claimed for positions at or past a threshold, since frequencies may then depend on the length. Scores do
    not show in which direction queries and keys are rotated, if it is the same; nor, where no layout is claimed, which
    channels are pairs. So the result is the rotation nearest to ``like`` among those that the claim allows.
    """
    theta, most = frequencies(subject), (subject.rotary_dim or subject.head_dim) // 2
    if theta is None or (subject.threshold is not None and max(map(first_axis, positions)) >= subject.threshold):
        return None
    if len(theta) > most:
        raise ValueError(f"frequencies must be at most {most}, one for each pair of channels, got {len(theta)}")
    at = torch.tensor([first_axis(p) for p in positions], dtype=torch.float64)
    angle = at[:, None] * torch.tensor(theta).double()
    found = []
    for layout in [subject.layout] if subject.layout else ["half", "interleaved"]:
        for sign in (1, -1):
            turn = torch.eye(subject.head_dim, dtype=torch.float64).repeat(len(positions), 1, 1)
            for (a, b), phase in zip(pairs(subject, layout), angle.T, strict=False):
                turn[:, a, a] = turn[:, b, b] = phase.cos()
                turn[:, b, a] = sign * phase.sin()
                turn[:, a, b] = -sign * phase.sin()
            found.append(turn[:, None].to(like.device).expand_as(like))
    return min(found, key=lambda turn: float((turn - like).abs().nan_to_num(2.0).sum()))


def with_weights_in(subject: Subject, dtype: torch.dtype) -> Any:
    """Builds the subject, with trained parameters rounded to ``dtype``; buffers and frozen ones are not rounded."""
    made = subject.make()
    if isinstance(made, nn.Module):
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.requires_grad:
                    parameter.copy_(parameter.to(dtype))
    return made


def fastest(subject: Rotary) -> float:
    """The highest of the frequencies, 1 radian per position unless a higher one is claimed."""
    return max([1.0, *map(abs, subject.frequencies or ())])


def in_low_precision(
    subject: Subject, dtype: torch.dtype, autocast: torch.dtype | None, measure: Callable[..., Tensor], *rest: Any
) -> Tensor:
    """``measure(subject, made, *rest)`` with the module and its inputs in ``dtype``, and under autocast to another."""
    low = replace(subject, dtype=dtype)
    made = low.make()
    try:
        with torch.autocast(torch.device(subject.device).type, autocast or torch.bfloat16, autocast is not None):
            return measure(low, made, *rest)
    except RuntimeError as error:
        if not any(lack in str(error) for lack in ("not implemented for", "Unexpected floating ScalarType")):
            raise
        raise NotApplicableError(f"nothing to do: in {dtype}, PyTorch says {error}") from None
    except REFUSALS as error:
        raise NotApplicableError(f"nothing to do: it refuses {autocast or dtype}: {error}") from None


def rounding(subject: Rotary) -> float:
    """Eight units of float32, or of the coarser dtype that the subject computes in."""
    return 8 * subject.eps(torch.float32)


def pairs_keep_to_themselves(subject: Rotary, batch: Batch) -> Outcomes:
    """Each basis vector, rotated, must be zero outside its own pair of channels."""
    assert subject.layout is not None
    inside = torch.eye(subject.head_dim, device=subject.device)
    for a, b in pairs(subject, subject.layout):
        inside[a, b] = inside[b, a] = 1
    made = subject.make()
    for name, which in sides(subject):
        actual = matrices(subject, made, row_of(batch), which)
        turns = actual * (1 - torch.eye(subject.head_dim, device=subject.device))
        size = float(actual.abs().max())
        possible = not float(turns.abs().max()) < rounding(subject) * size
        require(possible, f"let it turn something: positions {row_of(batch)} turn nothing")
        outside = actual * (1 - inside)
        yield f"{name} [position, head, to, from]", near(torch.zeros_like(outside), outside, rounding(subject) * size)


def pairs_turn_as_claimed(subject: Rotary, batch: Batch) -> Outcomes:
    """The sign with which the first channel of a pair enters the second, one position on: plus for forward."""
    assert subject.layout is not None
    made, count = subject.make(), (subject.rotary_dim or subject.head_dim) // 2
    # Without a claim, a frequency is taken to be positive and less than half a turn, as for every base.
    theta = [*(frequencies(subject) or [1.0] * count), *[0.0] * count][:count]
    forward = torch.tensor(theta, dtype=torch.float64).sin().sign() * (1 if subject.direction == "forward" else -1)
    for name, which in sides(subject):
        actual = matrices(subject, made, row_of(batch), which)[0].double()
        across = torch.stack([actual[:, b, a] for a, b in pairs(subject, subject.layout)], -1).cpu()  # (heads, pairs)
        turns = (across.abs() > rounding(subject) * actual.abs().max().cpu()) & (forward != 0)
        applies(bool(turns.any()), f"positions {row_of(batch)} turn nothing")
        expected = torch.where(turns, forward, 0.0)
        yield f"{name} [head, pair], +1 forward", near(expected, torch.where(turns, across.sign(), 0.0), 0.0)


def the_rest_is_untouched(subject: Rotary, batch: Batch, dtype: torch.dtype) -> Outcomes:
    """The channels past rotary_dim must not change: to the bit, or to the rounding of a lower dtype."""
    assert subject.rotary_dim is not None
    positions, exactly = row_of(batch), 0.0 if subject.computes_in is None else subject.eps()
    x = torch.randn(3, subject.head_dim, generator=torch.Generator().manual_seed(0)).to(subject.device, dtype)
    for name, which in sides(subject):
        actual = in_low_precision(subject, dtype, None, rotate_vectors, x, positions, which)[..., subject.rotary_dim :]
        expected = x[:, None, None, subject.rotary_dim :].expand_as(actual)
        yield f"{name} [vector, head, position, channel]", near(expected, actual, exactly * float(x.abs().max()))


def lengths_stay(subject: Rotary, batch: Batch) -> Outcomes:
    """The rotated channels keep lengths and right angles: R'R against scale² times the identity."""
    assert subject.scale is not None
    rotary, made = subject.rotary_dim or subject.head_dim, subject.make()
    for name, which in sides(subject):
        actual = matrices(subject, made, row_of(batch), which).double()[..., :rotary, :rotary]
        products = actual.mT @ actual
        expected = subject.scale**2 * torch.eye(rotary, device=products.device).double().expand_as(products)
        yield f"{name} [position, head, c, c]", near(expected, products, rounding(subject) * subject.scale**2)


def layouts_agree(subject: Rotary, batch: Batch) -> Outcomes:
    """The rotation in the other layout, with its channels put in the order of this one."""
    assert subject.layout is not None
    other = "interleaved" if subject.layout == "half" else "half"
    here, there = ([c for pair in pairs(subject, layout) for c in pair] for layout in (subject.layout, other))
    rest = range(subject.rotary_dim or subject.head_dim, subject.head_dim)
    here, there = [*here, *rest], [*there, *rest]
    for name, which in sides(subject):
        positions = row_of(batch)
        expected = matrices(subject, subject.make(), positions, which)[..., here, :][..., here]
        actual = matrices(subject, subject.make(**subject.other_layout), positions, which)[..., there, :][..., there]
        for n, p in enumerate(positions):
            # The two may compute their phases in two ways, each of which rounds by up to 4 p theta 2^-23.
            phase = 8 * first_axis(p) * fastest(subject) * 2**-23
            tolerance = (phase + rounding(subject)) * float(expected.abs().max())
            yield f"{name} at {p} [head, to, from]", near(expected[n], actual[n], tolerance)


# -- cases -------------------------------------------------------------------------------------------------------------


LENGTHS = (
    "Turn each pair by cos and sin of one and the same angle, and claim the `scale` that it multiplies by, if any."
)
AT = (1, 2, 7, 100)
UNCLAIMED = {
    "layout": 'claim `layout="half"` or `layout="interleaved"` to run this',
    "direction": 'claim `direction="forward"` or `direction="backward"` to run this',
    "scale": "claim a `scale`, where lengths do not go by the position",
    "other_layout": "name in `other_layout` the options that build the other layout, to run this",
}


def _cases(plan: TrialPlan, claims: tuple[str, ...] = ()) -> Iterator[Case]:
    applies(isinstance(plan.subject, Rotary), "a rotation alone has pairs of channels")
    at = [p for p in AT if p < plan.reach]
    require(at, AT_0_ALONE)
    for name in claims:
        require(getattr(plan.subject, name), UNCLAIMED[name])
    yield Case(plan.row(at))


def _one_on(plan: TrialPlan) -> Iterator[Case]:
    for _ in _cases(plan, ("layout", "direction")):
        require(plan.has(1), AT_0_ALONE)
        yield Case(plan.row([1]))


def _of_the_rest(plan: TrialPlan) -> Iterator[Case]:
    for case in _cases(plan):
        rotary, head_dim = (getattr(plan.subject, name) for name in ("rotary_dim", "head_dim"))
        require((rotary or head_dim) < head_dim, "claim a `rotary_dim` where fewer channels are rotated")
        for dtype in (plan.subject.dtype, *plan.low_dtypes):
            yield Case(case.batch, {"dtype": dtype})


CHECK = Check(
    number=15,
    name="layout",
    rule="Channels are paired and rotated as claimed, the others are unchanged, and norms change only by the claimed "
    "scale.",
    why="The layouts have the same shapes: weights of one, run in the other, are wrong without an error.",
    pains=(8,),
    remedy="Pair the channels as in training, and rotate only `rotary_dim` of them.",
    trials=(
        Trial("pairs", pairs_keep_to_themselves, _cases, {"claims": ("layout",)}, claims=("layout", "rotary_dim")),
        Trial("direction", pairs_turn_as_claimed, _one_on, claims=("direction",)),
        Trial("the other channels", the_rest_is_untouched, _of_the_rest, claims=("rotary_dim",)),
        Trial("lengths", lengths_stay, _cases, {"claims": ("scale",)}, claims=("scale", "rotary_dim"), remedy=LENGTHS),
        Trial(
            "the other layout",
            layouts_agree,
            _cases,
            {"claims": ("layout", "other_layout")},
            claims=("layout", "other_layout"),
        ),
    ),
)
