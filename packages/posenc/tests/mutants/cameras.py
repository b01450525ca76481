"""Cameras with other matrices, or other angles of patches."""

from typing import Any

import torch

from posenc import Cameras, Positions
from posenc.encoding.rotation import Rotation
from posenc.schemes import cameras
from tests.errors.wrong_calls import Row
from tests.mutants import Lawless, Mutant, moved, oracles
from tests.oracles.cameras import IMAGE, lenses, rig
from tests.schemes import test_cameras

RIGHT = Cameras.rotation
FREQUENCIES = cameras.frequencies

COMPARED = oracles("cameras")


def exchanged(self: Cameras, positions: Positions, *arguments: Any) -> Rotation:
    """Rows and columns."""
    return RIGHT(self, moved(positions, lambda coords: coords[..., [0, 2, 1]]), *arguments)


MUTANTS = (
    Mutant("leaves out the intrinsics", Cameras, "projections", lambda self: self.cameras.double(), COMPARED),
    Mutant("exchanges rows and columns", Cameras, "rotation", exchanged, test_cameras.check_maps),
    Mutant(
        "turns patches the other way",
        cameras,
        "frequencies",
        lambda *sizes: -FREQUENCIES(*sizes),
        test_cameras.check_maps,
    ),
)


class StillCameras(Cameras):
    """Of the first view, whatever the token's."""

    def rotation(self, positions: Positions, *arguments: Any) -> Rotation:
        return RIGHT(self, moved(positions, torch.zeros_like), *arguments)


def still(shape: Any) -> Cameras:
    return StillCameras(shape.head_dim, cameras.around(8), camera_dim=4, rotary_dim=0)


LAWLESS = (Lawless("cameras", still, "absolute"),)
BOTH = (
    "intrinsics and image must be given together, since intrinsics are in the unit of the image's height and width, got"
)
REFUSED = {
    "Cameras": [
        *[
            Row(
                lambda wrong=wrong: Cameras(8, wrong),
                "cameras must be a floating tensor (views, 4, 4) or (rows, views, 4, 4), got …",
            )
            for wrong in ([[1.0]], torch.eye(4), torch.eye(4).long()[None], torch.zeros(2, 3, 4), torch.zeros(0, 4, 4))
        ],
        Row(
            lambda: Cameras(8, rig(3).mT),
            "cameras must have the last row (0, 0, 0, 1), got another: they multiply columns from the left",
        ),
        Row(
            lambda: Cameras(8, rig(3) * torch.tensor([1.0, 0.0, 1.0, 1.0])[:, None]),
            "cameras must have an inverse, got a matrix that has none",
        ),
        Row(
            lambda: Cameras(8, rig(3), lenses(3).mT, IMAGE),
            "intrinsics must have the last row (0, 0, 1), got another: they multiply columns from the left",
        ),
        Row(
            lambda: Cameras(8, rig(3), lenses(2), IMAGE),
            "intrinsics must be of as many views as cameras, got torch.float64 (2, 3, 3), torch.float64 (3, 4, 4)",
        ),
        Row(lambda: Cameras(8, rig(3), lenses(3)), f"{BOTH} torch.float64 (3, 3, 3) and None"),
        Row(lambda: Cameras(8, rig(3), image=IMAGE), f"{BOTH} None and (48, 80)"),
        Row(lambda: Cameras(8, rig(3), lenses(3), 48), "image must be (height, width), got 48"),
        Row(
            lambda: Cameras(6, rig(3)),
            "camera_dim and rotary_dim must be multiples of 4 with a sum of at most head_dim = 6, got 3 and 3",
        ),
        Row(
            lambda: Cameras(8, rig(3), camera_dim=8, rotary_dim=4),
            "camera_dim and rotary_dim must be multiples of 4 with a sum of at most head_dim = 8, got 8 and 4",
        ),
    ]
}
