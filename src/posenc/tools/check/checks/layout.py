"""Checks which channels are pairs, which are rotated at all, and that norms are kept (check 15)."""

from collections.abc import Iterator

import torch

from posenc.tools.check.heads import Rotary
from posenc.tools.check.measure import fastest, first_axis, frequencies, lowered, matrices, pairs, row_of, sides, turned
from posenc.tools.check.outcome import Outcomes, near
from posenc.tools.check.subjects import Batch, require
from posenc.tools.check.trial import AT_0_ALONE, Case, Check, Plan, Trial


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
        came = matrices(subject, made, row_of(batch), which)
        turns = came * (1 - torch.eye(subject.head_dim, device=subject.device))
        size = float(came.abs().max())
        require(
            not float(turns.abs().max()) < rounding(subject) * size,
            f"let it turn something: positions {row_of(batch)} turn nothing",
        )
        outside = came * (1 - inside)
        yield f"{name} [position, head, to, from]", near(torch.zeros_like(outside), outside, rounding(subject) * size)


def pairs_turn_as_claimed(subject: Rotary, batch: Batch) -> Outcomes:
    """The sign with which the first channel of a pair enters the second, one position on: plus for a forward
    rotation."""
    assert subject.layout is not None
    made, count = subject.make(), (subject.rotary_dim or subject.head_dim) // 2
    # Without a claim, a frequency is taken to be positive and less than half a turn, as for every base.
    theta = [*(frequencies(subject) or [1.0] * count), *[0.0] * count][:count]
    forward = torch.tensor(theta, dtype=torch.float64).sin().sign() * (1 if subject.direction == "forward" else -1)
    for name, which in sides(subject):
        came = matrices(subject, made, row_of(batch), which)[0].double()
        across = torch.stack([came[:, b, a] for a, b in pairs(subject, subject.layout)], -1).cpu()  # (heads, pairs)
        turns = (across.abs() > rounding(subject) * came.abs().max().cpu()) & (forward != 0)
        require(bool(turns.any()), f"nothing to do: positions {row_of(batch)} turn nothing")
        expected = torch.where(turns, forward, 0.0)
        yield f"{name} [head, pair], +1 forward", near(expected, torch.where(turns, across.sign(), 0.0), 0.0)


def the_rest_is_untouched(subject: Rotary, batch: Batch, dtype: torch.dtype) -> Outcomes:
    """The channels past rotary_dim must not change: to the bit, or to the rounding of a lower dtype."""
    assert subject.rotary_dim is not None
    positions, exactly = row_of(batch), 0.0 if subject.computes_in is None else subject.eps()
    x = torch.randn(3, subject.head_dim, generator=torch.Generator().manual_seed(0)).to(subject.device, dtype)
    for name, which in sides(subject):
        came = lowered(subject, dtype, None, turned, x, positions, which)[..., subject.rotary_dim :]
        expected = x[:, None, None, subject.rotary_dim :].expand_as(came)
        yield f"{name} [vector, head, position, channel]", near(expected, came, exactly * float(x.abs().max()))


def lengths_stay(subject: Rotary, batch: Batch) -> Outcomes:
    """The rotated channels keep lengths and right angles: R'R against scale² times the identity."""
    assert subject.scale is not None
    rotary, made = subject.rotary_dim or subject.head_dim, subject.make()
    for name, which in sides(subject):
        came = matrices(subject, made, row_of(batch), which).double()[..., :rotary, :rotary]
        products = came.mT @ came
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
        came = matrices(subject, subject.make(**subject.other_layout), positions, which)[..., there, :][..., there]
        for n, p in enumerate(positions):
            # The two may compute their phases in two ways, each of which rounds by up to 4 p theta 2^-23.
            phase = 8 * first_axis(p) * fastest(subject) * 2**-23
            tolerance = (phase + rounding(subject)) * float(expected.abs().max())
            yield f"{name} at {p} [head, to, from]", near(expected[n], came[n], tolerance)


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


def _cases(plan: Plan, claims: tuple[str, ...] = ()) -> Iterator[Case]:
    require(isinstance(plan.subject, Rotary), "nothing to do: a rotation alone has pairs of channels")
    at = [p for p in AT if p < plan.reach]
    require(at, AT_0_ALONE)
    for name in claims:
        require(getattr(plan.subject, name), UNCLAIMED[name])
    yield Case(plan.row(at))


def _one_on(plan: Plan) -> Iterator[Case]:
    for _ in _cases(plan, ("layout", "direction")):
        require(plan.has(1), AT_0_ALONE)
        yield Case(plan.row([1]))


def _of_the_rest(plan: Plan) -> Iterator[Case]:
    for case in _cases(plan):
        rotary, head_dim = (getattr(plan.subject, name) for name in ("rotary_dim", "head_dim"))
        require((rotary or head_dim) < head_dim, "claim a `rotary_dim` where fewer channels are turned")
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
