"""RoPE: queries and keys turned by an angle that grows with their position."""

from __future__ import annotations

import torch

from posenc.encoding import Rotation, Scheme
from posenc.phases import PairLayout, PairRotation, frequencies, phases
from posenc.positions import Positions


class RoPE(Scheme):
    """Rotary position embedding: channel pair k of q and k is turned by p theta_k.

    Formula, for k = 0 .. rotary_dim/2 - 1 and theta_k = base^(-2k/rotary_dim):

        (a, b) -> (a cos p theta_k - b sin p theta_k,  a sin p theta_k + b cos p theta_k)

    on the channels (k, k + rotary_dim/2) in the "half" layout (Llama, GPT-NeoX) and (2k, 2k + 1) in the "interleaved"
    one (the paper, GPT-J). Channels past rotary_dim are not turned. The inner product of a turned query and a turned
    key depends on their positions through p_j - p_i alone. Values are not touched; nothing is learned.

    The layout is a property of the checkpoint: weights trained in one give silent nonsense in the other.

    Shapes: query and key (batch, heads, tokens, head_dim), any floating dtype; angles are exact to float32 up to
    position 2^20 whatever the dtype. Positions may be fractional or negative, of one axis.
    Errors: ValueError for an odd rotary_dim, one above head_dim, a base not above 1, an unknown layout.
    Source: Su et al. 2021, "RoFormer", equations 14, 15 and 34.
    """

    def __init__(
        self, head_dim: int, base: float = 10_000.0, layout: PairLayout = "half", rotary_dim: int | None = None
    ) -> None:
        super().__init__()
        rotary_dim = head_dim if rotary_dim is None else rotary_dim
        if rotary_dim < 2 or rotary_dim % 2 or rotary_dim > head_dim:
            raise ValueError(f"rotary_dim must be even and within 2..head_dim = {head_dim}, got {rotary_dim}")
        if not base > 1:
            raise ValueError(f"base must be above 1, got {base}")
        if layout not in ("half", "interleaved"):
            raise ValueError(f"layout must be 'half' or 'interleaved', got {layout!r}")
        self.head_dim, self.base, self.rotary_dim = head_dim, base, rotary_dim
        self.layout: PairLayout = layout

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Rotation:
        """The same turn for queries and keys."""
        coords = positions.scalar("RoPE")
        angle = phases(coords, frequencies(self.rotary_dim, self.base, coords.device))[:, None]
        turn = PairRotation(angle.cos().to(dtype), angle.sin().to(dtype), self.layout, self.head_dim)
        return Rotation(turn, turn)

    def extra_repr(self) -> str:
        return f"{self.head_dim}, base={self.base}, layout={self.layout!r}, rotary_dim={self.rotary_dim}"
