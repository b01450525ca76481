"""3-D RoPE: rotates parts of the channels by the frame, row and column of a video patch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc.arguments import shown, whole
from posenc.rotary import Rotary
from posenc.rotation.phases import frequencies
from posenc.schemes.entry import FORMULA, ROTARY, ROTATED_SCORE, Entry, Law, lines


class RoPE3D(Rotary):
    """Rotary position embedding for video: time, row and column each have a RoPE on their share of the channels.

    Formula, for ``shares`` (d_t, d_h, d_w) of the channels, in this order: the d_a channels of axis a are rotated by
    p_a theta_k, theta_k = base^(-2k/d_a), k = 0 .. d_a/2 - 1, in pairs (2k, 2k + 1) of the share:

        (a, b) -> (a cos p_a theta_k - b sin p_a theta_k,  a sin p_a theta_k + b cos p_a theta_k)

    Unlike in M-RoPE, every axis has frequencies from 1 to nearly 1/base. Published shares, all interleaved:

        (d - 4 (d // 6), 2 (d // 6), 2 (d // 6))   Wan 2.1, base 10 000: (44, 42, 42) for d = 128; the default here
        (d/4, 3 d/8, 3 d/8)                        CogVideoX, base 10 000: (16, 24, 24) for d = 64
        (16, 56, 56)                               HunyuanVideo, base 256, d = 128

    Use positions from `Positions.grid(height, width, frames=frames)`. CogVideoX interpolates rows and columns over its
    training size: scale the coordinates. Nothing is learned.

    Shapes: coordinates (rows, tokens, 3) in the order time, row, column; query and key (batch, heads, tokens,
    head_dim), any floating dtype. A token at (0, 0, 0) is unchanged.
    Errors: ValueError for shares that are not three even numbers with the sum head_dim, a base not above 1, and
    positions of other than three axes.
    Source: the code of Wan 2.1 (rope_params and rope_apply of wan/modules/model.py), which was read; CogVideoX as in
    diffusers (get_3d_rotary_pos_embed) and HunyuanVideo's rope_dim_list, read in copies.
    """

    positions_made_by = "Positions.grid(height, width, frames=frames)"

    def __init__(self, head_dim: int, shares: Sequence[int] | None = None, base: float = 10_000.0) -> None:
        d = whole("head_dim", head_dim, least=2)
        if d % 2:
            raise ValueError(f"head_dim must be even, got {head_dim}")
        shares = (d - 4 * (d // 6), 2 * (d // 6), 2 * (d // 6)) if shares is None else shares
        if not isinstance(shares, Sequence) or len(shares) != 3:
            raise ValueError(f"shares must be the channels of time, row and column, got {shown(shares)}")
        d_t, d_h, d_w = (whole("shares", n, least=0) for n in shares)
        if d_t + d_h + d_w != d or d_t % 2 or d_h % 2 or d_w % 2:
            raise ValueError(f"shares must be even and sum to head_dim = {d}, got {shown(tuple(shares))}")
        allocation = (0,) * (d_t // 2) + (1,) * (d_h // 2) + (2,) * (d_w // 2)
        super().__init__(d, base, "interleaved", axes=3, allocation=allocation)
        self.shares = (d_t, d_h, d_w)

    def frequencies(
        self, device: torch.device | None = None, lengths: Tensor | None = None
    ) -> tuple[Float64[Tensor, "#rows pairs"], float | Tensor]:
        """theta of every pair, for the share of its axis, and the factor 1 of cos and sin."""
        return torch.cat([frequencies(share, self.base, device) for share in self.shares if share])[None], 1.0


ENTRY = Entry(
    name="rope_3d",
    scheme=RoPE3D,
    paper="Wan team 2025",
    laws=FORMULA | ROTARY | {Law.DECAYING_BOUND},
    cost="one pass over q and k per layer",
    build=lambda shape: RoPE3D(shape.head_dim),
    axes="three",
    does="rotates parts of the channels by the frame, the row and the column of a video patch",
    limits="angles beyond the training size are new to the model",
    formula=lines(
        ROTATED_SCORE, r"\phi_k = p_a \, \mathrm{base}^{-2k/d_a} \mbox{ in the } d_a \mbox{ channels of the axis } a"
    ),
    example=(
        "positions = posenc.Positions.grid(4, 4, frames=4)\n"
        "posenc.attention(q, k, v, posenc.RoPE3D(64), query_positions=positions)"
    ),
    users="Wan 2.1, CogVideoX, HunyuanVideo",
    url="https://arxiv.org/abs/2503.20314",
)
