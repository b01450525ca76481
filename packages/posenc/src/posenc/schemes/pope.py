"""PoPE: content is the magnitude of a channel, position its phase."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posenc.arguments import check_choice, number, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.rotation import Rotation
from posenc.positions.positions import Positions
from posenc.rotation.phases import check_fits, coords_of, frequencies, in_double, phases
from posenc.scheme import Scheme
from posenc.schemes.entry import FORMULA, Entry, Law


@dataclass(frozen=True, eq=False)
class Polar:
    """Maps each channel to the real and imaginary part of a complex number of magnitude softplus(x)."""

    real: Float[Tensor, "rows heads tokens head_dim"]
    imaginary: Float[Tensor, "rows heads tokens head_dim"]
    heads: int | None = None  # the number of heads of x; None: any

    def __call__(self, x: Float[Tensor, "batch heads tokens head_dim"]) -> Float[Tensor, "batch heads tokens width"]:
        """[softplus(x) cos, softplus(x) sin] in x's dtype, rounded once. Raises ValueError for a shape of x that does
        not match the phases."""
        made = self.real.shape
        check_fits("PoPE", made[:-1], x, self.heads)
        if x.size(-1) != made[-1]:
            raise ValueError(f"PoPE was made for head_dim {made[-1]}, got q or k of head_dim {x.size(-1)}")
        dtype = torch.promote_types(x.dtype, torch.float32)
        length = nn.functional.softplus(x.to(dtype))
        return torch.cat((length * self.real.to(dtype), length * self.imaginary.to(dtype)), -1).to(x.dtype)


class PoPE(Scheme):
    """Polar coordinate position embedding: the content of a channel is a magnitude, its position a phase.

    Formula, with theta_c = base^(-c/d) for c = 0 .. d - 1, as many frequencies as channels:

        s_ij = sum_c softplus(q_ic) softplus(k_jc) cos((p_j - p_i) theta_c + delta_c) / sqrt(d)

    delta_c is learned and clamped to [-2 pi, 0], one for each channel and query head: (num_heads, head_dim), or (1,
    head_dim) shared by all heads if ``num_heads`` is None. It is initialized to 0.

    q and k become twice as wide, [softplus(x) cos p theta, softplus(x) sin p theta]; the scale stays 1/sqrt(d). The
    paper adds the phase delta to the key. Here it is subtracted from the query, which gives the same scores: heads that
    share a key can have different phases, and cached keys do not go stale.

    Shapes: query and key (batch, heads, tokens, head_dim) in any floating dtype; phases are exact to float32 up to
    position 2^20. Positions may be fractional or negative.
    Source: Gopalakrishnan et al. 2025, "Decoupling the What and Where With Polar Coordinate Positional Embeddings"
    (arXiv 2509.10534). The authors' code was not available; the formula follows x-transformers and lucidrains'
    PoPE-pytorch, whose option to initialize delta uniformly is not supported.
    """

    def __init__(self, head_dim: int, num_heads: int | None = None, base: float = 10_000.0) -> None:
        super().__init__()
        self.head_dim, self.base = whole("head_dim", head_dim), number("base", base, above=1)
        self.num_heads = None if num_heads is None else whole("num_heads", num_heads)
        self.delta = nn.Parameter(torch.empty(self.num_heads or 1, self.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.delta)

    @property
    def channels(self) -> range:
        """The channels that have a phase: all of them."""
        return range(self.head_dim)

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.head_dim)

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE) -> Rotation:
        check_choice("dtype", dtype, (torch.float32, torch.float64))
        coords = coords_of(positions, 1, "PoPE")[..., 0]
        theta = frequencies(2 * self.head_dim, self.base, coords.device)  # base^(-c/d)
        angle = phases(coords, theta)[:, None]
        delta, heads = in_double(self.delta), None
        if self.num_heads is not None:
            delta = context.of_heads(delta, 0)
            heads = delta.size(0)
        behind = angle - delta.clamp(-2 * math.pi, 0.0)[:, None]

        def polar(phase: Tensor, heads: int | None) -> Polar:
            real, imaginary = torch.stack((phase.cos(), phase.sin())).to(dtype=dtype, device=coords.device)
            return Polar(real, imaginary, heads)

        return Rotation(polar(behind, heads), polar(angle, None))


ENTRY = Entry(
    name="pope",
    scheme=PoPE,
    paper="Gopalakrishnan et al. 2025",
    laws=FORMULA - {Law.PARAMETER_FREE} | {Law.RELATIVE, Law.UNIQUE, Law.LINEAR, Law.ORTHOGONAL, Law.BOUNDED},
    cost="q and k twice as wide",
    build=lambda shape: PoPE(shape.head_dim, shape.num_heads),
    learned="heads × d",
    does="the magnitude of a channel is a softplus of the content, its phase the position",
    limits="q and k are twice as wide in attention and in the cache; blind to direction until its phases are learned",
    formula=(
        r"s_{ij} = \frac{1}{\sqrt{d}} \sum_{c} \mathrm{softplus}(q_{ic}) \, \mathrm{softplus}(k_{jc}) "
        r"\allowbreak \cdot \cos((p_j - p_i) \theta_c + \delta_{hc}), \qquad \theta_c = \mathrm{base}^{-c/d}"
    ),
    example="posenc.attention(q, k, v, posenc.PoPE(64, 12), is_causal=True)",
    url="https://arxiv.org/abs/2509.10534",
    avoid="**Little memory.** Queries, keys and the cache are twice as wide in attention.",
)
