"""Cameras at a width where patches are rotated too, in another world, with gradients, and what is refused at a call."""

import pytest
import torch
from torch import Tensor

import posenc
from posenc import Cameras, PositionError, Positions
from tests.oracles import cameras as oracle
from tests.rounding import of_sums

HEAD_DIM, VIEWS, BASE = 20, 3, 77.0
VIDEO = Positions.grid(2, 3, frames=VIEWS)
DOUBLE = torch.float64


def built(cameras: Tensor | None = None, lenses: bool = True) -> Cameras:
    """For 8 channels of cameras, 8 of patches and 4 that stay."""
    cameras = oracle.rig(2, VIEWS) if cameras is None else cameras
    how = (oracle.lenses(VIEWS), oracle.IMAGE) if lenses else (None, None)
    return Cameras(HEAD_DIM, cameras, *how, camera_dim=8, rotary_dim=8, base=BASE)


def heads(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 2, 2, len(VIDEO), HEAD_DIM, dtype=DOUBLE, generator=generator)


def check_maps() -> None:
    """Queries, keys, values and the output, and the derivatives of these maps, which are linear."""
    places = VIDEO.expand(2).coords.tolist()
    encoding = built()(VIDEO, dtype=DOUBLE)
    x, direction, weight = (t.requires_grad_(n == 0) for n, t in enumerate(heads()))
    for which, turn in (
        ("query", encoding.rotate_query),
        ("key", encoding.rotate_key),
        ("key", encoding.rotate_value),
        ("output", encoding.rotate_output),
    ):

        def truth(t: Tensor, which: str = which) -> Tensor:
            rig, lenses = oracle.rig(2, VIEWS), oracle.lenses(1, VIEWS)
            return oracle.of_all(t, places, which, rig, lenses, oracle.IMAGE, (8, 8), BASE)

        found, expected = turn(x), truth(x)
        # An inverse is off by the condition of the matrix, which is below 100 here.
        bound = 100 * of_sums(DOUBLE, 4, expected)
        torch.testing.assert_close(found, expected, rtol=0, atol=bound)
        (gradient,) = torch.autograd.grad((found * weight).sum(), x)
        slope = (truth(direction) * weight).sum()
        torch.testing.assert_close((gradient * direction).sum(), slope, rtol=0, atol=bound * x.numel() ** 0.5)


def test_the_maps_are_the_oracles() -> None:
    assert torch.linalg.cond(built().projections()).max() < 100
    check_maps()


def test_gradients_reach_the_cameras() -> None:
    q, k, v = heads()[..., :3, :8]
    video = Positions.grid(1, 1, frames=VIEWS)

    def out(cameras: Tensor, intrinsics: Tensor) -> Tensor:
        scheme = Cameras(8, cameras, intrinsics, oracle.IMAGE, camera_dim=4, rotary_dim=4)
        found = posenc.attention(q, k, v, scheme(video, dtype=DOUBLE), backend="reference")
        assert isinstance(found, Tensor)
        return found

    leaves = oracle.rig(VIEWS).requires_grad_(), oracle.lenses(VIEWS).requires_grad_()
    (of_cameras, of_lenses) = torch.autograd.grad((out(*leaves) * v).sum(), leaves)
    step = 1e-6
    for leaf, gradient, row in ((0, of_cameras, 3), (1, of_lenses, 2)):
        direction = torch.randn_like(leaves[leaf])
        direction[..., row, :] = 0  # the last row is constant
        ends = []
        for sign in (1, -1):
            moved = [x.detach() + sign * step * direction if n == leaf else x.detach() for n, x in enumerate(leaves)]
            ends.append((out(*moved) * v).sum())
        # By central differences: truncation some 1e-12 and rounding 1e-9 of sums of some hundred.
        torch.testing.assert_close((gradient * direction).sum(), (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-6)


def test_what_has_no_camera_is_named() -> None:
    with pytest.raises(PositionError, match="Cameras encodes views 0 to 2, got 3"):
        built()(Positions.grid(1, 2, frames=4))
    with pytest.raises(ValueError, match=r"Cameras takes 3 coordinates per token, got positions of 2 axes: make them"):
        built()(Positions.grid(2, 2))
    with pytest.raises(ValueError, match=r"Cameras looks cameras up by their view and needs int64 coordinates, got"):
        built()(Positions(VIDEO.coords / 2))
    with pytest.raises(ValueError, match="positions must have 1 or 2 rows like the cameras, got 3"):
        built()(VIDEO.expand(3))
    encoding = built()(VIDEO, dtype=DOUBLE)
    with pytest.raises(ValueError, match="the cameras are for head_dim 20, got q, k or v of head_dim 12"):
        encoding.rotate_key(heads()[0, ..., :12])
