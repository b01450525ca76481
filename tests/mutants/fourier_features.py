"""FourierFeatures along other directions, in another order, or in too little precision."""

from collections.abc import Callable
from functools import partial
from math import pi

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc import FourierFeatures, Positions
from tests.cases import DIM
from tests.hard.wrong import NO_SIZES, NO_WORDS, Row, each, flags, numbers, sizes
from tests.mutants import Lawless, Mutant, Untrue, moved, oracles, wide
from tests.schemes import test_life_cycle

RIGHT = FourierFeatures._directions
TABLE = FourierFeatures.table


def table(
    turn: float = 2 * pi,
    first: str = "cos",
    directions: Callable[[FourierFeatures], Tensor] = lambda self: RIGHT(self, torch.device("cpu")),
    coords: Callable[[Tensor], Tensor] = lambda coords: coords.double(),
    factor: Callable[[FourierFeatures], float] = lambda self: self.dim**-0.5,
    gelu: str = "none",
) -> Callable[..., Tensor]:
    """The method as it is, but for one thing."""

    def wrong(self: FourierFeatures, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
        where = coords(positions.coords if positions.coords.dim() == 3 else positions.coords[..., None])
        if self.bands is not None:
            return TABLE(self, positions, dtype)
        angle = turn * where @ directions(self).to(where.dtype).mT
        features = torch.cat((angle.cos(), angle.sin()) if first == "cos" else (angle.sin(), angle.cos()), -1).to(dtype)
        if self.mix is None:
            return features
        hidden = self.mix[0]((factor(self) * features).to(self.mix[0].weight.dtype))
        return self.mix[2](F.gelu(hidden, approximate=gelu)).to(dtype)

    return wrong


def of_one_axis_each(self: FourierFeatures) -> Tensor:
    """Axis by axis, as sinusoids are."""
    drawn = RIGHT(self, torch.device("cpu"))
    axis = torch.arange(drawn.size(0))[:, None] % self.axes
    return drawn * (axis == torch.arange(self.axes))


def bands(change: Callable[[FourierFeatures, Tensor], Tensor]) -> Callable[..., Tensor]:
    """The directions as they are, but for those of bands."""

    def wrong(self: FourierFeatures, device: torch.device) -> Tensor:
        right = RIGHT(self, device)
        return right if self.bands is None else change(self, right)

    return wrong


def axis_by_axis(self: FourierFeatures, right: Tensor) -> Tensor:
    """And in the order of the other convention."""
    count = self.dim // (2 * self.axes)
    shape = (self.axes, count) if self.resolution is not None else (count, self.axes)
    return right.unflatten(0, shape).transpose(0, 1).flatten(0, 1)


def to_the_resolution(self: FourierFeatures, right: Tensor) -> Tensor:
    """Frequencies beyond the highest that a grid of these points can tell."""
    return right if self.resolution is None else right * 2


def cosine_first(self: FourierFeatures, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
    right = TABLE(self, positions, dtype)
    group = self.axes if self.bands == "nerf" else self.dim // 2
    return right if self.bands is None else right.unflatten(-1, (-1, 2, group)).flip(-2).flatten(-3)


def of_sigma_1(self: FourierFeatures) -> Tensor:
    drawn = RIGHT(self, torch.device("cpu"))
    return drawn if self.directions is not None else drawn / self.sigma


def drawn_anew(self: FourierFeatures, device: torch.device) -> Tensor:
    """At every call, by whatever the random state of the program is."""
    if self.directions is not None:
        return self.directions.double()
    return self.sigma * torch.randn(self.dim // 2, self.axes, dtype=torch.float64)


def with_a_buffer(
    self: FourierFeatures,
    dim: int,
    axes: int = 1,
    sigma: float = 0.05,
    learned: bool = False,
    hidden: int = 32,
    seed: int = 0,
) -> None:
    super(FourierFeatures, self).__init__()
    self.dim, self.axes, self.sigma, self.seed = dim, axes, sigma, seed
    self.mix = self.bands = self.resolution = None
    self.register_parameter("directions", None)
    self.register_buffer("drawn", sigma * torch.randn(dim // 2, axes))


def mutant(bug: str, wrong: object) -> Mutant:
    return Mutant(bug, FourierFeatures, "table", wrong, oracles("fourier_features"))


MUTANTS = (
    mutant("has no 2 pi", table(turn=1.0)),
    mutant("has pi, and half a turn", table(turn=pi)),
    mutant("puts the sine first", table(first="sin")),
    mutant("turns the other way", table(turn=-2 * pi)),
    mutant("ignores sigma", table(directions=of_sigma_1)),
    mutant("has every direction along one axis", table(directions=of_one_axis_each)),
    mutant("swaps the axes", table(coords=lambda coords: coords.double().flip(-1))),
    mutant("does not scale what the layers are given", table(factor=lambda self: 1.0)),
    mutant("scales by the number of directions", table(factor=lambda self: (self.dim / 2) ** -0.5)),
    mutant("approximates its GELU", table(gelu="tanh")),
    mutant("computes phases in single precision", table(coords=lambda coords: coords.float())),
    mutant("begins its bands with cosines", cosine_first),
    Mutant(
        "has pi in NeRF's bands, and more in Perceiver's",
        FourierFeatures,
        "_directions",
        bands(lambda self, right: right * pi),
        oracles("fourier_features"),
    ),
    Mutant(
        "exchanges the orders of bands",
        FourierFeatures,
        "_directions",
        bands(axis_by_axis),
        oracles("fourier_features"),
    ),
    Mutant(
        "has frequencies up to the resolution",
        FourierFeatures,
        "_directions",
        bands(to_the_resolution),
        oracles("fourier_features"),
    ),
    Mutant(
        "draws its directions at every call",
        FourierFeatures,
        "_directions",
        drawn_anew,
        partial(test_life_cycle.check_purity, "fourier_features"),
    ),
    Mutant(
        "keeps its directions in a buffer",
        FourierFeatures,
        "__init__",
        with_a_buffer,
        partial(test_life_cycle.check_state, "fourier_features"),
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


class SlowFourier(FourierFeatures):
    """The 2 pi lost: every law holds."""

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
        return super().table(moved(positions, lambda p: p / (2 * torch.pi)), dtype)


LAWLESS = (
    Lawless("fourier_features", wide(RedrawnFourier), "deterministic"),
    Lawless("fourier_features", wide(AlongAxesFourier), "separable"),
)
UNTRUE = (Untrue("fourier", lambda: SlowFourier(DIM, sigma=0.3, seed=5)),)

REFUSED = {
    "FourierFeatures": [
        *sizes(FourierFeatures, {"dim": 8}, "dim", "axes", "hidden"),
        *numbers(FourierFeatures, {"dim": 8}, "sigma", 0),
        *flags(FourierFeatures, {"dim": 8}, "learned"),
        *each(FourierFeatures, {"dim": 8}, "seed", [*NO_SIZES[:8], (2**64, str(2**64))], "a whole number within …"),
        Row(lambda: FourierFeatures(7), "dim must be positive and even …, got 7"),
        *each(FourierFeatures, {"dim": 8}, "bands", NO_WORDS, "'perceiver' or 'nerf'"),
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
    ],
}
