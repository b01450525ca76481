"""RoPE with other angles, other pairs, or too little precision."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posenc import Positions, RoPE, rotary
from posenc.encoding.encoding import Context
from posenc.encoding.rotation import Rotation
from posenc.rotary import Rotary
from posenc.rotation.phases import PairLayout, PairRotation, _PairRotationFunction
from tests.mutants import Lawless, Mutant, lines, oracles
from tests.schemes import test_against_oracles, test_precision, test_rope

RIGHT = RoPE.rotation


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
    return _PairRotationFunction.apply(gradient, cos, sin, ctx.layout), None, None, None


def keeping_x(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, PairLayout], output: Tensor) -> None:
    x, cos, sin, ctx.layout = inputs
    ctx.save_for_backward(cos, sin, x)


COMPARED = oracles("rope")
GRADIENT = partial(test_against_oracles.test_gradients_are_the_oracles, "rope")
KEPT = partial(test_rope.test_what_is_kept_for_the_gradient_is_the_angles_and_x_where_they_are_learned, "half")
PRECISE = partial(test_precision.test_rope_phases, "built", "half")
ROUNDED_ONCE = partial(
    test_precision.test_rope_turns_any_query_to_its_own_precision, "built", "interleaved", torch.bfloat16
)
MUTANTS = (
    *lines(PRECISE, ("holds positions in bfloat16", Rotary, "_rotation", "phases(axis, ", "phases(axis.bfloat16(), ")),
    Mutant("computes phases in single precision", rotary, "phases", single_precision, PRECISE),
    Mutant("turns in the precision of the query", PairRotation, "__call__", in_half_precision, ROUNDED_ONCE),
    Mutant("turns the gradient forwards", _PairRotationFunction, "backward", turned_forwards, GRADIENT),
    Mutant("keeps x for the gradient", _PairRotationFunction, "setup_context", keeping_x, KEPT),
    Mutant("turns imaginary heads forwards", RoPE, "rotation", forwards, COMPARED),
)


class OneSpeedRoPE(RoPE):
    """Every pair turns at the same speed."""

    def frequencies(self, *given: Any) -> Any:
        theta, factor = super().frequencies(*given)
        return theta[:, :1].expand_as(theta), factor


LAWLESS = (Lawless("rope", lambda shape: OneSpeedRoPE(shape.head_dim), "decaying_bound"),)
