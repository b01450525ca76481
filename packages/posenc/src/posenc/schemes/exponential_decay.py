"""Exponential decay: adds vectors whose channels decay with the position to the input."""

import torch
from jaxtyping import Float
from torch import Tensor

from posenc import compat
from posenc.arguments import check_choice, check_type, number, whole
from posenc.positions.positions import PADDING, PositionError, Positions
from posenc.rotation.phases import exact, in_double
from posenc.scheme import Scheme
from posenc.schemes.entry import FORMULA, Entry, Law


class ExponentialDecay(Scheme):
    """Adds a vector to the input whose channels decay with the position, each at its own rate.

    Formula, for k = 0 .. dim - 1: P[p, k] = exp(-p / tau_k), tau_k = longest^((k + 1) / dim).

    Shapes: table (rows, tokens, dim). Any real position from 0 on.
    Errors: PositionError for a negative position, where the vector would be unbounded; ValueError for a dim below 1 or
    ``longest`` not above 1.
    Source: mentioned in introductions to positional encoding as an alternative to sinusoids; no paper defines it. The
    geometric rates follow Vaswani et al. 2017, section 3.5.
    """

    def __init__(self, dim: int, longest: float = 10_000.0) -> None:
        super().__init__()
        self.dim, self.longest = whole("dim", dim), number("longest", longest, above=1)

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Float[Tensor, "rows tokens dim"]:
        check_type("positions", positions, Positions)
        check_choice("dtype", dtype, (torch.float32, torch.float64))
        coords = in_double(positions.scalar("ExponentialDecay")).masked_fill(
            (positions.document == PADDING).to(exact(positions.device)), 0.0
        )
        if coords.numel() and compat.has_numbers(coords):
            words = "ExponentialDecay encodes positions from 0 on, got "
            if torch.compiler.is_compiling():  # a compiled graph cannot raise PositionError
                compat.assert_later((coords >= 0).all(), words + "one below")
            elif not (lowest := float(coords.min())) >= 0:  # also NaN
                raise PositionError(f"{words}{lowest:g}")
        powers = torch.arange(1, self.dim + 1, dtype=torch.float64, device=coords.device) / self.dim
        return torch.exp(-coords[..., None] * self.longest**-powers).to(dtype=dtype, device=positions.device)


ENTRY = Entry(
    name="exponential_decay",
    scheme=ExponentialDecay,
    paper="no paper",
    laws=FORMULA | {Law.ABSOLUTE, Law.UNIQUE, Law.LINEAR, Law.BOUNDED, Law.DIRECTED, Law.MONOTONE},
    cost="one addition to the input",
    build=lambda shape: ExponentialDecay(shape.dim),
    does="channels that decay with the position, each at its own rate",
    limits="positions from 0 on; those beyond `longest` are nearly equal",
    formula=(
        r"x_i \leftarrow x_i + P_{p_i}, \qquad P_{p,k} = e^{-p / \tau_k}, \qquad "
        r"\tau_k = \mathrm{longest}^{(k + 1) / \mathrm{dim}}, \qquad k = 0, \ldots, \mathrm{dim} - 1"
    ),
    example=("encoding = posenc.ExponentialDecay(768)(posenc.Positions.arange(64))\nx = encoding.add(x)"),
    avoid="**Long texts.** A channel is near 0 after a few times its τ. We know of no model that uses it.",
)
