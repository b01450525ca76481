"""Fourier features: adds sines and cosines along random or learned directions to the input."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posenc.arguments import check_choice, check_flag, number, whole
from posenc.positions.positions import Positions
from posenc.rotation.phases import coords_of, drawn, in_double
from posenc.scheme import Scheme
from posenc.schemes.entry import FORMULA, Entry, Law


class FourierFeatures(Scheme):
    """Adds sines and cosines along directions in coordinate space to the input.

    Formula, for coordinates x of any number of axes and dim/2 directions B:

        fixed    P[x] = [cos 2 pi B x | sin 2 pi B x],  B ~ N(0, sigma^2)
        learned  P[x] = W2 gelu(W1 [cos 2 pi B x | sin 2 pi B x] / sqrt(dim)),  B, W1 and W2 learned

    The expected cosine similarity of two vectors is exp(-2 pi^2 sigma^2 r^2) at Euclidean distance r, with length scale
    1/(2 pi sigma). Unlike one sinusoid per axis, this encodes diagonal distances too.

    Parameters: none if fixed, since B is computed from ``seed``; otherwise B (dim/2 x axes), W1 (hidden x dim) and W2
    (dim x hidden) with their biases.
    Shapes: table (rows, tokens, dim); real coordinates (rows, tokens[, axes]).
    Errors: ValueError for an odd dim, a sigma not above 0, or positions with another number of axes.
    Source: Rahimi & Recht 2007, "Random Features for Large-Scale Kernel Machines"; Tancik et al. 2020, "Fourier
    Features Let Networks Learn High Frequency Functions", equation 5 (fixed); Li et al. 2021, "Learnable Fourier
    Features for Multi-Dimensional Spatial Positional Encoding", equations 2 and 3 (learned).
    """

    def __init__(
        self, dim: int, axes: int = 1, sigma: float = 0.05, learned: bool = False, hidden: int = 32, seed: int = 0
    ) -> None:
        super().__init__()
        dim, axes, hidden = whole("dim", dim), whole("axes", axes), whole("hidden", hidden)
        if dim % 2:
            raise ValueError(f"dim must be positive and even (sines and cosines come in pairs), got {dim}")
        check_flag("learned", learned)
        self.dim, self.axes, self.sigma = dim, axes, number("sigma", sigma, above=0)
        self.learned, self.hidden = learned, hidden
        self.seed = whole("seed", seed, -(2**63), 2**64 - 1)  # the range of torch.Generator
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
        if self.directions is not None:
            return in_double(self.directions)
        count = self.dim // 2 * self.axes
        return self.sigma * drawn(count, self.seed, device).view(self.dim // 2, self.axes)

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Float[Tensor, "rows tokens dim"]:
        """The vectors P[x]."""
        check_choice("dtype", dtype, (torch.float32, torch.float64))
        coords = coords_of(positions, self.axes, "FourierFeatures")
        angle = 2 * math.pi * in_double(coords) @ self._directions(coords.device).mT
        features = torch.cat((angle.cos(), angle.sin()), -1).to(dtype=dtype, device=coords.device)
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
    does="random sines and cosines of all axes at once; `learned=True` trains directions and an MLP on top",
    limits="`sigma` sets the length scale of similarity",
    formula=r"x_i \leftarrow x_i + [\, \cos 2 \pi B p_i \mid \sin 2 \pi B p_i \,], \qquad B \sim N(0, \sigma^2)",
    example=("encoding = posenc.FourierFeatures(768, axes=2)(posenc.Positions.grid(8, 8))\nx = encoding.add(x)"),
    url="https://arxiv.org/abs/2006.10739",
)
