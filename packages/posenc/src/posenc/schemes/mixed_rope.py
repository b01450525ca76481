"""Mixed RoPE: rotates every pair by both coordinates of a patch, at learned frequencies of each head."""

import math

import torch
from torch import nn

from posenc import compat
from posenc.arguments import number, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.rotation import Rotation
from posenc.positions.positions import Positions
from posenc.rotary import multiple_of_4
from posenc.rotation.phases import OfHeads, PairRotation, coords_of, in_double
from posenc.scheme import Scheme
from posenc.schemes.entry import ROTARY, ROTATED_SCORE, Entry, Law, lines


class MixedRoPE(Scheme):
    """RoPE-Mixed: rotates pair k of head h by x f_x[h, k] + y f_y[h, k], for the patch in column x and row y.

    Formula, for each pair of channels (2k, 2k + 1), k = 0 .. D/2 - 1, D = rotary_dim:

        (a, b) -> (a cos phi - b sin phi,  a sin phi + b cos phi),   phi = x f_x[h, k] + y f_y[h, k]

    Parameters: ``frequencies`` (2, num_heads, D/2), columns first; in a checkpoint of the authors' code ``freqs[:,
    layer].view(2, num_heads, D/2)``. Initialized with m_k = base^(-4k/D), k = 0 .. D/4 - 1, along a random direction
    a_h of the head, m_k (cos a_h, sin a_h) for (f_x, f_y), followed by the same m_k perpendicular to it. Every layer
    has its own: use `another`.

    A key head that several query heads share has only one angle, so ``num_heads`` is the number of *key* heads; query
    heads use the frequencies of their key head.

    Shapes: coordinates (rows, tokens, 2), row before column as in `Positions.grid`; query (batch, heads, tokens,
    head_dim), key (batch, num_heads, tokens, head_dim). A token at (0, 0), such as a class token, is unchanged.
    Source: Heo et al. 2024, "Rotary Position Embedding for Vision Transformer", section 3.2; conventions and initial
    values follow init_2d_freqs and compute_mixed_cis of the authors' code.
    """

    heads_of = "key"

    def __init__(self, head_dim: int, num_heads: int, base: float = 10.0, *, rotary_dim: int | None = None) -> None:
        super().__init__()
        self.head_dim, self.rotary_dim = multiple_of_4(head_dim, rotary_dim)
        self.num_heads, self.base = whole("num_heads", num_heads), number("base", base, above=1)
        self.frequencies = nn.Parameter(torch.empty(2, self.num_heads, self.rotary_dim // 2))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Magnitudes as in RoPE, along a random direction of each head and perpendicular to it."""
        k = torch.arange(self.rotary_dim // 4, device=self.frequencies.device)
        magnitude = torch.pow(self.base, -4 * k / self.rotary_dim)
        along = torch.empty(self.num_heads, 1, device=self.frequencies.device).uniform_(0, 2 * math.pi)
        across = along + math.pi / 2
        parts = (torch.cat((magnitude * part(along), magnitude * part(across)), -1) for part in (torch.cos, torch.sin))
        compat.assign(self.frequencies, torch.stack([*parts]))

    @property
    def channels(self) -> range:
        """The rotated channels."""
        return range(self.rotary_dim)

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE) -> Rotation:
        coords = coords_of(positions, 2, "MixedRoPE", "Positions.grid(height, width)")
        y, x = in_double(coords)[:, None, :, :, None].unbind(-2)
        mine = context.of_heads(self.frequencies, 1)
        f_x, f_y = in_double(mine)[:, :, None]
        token_map = PairRotation.by(x * f_x + y * f_y, coords, dtype, "interleaved", self.head_dim)
        return Rotation(token_map, OfHeads(token_map, mine.size(1)))


ENTRY = Entry(
    name="mixed_rope",
    scheme=MixedRoPE,
    paper="Heo et al. 2024",
    laws=ROTARY | {Law.DECAYING_BOUND, Law.LENGTH_FREE, Law.FRACTIONAL},
    cost="one pass over q and k per layer",
    build=lambda shape: MixedRoPE(shape.head_dim, shape.key_heads, rotary_dim=shape.head_dim // 4 * 4),
    axes="two",
    learned="d frequencies per head",
    does="rotates every pair by both coordinates of a patch, at learned frequencies of each head",
    limits="heads that share keys share their frequencies",
    formula=lines(ROTATED_SCORE, r"\phi_k = x f^{x}_{hk} + y f^{y}_{hk}, \qquad f \mbox{ learned}"),
    example="posenc.attention(q, k, v, posenc.MixedRoPE(64, 12), query_positions=posenc.Positions.grid(8, 8))",
    users="the RoPE-Mixed models of naver-ai/rope-vit",
    url="https://arxiv.org/abs/2403.13298",
    avoid="**Short trainings.** After 400 steps `AxialRoPE` was as good ([digits](../choose.md#images-and-video)).",
)
