"""RoPE with other angles, other pairs, or too little precision."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posenc import Positions, RoPE, rotary
from posenc.encoding.encoding import Context
from posenc.encoding.rotation import Rotation
from posenc.rotation.phases import PairLayout, PairRotation, _Turn, frequencies, phases
from tests.cases import HEAD_DIM
from tests.mutants import Lawless, Mutant, Untrue, oracles
from tests.schemes import test_against_oracles, test_life_cycle, test_precision, test_rope

RIGHT = RoPE.rotation


def by_axis(positions: Positions) -> Tensor:
    return positions.coords if positions.coords.dim() == 3 else positions.coords[..., None]


def rotation(
    theta: Callable[[RoPE], Tensor] = lambda self: frequencies(self.rotary_dim // self.axes, self.base),
    coords: Callable[[Positions], Tensor] = by_axis,
    join: Callable[[list[Tensor]], Tensor] = lambda angles: torch.cat(angles, -1),
    layout: dict[str, str] | None = None,
    sense: tuple[int, int] = (1, 1),
) -> Callable[..., Rotation]:
    """The method as it is, but for one thing."""

    def wrong(
        self: RoPE, positions: Positions, dtype: torch.dtype = torch.float32, context: Context | None = None
    ) -> Rotation:
        angle = join([phases(axis, theta(self)) for axis in coords(positions).unbind(-1)])[:, None]
        pairs = self.layout if layout is None else layout[self.layout]
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        query, key = (PairRotation(cos if s else cos * 0 + 1, s * sin, pairs, self.head_dim) for s in sense)
        return Rotation(query, key)

    return wrong


def by_index(positions: Positions) -> Tensor:
    return torch.arange(len(positions))[None, :, None].expand(-1, -1, by_axis(positions).size(-1))


def over_all_axes(self: RoPE) -> Tensor:
    return frequencies(self.rotary_dim, self.base)[: self.rotary_dim // (2 * self.axes)]


def another_imaginary(heads: Callable[[RoPE], range]) -> Callable[..., Rotation]:
    """The rotation of other imaginary heads, where there are any."""

    def wrong(
        self: RoPE, positions: Positions, dtype: torch.dtype = torch.float32, context: Context | None = None
    ) -> Rotation:
        right = self.imaginary
        self.imaginary = right if right is None else heads(self)
        try:
            return RIGHT(self, positions, dtype, context)
        finally:
            self.imaginary = right

    return wrong


def forwards(
    self: RoPE, positions: Positions, dtype: torch.dtype = torch.float32, context: Context | None = None
) -> Rotation:
    """By three quarters less, that is, where there are imaginary heads."""
    right = RIGHT(self, positions, dtype, context)
    if self.imaginary is None:
        return right

    def query(x: Tensor) -> Tensor:
        sign = torch.tensor([-1.0 if h in self.imaginary else 1.0 for h in range(x.size(1))], dtype=x.dtype)
        return right.query(x) * sign[:, None, None]

    return replace(right, query=query)


def remembered(
    self: RoPE, positions: Positions, dtype: torch.dtype = torch.float32, context: Context | None = None
) -> Rotation:
    """Makes the table at its first call, and again only when a longer one is asked for."""
    if getattr(self, "length", 0) < len(positions):
        self.length, self.table_of = len(positions), rotation()(self, positions, dtype)
    return self.table_of


def single_precision(coords: Tensor, theta: Tensor) -> Tensor:
    return coords.float()[..., None] * theta.float()


def in_half_precision(self: PairRotation, x: Tensor) -> Tensor:
    pairs = self.cos.size(-1)
    turned = x[..., : 2 * pairs].unflatten(-1, (2, pairs) if self.layout == "half" else (pairs, 2))
    axis = -2 if self.layout == "half" else -1
    a, b = turned.unbind(axis)
    cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
    return torch.cat((torch.stack((a * cos - b * sin, a * sin + b * cos), axis).flatten(-2), x[..., 2 * pairs :]), -1)


def turned_forwards(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    cos, sin, _ = ctx.saved_tensors
    return _Turn.apply(gradient, cos, sin, ctx.layout), None, None, None


def keeping_x(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, PairLayout], output: Tensor) -> None:
    x, cos, sin, ctx.layout = inputs
    ctx.save_for_backward(cos, sin, x)


HALF, INTERLEAVED = {"half": "half", "interleaved": "half"}, {"half": "interleaved", "interleaved": "interleaved"}
COMPARED = oracles("rope")
SEVERAL_AXES = partial(test_rope.test_each_axis_turns_the_pairs_of_its_own, "half")
GRADIENT = partial(test_against_oracles.test_gradients_are_the_oracles, "rope")
KEPT = partial(test_rope.test_what_is_kept_for_the_gradient_is_the_angles_and_x_where_they_are_learned, "half")
PRECISE = partial(test_precision.check_rope_phases, "built", "half")
ROUNDED_ONCE = partial(
    test_precision.test_rope_turns_any_query_to_its_own_precision, "built", "interleaved", torch.bfloat16
)
MUTANTS = (
    Mutant(
        "ignores the base",
        RoPE,
        "rotation",
        rotation(theta=lambda s: frequencies(s.rotary_dim // s.axes, 1e4)),
        COMPARED,
    ),
    Mutant("is half where interleaved was asked for", RoPE, "rotation", rotation(layout=HALF), COMPARED),
    Mutant("is interleaved where half was asked for", RoPE, "rotation", rotation(layout=INTERLEAVED), COMPARED),
    Mutant("turns by the negative angle", RoPE, "rotation", rotation(sense=(-1, -1)), COMPARED),
    Mutant("turns keys the other way", RoPE, "rotation", rotation(sense=(1, -1)), COMPARED),
    Mutant("does not turn keys", RoPE, "rotation", rotation(sense=(1, 0)), COMPARED),
    Mutant(
        "takes its frequencies over head_dim, not rotary_dim",
        RoPE,
        "rotation",
        rotation(theta=lambda s: frequencies(s.head_dim // s.axes, s.base)[: s.rotary_dim // (2 * s.axes)]),
        COMPARED,
    ),
    Mutant(
        "counts tokens and reads no coordinates",
        RoPE,
        "rotation",
        rotation(coords=by_index),
        COMPARED,
    ),
    Mutant("holds positions in bfloat16", RoPE, "rotation", rotation(coords=lambda p: by_axis(p).bfloat16()), PRECISE),
    Mutant("computes phases in single precision", rotary, "phases", single_precision, PRECISE),
    Mutant("turns in the precision of the query", PairRotation, "__call__", in_half_precision, ROUNDED_ONCE),
    Mutant("swaps the axes", RoPE, "rotation", rotation(coords=lambda p: by_axis(p).flip(-1)), COMPARED),
    Mutant(
        "takes its frequencies over rotary_dim, not rotary_dim/axes",
        RoPE,
        "rotation",
        rotation(theta=over_all_axes),
        SEVERAL_AXES,
    ),
    Mutant(
        "interleaves the axes",
        RoPE,
        "rotation",
        rotation(join=lambda angles: torch.stack(angles, -1).flatten(-2)),
        SEVERAL_AXES,
    ),
    Mutant("turns the gradient forwards", _Turn, "backward", turned_forwards, GRADIENT),
    Mutant("keeps x for the gradient", _Turn, "setup_context", keeping_x, KEPT),
    Mutant("has no imaginary heads", RoPE, "rotation", another_imaginary(lambda self: range(1, 1)), COMPARED),
    Mutant(
        "has the other heads imaginary",
        RoPE,
        "rotation",
        another_imaginary(lambda self: range(0, self.num_heads or 0, 2)),
        COMPARED,
    ),
    Mutant("turns imaginary heads forwards", RoPE, "rotation", forwards, COMPARED),
    Mutant("remembers a table", RoPE, "rotation", remembered, partial(test_life_cycle.check_purity, "rope")),
)


class UnpairedRoPE(RoPE):
    """Keys are turned against queries."""

    rotation = rotation(sense=(1, -1))


class OneSpeedRoPE(RoPE):
    """Every pair turns at the same speed."""

    rotation = rotation(lambda self: frequencies(self.rotary_dim, self.base)[:1].expand(self.rotary_dim // 2))


class HalfPrecisionRoPE(RoPE):
    """Angles in bfloat16."""

    rotation = rotation(join=lambda angles: torch.cat(angles, -1).bfloat16())


class OneBaseRoPE(RoPE):
    """Deaf to its base: every law holds."""

    rotation = rotation(lambda self: frequencies(self.rotary_dim, 10_000.0))


LAWLESS = (
    Lawless("rope", lambda shape: UnpairedRoPE(shape.head_dim), "relative"),
    Lawless("rope", lambda shape: OneSpeedRoPE(shape.head_dim), "decaying_bound"),
    Lawless("rope", lambda shape: HalfPrecisionRoPE(shape.head_dim), "linear"),
)
UNTRUE = (Untrue("rope", lambda: OneBaseRoPE(HEAD_DIM, base=313.0)),)
