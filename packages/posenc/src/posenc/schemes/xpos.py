"""xPos: RoPE whose pairs also decay with distance, high frequencies fastest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from posenc.arguments import number
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.encoding import Encoding
from posenc.encoding.rotation import Rotation
from posenc.positions.positions import PADDING, Positions
from posenc.positions.validation import is_readable
from posenc.rotary import PairwiseRotary
from posenc.rotation.phases import PairLayout, PairRotation, coords_of, in_double
from posenc.schemes.entry import FORMULA, Entry, Law

EXPONENT_RANGE = {torch.float16: 10.0, torch.float64: 640.0}
"""The allowed range of exponents in one block of queries, by the dtype of q and k: e^5 and e^-5 are within float16, and
e^80, the product with a masked key, within float32 (80 is for all other dtypes)."""


@dataclass(frozen=True, eq=False)
class Decaying:
    """Rotates pairs by their angles, and multiplies queries by e^(-decay p) and keys by e^(decay p), with p relative to
    an origin.

    Queries that are too far apart for the dtype are split into blocks, each with its own origin. x then becomes wider
    by the number of blocks: a query occupies its own block's channels and is 0 in the others, and a key occupies all of
    them.
    """

    side: Literal["query", "key"]
    pair_rotation: PairRotation  # without decay
    decay: Float64[Tensor, " pairs"]
    place: Float64[Tensor, "rows tokens"]  # relative to the middle of the queries
    asking: Float64[Tensor, "rows queries"]  # the places of the queries
    fastest: float  # the largest decay
    span: float | None  # the distance of the first query from the last; None: unknown

    def __call__(self, x: Float[Tensor, "batch heads tokens head_dim"]) -> Float[Tensor, "batch heads tokens width"]:
        reach = EXPONENT_RANGE.get(x.dtype, 80.0) / self.fastest  # of queries in one block
        # Compared first, so that a dynamic graph is not specialized to this length.
        blocks = 1 if self.span is None or self.span <= reach else math.ceil(self.span / reach)
        middle = (blocks - 1) / 2
        mine = (self.asking / reach + middle).round().clamp(0, blocks - 1)
        # Omit blocks without a query, where values can be read.
        b = torch.arange(blocks, dtype=mine.dtype, device=mine.device)
        b = mine.unique() if blocks > 1 and is_readable(mine) else b
        p = self.place[..., None] - (b - middle) * reach  # from the origin of each block
        if self.side == "query":
            p = (-p).masked_fill(mine[..., None] != b, -torch.inf)
        else:
            # A key after all queries of a block is masked, so its exponent is clamped to the range of the dtype. With
            # an unknown span it is not clamped: better inf than wrong.
            p = p.clamp(max=math.inf if self.span is None else reach / 2)
        dtype = torch.promote_types(x.dtype, torch.float32)
        length = self._lengths(p).to(device=x.device, dtype=dtype)
        return (self.pair_rotation(x.to(dtype))[..., None, :] * length[:, None]).flatten(-2).to(x.dtype)

    def _lengths(self, p: Tensor) -> Float64[Tensor, "rows tokens blocks head_dim"]:
        """e^(decay p) for both channels of every pair."""
        length = (p[..., None] * self.decay).exp()
        return torch.stack((length, length), -2 if self.pair_rotation.layout == "half" else -1).flatten(-2)


class XPos(PairwiseRotary):
    """Extrapolatable position embedding: RoPE whose pair k decays by zeta_k^(r / scale_base) at distance r.

    Formula, for k = 0 .. d/2 - 1, theta_k = base^(-2k/d) and zeta_k = (2k/d + 0.4) / 1.4, pair k of

        q_i  rotated by p_i theta_k, times zeta_k^(p_i / scale_base)
        k_j  rotated by p_j theta_k, times zeta_k^(-p_j / scale_base)

    so pair k of the inner product has the factor zeta_k^((p_i - p_j) / scale_base): it decays with the distance to
    earlier keys and grows without bound for later ones. Attention therefore needs a causal mask. In `logits`, which
    does not mask, the factor of a key more than 16,347 positions after the middle of the queries (float16: 2,043) is
    clamped, and its scores are wrong. Pairs are (2k, 2k + 1) in the "interleaved" layout, as in the authors' code, and
    (k, k + d/2) in "half".

    The factors of q and k alone overflow float32 at position 36,000 and float64 at 290,000; only their product does
    not. The origin of positions cancels, so here positions are relative to the middle of the queries of a call: near
    keys have factors around 1 and distant ones decay to 0, at any position. Therefore

    - a cache keeps unrotated keys (``needs_raw_keys``), which are rotated in every call;
    - queries of one call that are more than 32,695 positions apart (float16: 4,086; float64: 261,565) are split into
      blocks, and q and k become wider by the number of blocks. On a GPU and in a compiled graph this needs positions
      with a layout; without one, such queries give NaN instead of a wrong result.

    The authors' code counts from the middle of the text, so its cached keys go stale as the text grows. Nothing is
    learned. Cost: a pass over q and over all keys per layer. Shapes: query and key (batch, heads, tokens, head_dim),
    any floating dtype; angles are exact to float32 up to position 2^20. Positions may be fractional.
    Source: Sun et al. 2022, "A Length-Extrapolatable Transformer" (arXiv 2212.10554), section 3.2; the numbers were
    read in copies of torchscale's `XPOS` and in x-transformers.
    """

    looks_back = "RoPE"

    def __init__(
        self, head_dim: int, base: float = 10_000.0, scale_base: float = 512.0, layout: PairLayout = "interleaved"
    ) -> None:
        super().__init__(head_dim, base, layout)
        self.scale_base = number("scale_base", scale_base, above=0)

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.head_dim)

    def _decay(self, device: torch.device | None = None) -> Float64[Tensor, " pairs"]:
        """-ln(zeta_k) / scale_base of every pair, in decreasing order."""
        k = torch.arange(self.head_dim // 2, dtype=torch.float64, device=device)
        return -((2 * k / self.head_dim + 0.4) / 1.4).log() / self.scale_base

    def bind(
        self, queries: Positions, keys: Positions, dtype: torch.dtype, context: Context, doors: tuple[str, ...]
    ) -> Encoding:
        rotations = (self._between(queries, keys, dtype),) if "rotate" in doors else ()
        back = (("XPos", self.looks_back),)
        return Encoding(queries, keys, rotations=rotations, context=context, looks_back=back, _scale=self.scale)

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE) -> Rotation:
        return self._between(positions, positions, dtype)

    def _between(self, queries: Positions, keys: Positions, dtype: torch.dtype) -> Rotation:
        origin, span = _middle(queries, in_double(coords_of(queries, 1, "XPos")[..., 0]))
        fastest = math.log(1.4 / 0.4) / self.scale_base
        asking = _places(queries, origin)

        def side(name: Literal["query", "key"], positions: Positions) -> Decaying:
            coords = coords_of(positions, 1, "XPos")[..., 0]
            place = asking if positions is queries else _places(positions, origin)
            return Decaying(
                name, self.rotation_at(coords, dtype), self._decay(place.device), place, asking, fastest, span
            )

        of_queries, of_keys = side("query", queries), side("key", keys)
        return Rotation(of_queries, of_keys, scale=self.scale, for_each_other=True)


def _places(positions: Positions, origin: Float64[Tensor, " rows"]) -> Float64[Tensor, "rows tokens"]:
    """Coordinates relative to the origin of their row; 0 for padding."""
    padding = (positions.document == PADDING).to(origin.device)
    coords = in_double(coords_of(positions, 1, "XPos")[..., 0])
    return torch.where(padding, 0.0, coords - origin[:, None])


def _middle(positions: Positions, coords: Tensor) -> tuple[Float64[Tensor, " rows"], float | None]:
    """The midpoint of the first and last token of each row, and the largest distance between these; None where that is
    not known without synchronizing a device."""
    if coords.size(1) == 0:
        return coords.new_zeros(coords.size(0)), 0.0
    padding = (positions.document == PADDING).to(coords.device)
    lowest = coords.masked_fill(padding, torch.inf).amin(1)
    highest = coords.masked_fill(padding, -torch.inf).amax(1)
    is_text = highest >= lowest  # else the row has only padding
    middle = torch.where(is_text, (lowest + highest) / 2, 0.0)
    if is_readable(coords):
        return middle, float(torch.where(is_text, highest - lowest, 0.0).max())
    bounds = positions.layout.bounds
    return middle, None if bounds is None else bounds[1] - bounds[0]


ENTRY = Entry(
    name="xpos",
    scheme=XPos,
    paper="Sun et al. 2022",
    laws=FORMULA | {Law.RELATIVE, Law.UNIQUE, Law.LINEAR, Law.DIRECTED, Law.DECAYING_BOUND},
    cost="one pass over q and over all keys per layer",
    build=lambda shape: XPos(shape.head_dim),
    does="RoPE whose pairs also decay with distance, high frequencies fastest; for causal attention",
    limits="a cache keeps unrotated keys; scores grow for keys after the query, so it needs a causal mask",
    formula=(
        r"s_{ij} = \frac{1}{\sqrt{d}} \sum_k \zeta_k^{(p_i - p_j) / \mathrm{scale\_base}} "
        r"\allowbreak \, (R_{p_i} q_i)_k \cdot (R_{p_j} k_j)_k, \qquad \zeta_k = \frac{2k / d + 0.4}{1.4}, \qquad "
        r"R_p \mbox{ turns pair } k \mbox{ by } p \, \mathrm{base}^{-2k/d}"
    ),
    example="posenc.attention(q, k, v, posenc.XPos(64), is_causal=True)",
    users="torchscale",
    url="https://arxiv.org/abs/2212.10554",
    avoid="**Keys that must be found far back.** High frequencies fade with distance. In `RoPE` none fades.",
)
