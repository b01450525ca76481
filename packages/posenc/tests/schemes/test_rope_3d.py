"""V-JEPA 2's map of channels, at a width where the channels of a pair have different angles."""

import pytest
import torch

from posenc import Positions, RoPE3D
from tests.oracles import rope_3d as oracle
from tests.rounding import of_angles

HEAD_DIM = 14  # shares of 4, and two channels that stay
VIDEO = Positions(Positions.grid(2, 3, frames=2).coords - 1)


def test_the_map_of_v_jepa_2_is_the_oracles() -> None:
    scheme = RoPE3D(HEAD_DIM, base=77.0, form="vjepa2")
    x = torch.randn(2, 3, len(VIDEO), HEAD_DIM, dtype=torch.float64, requires_grad=True)
    found = scheme(VIDEO, dtype=torch.float64).rotate_key(x)
    apply = oracle.turned((4, 4, 4), 77.0, half=True)
    torch.testing.assert_close(found, apply(x, VIDEO), rtol=0, atol=2 * of_angles(torch.float64, 2, x))
    # The map is linear, so its derivative along a direction is the map of the direction.
    weight, direction = torch.randn(2, *x.shape, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((found * weight).sum(), x)
    slope = (apply(direction, VIDEO) * weight).sum()
    torch.testing.assert_close((gradient * direction).sum(), slope, rtol=1e-12, atol=1e-12)


def test_half_precision_is_rounded_once() -> None:
    encoding = RoPE3D(HEAD_DIM, form="vjepa2")(VIDEO)
    x = torch.randn(1, 2, len(VIDEO), HEAD_DIM).bfloat16()
    assert torch.equal(encoding.rotate_key(x), encoding.rotate_key(x.float()).bfloat16())
    with pytest.raises(ValueError, match="the rotation was made for head_dim 14, got q or k of head_dim 12"):
        encoding.rotate_key(x[..., :12])
