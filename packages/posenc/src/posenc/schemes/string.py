"""STRING: the most general rotation that is exactly relative, by learned, commuting generators."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from posenc import compat
from posenc.arguments import check_choice, number, one_or, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.rotation import Rotation
from posenc.positions.positions import Positions
from posenc.rotary import OfAllPairs
from posenc.rotation.phases import OfHeads, PairRotation, coords_of, in_double, shared_by
from posenc.schemes.entry import ROTARY, Entry, Law


class STRING(OfAllPairs):
    """Separable translationally invariant position encodings: rotates q and k by exp(sum_a p_a L_a), all L_a commuting.

    Formula: L_a skew-symmetric, d x d, with [L_a, L_b] = 0. The score then depends only on exp(sum_a (p_j - p_i)_a
    L_a), for any learned values and any number of axes, and there is an orthogonal P with

        exp(sum_a p_a L_a) = P^T RoPE(p) P,   RoPE(p): rotates pair k by sum_a p_a f[a, k]

    P^T cancels in the inner product and is omitted: a token x becomes RoPE(p) P x. The forms:

        "cayley"     P = (I - S)(I + S)^-1, S skew-symmetric and learned, and so is f
        "circulant"  L_a = C_a - C_a^T, C_a circulant with the first column c_a, learned. P is the real Fourier basis,
                     and f[a, m] = 2 sum_t c_a[t] sin(2 pi m t/d), m = 0 .. d/2 - 1; the mean and the alternating
                     channel are the pair 0, which is not rotated

    in the half layout. Scores equal those of the exponential; rotated q and k are in the basis P.

    Parameters: "cayley": ``frequencies`` (axes, d/2) and ``skew`` (d, d), of which the upper triangle is used;
    "circulant": ``circulant`` (axes, d). With ``num_heads``, separately for each *key* head; query heads use those of
    their key head. All are initialized from N(0, 0.02^2), and f with the added frequencies of an axial RoPE of this
    base, each axis on its share of the pairs; the paper does not specify this.

    Shapes: coordinates (rows, tokens, axes), real; query and key (batch, heads, tokens, head_dim).
    Source: Schenck et al. 2025, "Learning the RoPEs: Better 2D and 3D Position Encodings with STRING", definition 3.1,
    theorem 3.4 and equations 9 to 11; the authors' code was not found.
    """

    heads_of = "key"

    def __init__(
        self,
        head_dim: int,
        axes: int = 2,
        form: Literal["cayley", "circulant"] = "cayley",
        num_heads: int | None = None,
        base: float = 100.0,
    ) -> None:
        super().__init__(head_dim, "half")
        self.axes = whole("axes", axes)
        if head_dim < 2 * axes:
            raise ValueError(f"head_dim must be at least 2 axes = {2 * axes}, got {head_dim}")
        check_choice("form", form, ("cayley", "circulant"))
        self.form: Literal["cayley", "circulant"] = form
        self.num_heads = None if num_heads is None else whole("num_heads", num_heads)
        self.base = number("base", base, above=1)
        heads = () if self.num_heads is None else (self.num_heads,)
        if form == "cayley":
            self.frequencies = nn.Parameter(torch.empty(self.axes, *heads, self.head_dim // 2))
            self.skew = nn.Parameter(torch.empty(*heads, self.head_dim, self.head_dim))
        else:
            self.circulant = nn.Parameter(torch.empty(self.axes, *heads, self.head_dim))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Frequencies as in an axial RoPE, small generators."""
        if self.form == "circulant":
            nn.init.normal_(self.circulant, std=0.02)
            return
        nn.init.normal_(self.skew, std=0.02)
        pairs = self.head_dim // 2
        k = torch.arange(pairs, device=self.frequencies.device)
        axis = k * self.axes // pairs
        first = (axis * pairs + self.axes - 1) // self.axes  # the first pair of the axis
        magnitude = torch.pow(self.base, -(k - first) * self.axes / pairs)
        drawn = torch.empty(self.frequencies.shape, dtype=self.frequencies.dtype, device=k.device).normal_(std=0.02)
        for a in range(self.axes):
            drawn[a] += torch.where(axis == a, magnitude, 0.0)
        compat.assign(self.frequencies, drawn)

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE) -> Rotation:
        coords = coords_of(positions, self.axes, "STRING")
        basis, theta = self._basis(context), self._theta(context)
        angle = (in_double(coords)[:, None, :, :, None] * theta.movedim(0, 1)[None, :, None]).sum(-2)
        pair_rotation = PairRotation.by(angle, coords, dtype, "half", self.head_dim)
        of_both = InBasis(basis.to(dtype=dtype, device=coords.device), pair_rotation)
        return Rotation(of_both, of_both if self.num_heads is None else OfHeads(of_both, theta.size(1)))

    def _own_heads(self, parameter: Tensor, axis: int, context: Context) -> Float64[Tensor, "..."]:
        """The parameter in float64 with a dimension of heads, sliced to those of the shard."""
        parameter = parameter.unsqueeze(axis) if self.num_heads is None else parameter
        if self.num_heads is not None:
            parameter = context.of_heads(parameter, axis)
        return in_double(parameter)

    def _theta(self, context: Context) -> Float64[Tensor, "axes heads pairs"]:
        if self.form == "cayley":
            return self._own_heads(self.frequencies, 1, context)
        return 2 * self._own_heads(self.circulant, 1, context) @ self._fourier(torch.sin)[: self.head_dim // 2].mT

    def _basis(self, context: Context) -> Float64[Tensor, "heads d d"]:
        if self.form == "cayley":
            upper = self._own_heads(self.skew, 0, context).triu(1)
            skew = upper - upper.mT
            one = torch.eye(self.head_dim, dtype=skew.dtype, device=skew.device)
            return torch.linalg.solve(one + skew, one - skew)  # the two commute
        half = self.head_dim // 2
        cos, sin = self._fourier(torch.cos), self._fourier(torch.sin)
        rows = torch.cat((cos[:half], cos[half:], sin[1:half])) * math.sqrt(2 / self.head_dim)
        is_single = torch.arange(self.head_dim, device=rows.device) % half == 0  # the mean and the alternating channel
        return torch.where(is_single[:, None], rows / math.sqrt(2), rows)[None]

    def _fourier(self, wave: Callable[[Tensor], Tensor]) -> Float64[Tensor, "waves d"]:
        device = in_double(self.circulant).device
        m, t = (torch.arange(n, device=device) for n in (self.head_dim // 2 + 1, self.head_dim))
        angle = (m[:, None] * t % self.head_dim).double() * (2 * math.pi / self.head_dim)
        return wave(angle)


@dataclass(frozen=True, eq=False)
class InBasis:
    """Rotates P x. Half-precision x is multiplied and rotated in float32 and rounded once."""

    basis: Float[Tensor, "heads d d"]
    pair_rotation: PairRotation

    def __call__(self, x: Float[Tensor, "batch heads tokens d"]) -> Float[Tensor, "batch heads tokens d"]:
        if x.size(-1) != self.pair_rotation.head_dim:
            return self.pair_rotation(x)  # raises
        dtype = torch.promote_types(x.dtype, torch.float32)
        basis = shared_by(self.basis[None], x.size(1))[0].to(dtype)
        if not one_or(basis.size(0), x.size(1)):
            return self.pair_rotation(x)  # raises
        return self.pair_rotation(x.to(dtype) @ basis.mT).to(x.dtype)


ENTRY = Entry(
    name="string",
    scheme=STRING,
    paper="Schenck et al. 2025",
    laws=ROTARY | {Law.DECAYING_BOUND, Law.EXTENSIBLE, Law.LENGTH_FREE, Law.FRACTIONAL},
    cost="a d × d product and one pass over q and k per layer",
    build=lambda shape: STRING(shape.head_dim, shape.axes),
    axes="any",
    learned="d/2 frequencies per axis and d (d − 1)/2 numbers of a basis",
    does='rotates by learned, commuting generators, exactly relative on any axes: `"cayley"`, `"circulant"`',
    limits="rotated q and k are in another basis, which other terms of a composition see",
    formula=(
        r"s_{ij} = \Bigl( e^{\sum_a p_{ia} L_a} q_i \Bigr) "
        r"\cdot \Bigl( e^{\sum_a p_{ja} L_a} k_j \Bigr) / \sqrt{d}, \qquad L_a^{T} = -L_a \mbox{ learned}, \qquad "
        r"L_a L_b = L_b L_a"
    ),
    example="posenc.attention(q, k, v, posenc.STRING(64, axes=2), query_positions=posenc.Positions.grid(8, 8))",
    url="https://arxiv.org/abs/2502.02562",
    avoid="**Compositions with terms that read queries and keys**, such as `Shaw`: it changes their basis.",
)
