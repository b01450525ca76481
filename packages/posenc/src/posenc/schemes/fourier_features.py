"""Fourier features: sines and cosines along random or learned directions, or in bands along each axis."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posenc.arguments import check_choice, check_flag, number, shown, whole
from posenc.positions.positions import Positions
from posenc.rotation.phases import coords_of, exact, in_double, seeded_normal
from posenc.scheme import Scheme
from posenc.schemes.entry import FORMULA, Entry, Law, lines


class FourierFeatures(Scheme):
    """Adds sines and cosines along directions in coordinate space to the input.

    Formula, for coordinates x of any number of axes and dim/2 directions B:

        fixed    P[x] = [cos 2 pi B x | sin 2 pi B x],  B ~ N(0, sigma^2)
        learned  P[x] = W2 gelu(W1 [cos 2 pi B x | sin 2 pi B x] / sqrt(dim)),  B, W1 and W2 learned

    The expected cosine similarity of two vectors is exp(-2 pi^2 sigma^2 r^2) at Euclidean distance r, with length scale
    1/(2 pi sigma).

    With ``bands``, each axis has its own K = dim / (2 axes) frequencies:

        "perceiver"  [sin pi f_ak x_a | cos pi f_ak x_a],  f_a1 .. f_aK evenly from 1 to resolution_a / 2
        "nerf"       [sin x | cos x | sin 2x | cos 2x | .. | sin 2^(K-1) x | cos 2^(K-1) x]

    "perceiver" lists all frequencies of axis 0, then those of axis 1; x is within [-1, 1], both ends included, and
    ``resolution`` is the number of points per axis. "nerf" is the authors' code; equation 4 of the paper has pi x in
    place of x. The models do not add the vectors to their input, but append x and the vectors to it:
    ``torch.cat((features, positions.coords, scheme.table(positions)), -1)``.

    Parameters: none if fixed, since B is computed from ``seed``; otherwise B (dim/2 x axes), W1 (hidden x dim) and W2
    (dim x hidden) with their biases.
    Shapes: table (rows, tokens, dim); real coordinates (rows, tokens[, axes]).
    Source: Rahimi & Recht 2007, "Random Features for Large-Scale Kernel Machines"; Tancik et al. 2020, "Fourier
    Features Let Networks Learn High Frequency Functions", equation 5 (fixed); Li et al. 2021, "Learnable Fourier
    Features for Multi-Dimensional Spatial Positional Encoding", equations 2 and 3 (learned); Jaegle et al. 2021,
    "Perceiver", section 3.2, as in transformers (PerceiverFourierPositionEncoding); Mildenhall et al. 2020, "NeRF",
    section 5.1, and its code (bmild/nerf, run_nerf_helpers.py).
    """

    def __init__(
        self,
        dim: int,
        axes: int = 1,
        sigma: float = 0.05,
        learned: bool = False,
        hidden: int = 32,
        seed: int = 0,
        *,
        bands: Literal["perceiver", "nerf"] | None = None,
        resolution: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        dim, axes, hidden = whole("dim", dim), whole("axes", axes), whole("hidden", hidden)
        if dim % 2:
            raise ValueError(f"dim must be positive and even (sines and cosines come in pairs), got {dim}")
        if bands is not None:
            check_choice("bands", bands, ("perceiver", "nerf"))
            if dim % (2 * axes):
                raise ValueError(f"dim must be a multiple of 2 axes = {2 * axes} with bands, got {dim}")
        check_flag("learned", learned)
        self.dim, self.axes, self.sigma = dim, axes, number("sigma", sigma, above=0)
        self.learned, self.hidden = learned, hidden
        self.seed = whole("seed", seed, -(2**63), 2**64 - 1)  # the range of torch.Generator
        self.bands: Literal["perceiver", "nerf"] | None = bands
        if bands is not None and (self.sigma, learned, hidden, self.seed) != (0.05, False, 32, 0):
            raise ValueError("sigma, learned, hidden and seed are for random directions: leave them out with bands")
        if bands != "perceiver" and resolution is not None:
            raise ValueError(f"resolution must be None unless bands='perceiver', got {shown(resolution)}")
        if bands == "perceiver" and (not isinstance(resolution, Sequence) or len(resolution) != axes):
            raise ValueError(f"resolution must be {axes} numbers, the points along each axis, got {shown(resolution)}")
        each = None if resolution is None else tuple(number("resolution", n, above=0) for n in resolution)
        self.resolution = each
        self.directions = nn.Parameter(torch.empty(dim // 2, axes)) if learned else None
        self.mix = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim)) if learned else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """B from N(0, sigma^2); W1 and W2 like `torch.nn.Linear`."""
        if self.directions is not None and self.mix is not None:
            nn.init.normal_(self.directions, std=self.sigma)
            for layer in (self.mix[0], self.mix[2]):
                assert isinstance(layer, nn.Linear)
                layer.reset_parameters()

    def _directions(self, device: torch.device) -> Tensor:
        """B, one row per sine; for "nerf" 2 pi B, whose products with positions are exact."""
        if self.directions is not None:
            return in_double(self.directions)
        if self.bands is None:
            count = self.dim // 2 * self.axes
            return self.sigma * seeded_normal(count, self.seed, device).view(self.dim // 2, self.axes)
        count, each = self.dim // (2 * self.axes), torch.eye(self.axes, dtype=torch.float64, device=exact(device))
        if self.resolution is None:  # band after band, each with all axes
            octaves = 2.0 ** torch.arange(count, dtype=torch.float64, device=each.device)
            return torch.kron(octaves[:, None], each)
        ends = torch.tensor(self.resolution, dtype=torch.float64, device=each.device) / 2
        share = torch.arange(count, dtype=torch.float64, device=each.device) / max(count - 1, 1)
        return ((1 + share * (ends[:, None] - 1)) / 2)[..., None].mul(each[:, None]).flatten(0, 1)

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Float[Tensor, "rows tokens dim"]:
        check_choice("dtype", dtype, (torch.float32, torch.float64))
        coords = coords_of(positions, self.axes, "FourierFeatures")
        unit = 1.0 if self.bands == "nerf" else 2 * math.pi
        angle = unit * in_double(coords) @ self._directions(coords.device).mT
        waves = (angle.cos(), angle.sin()) if self.bands is None else (angle.sin(), angle.cos())
        group = self.axes if self.bands == "nerf" else self.dim // 2  # channels of one wave before those of the other
        features = torch.cat([wave.unflatten(-1, (-1, group)) for wave in waves], -1).flatten(-2)
        features = features.to(dtype=dtype, device=coords.device)
        if self.mix is None:
            return features
        return self.mix((features / math.sqrt(self.dim)).to(next(self.mix.parameters()).dtype)).to(dtype)


ENTRY = Entry(
    name="fourier_features",
    scheme=FourierFeatures,
    paper="Tancik et al. 2020; Li et al. 2021",
    laws=FORMULA | {Law.ABSOLUTE, Law.UNIQUE, Law.LINEAR, Law.ORTHOGONAL, Law.BOUNDED, Law.DIRECTED, Law.EXTENSIBLE},
    cost="one addition to the input",
    build=lambda shape: FourierFeatures(shape.dim, axes=shape.axes),
    axes="any",
    learned="nothing, or directions and an MLP",
    does="random or learned sines and cosines of all axes at once, or `bands` of Perceiver and NeRF",
    limits="`sigma` sets the length scale of similarity",
    formula=lines(
        r"x_i \leftarrow x_i + P_{p_i}, \qquad P_p = [\, \cos 2 \pi B p \mid \sin 2 \pi B p \,], \qquad "
        r"B \sim N(0, \sigma^2)",
        r"\mbox{learned} \mbox{: } P_p = W_2 \, \mathrm{gelu} \Bigl( \frac{W_1}{\sqrt{\mathrm{dim}}} "
        r"\allowbreak [\, \cos 2 \pi B p \mid \sin 2 \pi B p \,] \Bigr)",
        r"\mbox{perceiver} \mbox{: } [\, \sin \pi f_k p \mid \cos \pi f_k p \,], "
        r"\allowbreak f_k \mbox{ evenly from 1 to resolution/2} \qquad "
        r"\mbox{nerf} \mbox{: } [\, \sin 2^k p \mid \cos 2^k p \,]",
    ),
    symbols={"sigma": "σ"},
    example=("encoding = posenc.FourierFeatures(768, axes=2)(posenc.Positions.grid(8, 8))\nx = encoding.add(x)"),
    users="Perceiver and NeRF, with `bands`",
    url="https://arxiv.org/abs/2006.10739",
    avoid="**Coordinates of unknown scale.** `sigma` sets which distances look near; try several values.",
)
