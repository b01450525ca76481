"""LieRE: rotates q and k by the exponential of a learned skew-symmetric matrix, linear in the coordinates."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posenc import compat
from posenc.arguments import check_choice, number, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.rotation import Rotation
from posenc.positions.positions import Positions
from posenc.rotation.phases import FOR_KEY_HEADS, OfHeads, check_fits, coords_of, in_double, shared_by
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Law


class LieRE(Scheme):
    """Lie group relative position encodings: a token x at coordinates p becomes R(p) x, R(p) = exp(sum_a p_a A_a).

    Formula: A_a is skew-symmetric, learned, and block-diagonal with blocks of b x b, so R(p) is a rotation of each
    block. The score is q_i^T R(p_i)^T R(p_j) k_j. With one axis R(p_i)^T R(p_j) = R(p_j - p_i) is exactly relative.
    With several axes this holds only for generators that commute, which is not enforced; for b = 2 they always do.

    Channels after the last whole block are unchanged, and so are tokens at the origin, such as a class token.

    Parameters: ``generators`` (axes, d // b, b, b), of which the upper triangles are used, A = upper - upper^T; with
    ``num_heads``, separately for each *key* head, and several query heads use that of their shared key head.
    Initialized from U(0, 2 pi)/extent: the authors' coordinates run from 0 to 1 over the training grid, in steps of
    1/(side - 1), so ``extent`` is side - 1. On a grid of n they run to n/side, in steps of n/(side (n - 1)).

    Shapes: coordinates (rows, tokens, axes), real; query and key (batch, heads, tokens, head_dim).
    Source: Ostmeier et al. 2024, "LieRE: Generalizing Rotary Position Encodings" (arXiv 2406.10322), after the authors'
    README and code (``models/rope_vit.py`` of github.com/StanfordMIMI/LieRE), not the paper's text. Both have U(0, 2
    pi), as here. The code also subtracts 1/2 from every entry, which cancels in upper - upper^T.
    """

    heads_of = "key"

    def __init__(
        self, head_dim: int, axes: int = 2, block: int = 8, num_heads: int | None = None, extent: float = 16.0
    ) -> None:
        super().__init__()
        self.head_dim, self.axes = whole("head_dim", head_dim, least=2), whole("axes", axes)
        self.block = whole("block", block, least=2, most=self.head_dim)
        self.num_heads = None if num_heads is None else whole("num_heads", num_heads)
        self.extent = number("extent", extent, above=0)
        heads = () if self.num_heads is None else (self.num_heads,)
        self.generators = nn.Parameter(
            torch.empty(self.axes, *heads, self.head_dim // self.block, self.block, self.block)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.generators, 0.0, 2 * math.pi / self.extent)

    @property
    def channels(self) -> range:
        """The rotated channels."""
        return range(self.head_dim // self.block * self.block)

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE) -> Rotation:
        check_choice("dtype", dtype, (torch.float32, torch.float64))
        coords = coords_of(positions, self.axes, "LieRE")
        mine = self.generators[:, None] if self.num_heads is None else self.generators
        if self.num_heads is not None:
            mine = context.of_heads(mine, 1)
        upper = in_double(mine).triu(1)
        summed = torch.einsum("rta,ahnij->rhtnij", in_double(coords), upper - upper.mT)
        matrices = torch.linalg.matrix_exp(summed.contiguous())  # matrix_exp needs a contiguous input
        token_map = BlockRotation(matrices.to(dtype=dtype, device=coords.device), self.head_dim)
        return Rotation(token_map, token_map if self.num_heads is None else OfHeads(token_map, mine.size(1)))


@dataclass(frozen=True, eq=False)
class BlockRotation:
    """Multiplies blocks of channels of x (batch, heads, tokens, head_dim) with matrices. Other channels are unchanged.
    Half-precision x is multiplied in float32 and rounded once."""

    matrices: Float[Tensor, "rows heads tokens blocks b b"]
    head_dim: int

    def __call__(self, x: Float[Tensor, "batch heads tokens head_dim"]) -> Float[Tensor, "batch heads tokens head_dim"]:
        if x.size(-1) != self.head_dim:
            raise ValueError(f"the rotation was made for head_dim {self.head_dim}, got q or k of head_dim {x.size(-1)}")
        matrices = shared_by(self.matrices, x.size(1)) if x.dim() == 4 else self.matrices
        check_fits("the rotation", matrices.shape[:3], x, hint=FOR_KEY_HEADS)
        dtype = torch.promote_types(x.dtype, torch.float32)
        blocks, size = matrices.shape[-3:-1]
        parts = x[..., : blocks * size].to(dtype).unflatten(-1, (blocks, size, 1))
        with compat.without_autocast(x):
            mapped = (matrices.to(dtype) @ parts).flatten(-3).to(x.dtype)
        return torch.cat((mapped, x[..., blocks * size :]), -1)


ENTRY = Entry(
    name="lie_re",
    scheme=LieRE,
    paper="Ostmeier et al. 2024",
    laws=frozenset({Law.ABSOLUTE, Law.UNIQUE, Law.BOUNDED, Law.DIRECTED, Law.LENGTH_FREE, Law.FRACTIONAL}),
    cost="a product of b per channel of q and k per layer",
    build=lambda shape: LieRE(shape.head_dim, 2, min(8, shape.head_dim)),
    axes="two",
    learned="b (b − 1)/2 numbers per block and axis",
    does="rotates blocks of channels by the exponential of a learned matrix, linear in the coordinates",
    limits="relative on one axis; on several only if the generators commute",
    formula=(
        r"s_{ij} = \frac{(R_{p_i} q_i) \cdot (R_{p_j} k_j)}{\sqrt{d}}, \qquad "
        r"R_p = \exp \Bigl( \sum_a p_a A_a \Bigr), \qquad A_a^{T} = -A_a \mbox{ learned,} "
        r"\allowbreak \mbox{in blocks of } \mathrm{block} \mbox{ channels}"
    ),
    example="posenc.attention(q, k, v, posenc.LieRE(64, axes=2), query_positions=posenc.Positions.grid(8, 8))",
    url="https://arxiv.org/abs/2406.10322",
    avoid="**Scores of differences only, on several axes.** Its generators need not commute; those of `STRING` do.",
)
