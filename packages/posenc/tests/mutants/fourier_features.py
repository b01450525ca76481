"""FourierFeatures along other directions, in another order, or in too little precision."""

from collections.abc import Callable
from functools import partial
from math import pi

import torch
from torch import Tensor

from posenc import FourierFeatures, Positions
from tests.errors.wrong_calls import NO_SIZES, Row, each
from tests.mutants import Lawless, Mutant, oracles, wide

RIGHT = FourierFeatures._directions
TABLE = FourierFeatures.table


def bands(change: Callable[[FourierFeatures, Tensor], Tensor]) -> Callable[..., Tensor]:
    """The directions as they are, but for those of bands."""

    def wrong(self: FourierFeatures, device: torch.device) -> Tensor:
        right = RIGHT(self, device)
        return right if self.bands is None else change(self, right)

    return wrong


def cosine_first(self: FourierFeatures, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
    right = TABLE(self, positions, dtype)
    group = self.axes if self.bands == "nerf" else self.dim // 2
    return right if self.bands is None else right.unflatten(-1, (-1, 2, group)).flip(-2).flatten(-3)


def mutant(bug: str, wrong: object) -> Mutant:
    return Mutant(bug, FourierFeatures, "table", wrong, oracles("fourier_features"))


MUTANTS = (
    mutant("begins its bands with cosines", cosine_first),
    Mutant(
        "has pi in NeRF's bands, and more in Perceiver's",
        FourierFeatures,
        "_directions",
        bands(lambda self, right: right * pi),
        oracles("fourier_features"),
    ),
)


class RedrawnFourier(FourierFeatures):
    def _directions(self, device: torch.device) -> Tensor:
        return self.sigma * torch.randn(self.dim // 2, self.axes, dtype=torch.float64)


class AlongAxesFourier(FourierFeatures):
    """Blind to oblique distances."""

    def _directions(self, device: torch.device) -> Tensor:
        drawn = super()._directions(device)
        return drawn * torch.nn.functional.one_hot(torch.arange(len(drawn)) % self.axes, self.axes)


LAWLESS = (
    Lawless("fourier_features", wide(RedrawnFourier), "deterministic"),
    Lawless("fourier_features", wide(AlongAxesFourier), "separable"),
)

REFUSED = {
    "FourierFeatures": [
        *each(FourierFeatures, {"dim": 8}, "seed", [*NO_SIZES[:8], (2**64, str(2**64))], "a whole number within …"),
        Row(lambda: FourierFeatures(7), "dim must be positive and even …, got 7"),
        Row(lambda: FourierFeatures(10, 2, bands="nerf"), "dim must be a multiple of 2 axes = 4 with bands, got 10"),
        *(
            Row(
                partial(FourierFeatures, 8, bands="nerf", **random),  # type: ignore[arg-type]
                "sigma, learned, hidden and seed are for random directions: leave them out with bands",
            )
            for random in ({"sigma": 0.1}, {"learned": True}, {"hidden": 8}, {"seed": 1})
        ),
        *(
            Row(
                partial(FourierFeatures, 8, 2, bands="perceiver", resolution=resolution),  # type: ignore[arg-type]
                f"resolution must be 2 numbers, the points along each axis, got {came}",
            )
            for resolution, came in ((None, "None"), (224, "224"), ((224,), "(224,)"))
        ),
        Row(
            lambda: FourierFeatures(8, bands="perceiver", resolution=(0,)),
            "resolution must be a finite number above 0, got 0",
        ),
        *(
            Row(
                partial(FourierFeatures, 8, bands=bands, resolution=(9,)),  # type: ignore[arg-type]
                "resolution must be None unless bands='perceiver', got (9,)",
            )
            for bands in (None, "nerf")
        ),
    ]
}
