"""3-D RoPE: rotates parts of the channels by the frame, row and column of a video patch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from posenc.arguments import check_choice, shown, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.rotation import Rotation
from posenc.positions.positions import Positions
from posenc.rotary import Rotary
from posenc.rotation.phases import PairLayout, PairRotation, check_fits, frequencies
from posenc.rotation.scaling_parameters import ScalingLike
from posenc.schemes.entry import FORMULA, ROTARY, ROTATED_SCORE, Entry, Law, lines


class RoPE3D(Rotary):
    """Rotary position embedding for video: time, row and column each have a RoPE on their share of the channels.

    Formula, for ``shares`` (d_t, d_h, d_w) of the channels, in this order: the d_a channels of axis a are rotated by
    p_a theta_k, theta_k = base^(-2k/d_a), k = 0 .. d_a/2 - 1, in pairs (2k, 2k + 1) of the share:

        (a, b) -> (a cos p_a theta_k - b sin p_a theta_k,  a sin p_a theta_k + b cos p_a theta_k)

    Unlike in M-RoPE, every axis has frequencies from 1 to nearly 1/base. With ``layout="half"`` the pairs, in the same
    order, are the channels (k, k + s/2), where s is the sum of the shares. Channels beyond s are unchanged. Published
    shares, interleaved but for the last:

        (d - 4 (d // 6), 2 (d // 6), 2 (d // 6))   Wan 2.1, base 10 000: (44, 42, 42) for d = 128; the default here
        (d/4, 3 d/8, 3 d/8)                        CogVideoX, base 10 000: (16, 24, 24) for d = 64
        (16, 56, 56)                               HunyuanVideo, base 256, d = 128
        (2 (d // 6), 2 (d // 6), 2 (d // 6))       MiniMax M3, base 10 000, half: (26, 26, 26) for d = 80

    With ``form="vjepa2"`` it is the map of V-JEPA 2, whose three shares are n = 2 floor(d / 6), with base 10 000; the
    other d - 3n channels are unchanged. Its cosines and sines are those of the "half" layout on interleaved pairs, so
    the channels of a pair have different angles:

        (a, b) -> (a cos p_a theta_i - b sin p_a theta_i,  a sin p_a theta_j + b cos p_a theta_j)
        i = 2k mod n/2,  j = (2k + 1) mod n/2

    This is no rotation: it changes lengths, and a score depends on the positions of both tokens, not only on their
    distance. Use it for the published weights, which were trained with it.

    ``scaling`` is one of ``posenc.scalings`` or a function, as for `RoPE`. It maps the frequencies of time alone, as is
    usual for longer videos, or of the ``scaled_axes`` out of 0, 1 and 2, each by itself, and may not depend on the
    number of tokens.

    Use positions from `Positions.grid(height, width, frames=frames)`. CogVideoX interpolates rows and columns over its
    training size: scale the coordinates. Nothing is learned.

    Shapes: coordinates (rows, tokens, 3) in the order time, row, column; query and key (batch, heads, tokens,
    head_dim), any floating dtype. A token at (0, 0, 0) is unchanged.
    Source: the code of Wan 2.1 (rope_params and rope_apply of wan/modules/model.py), which was read; CogVideoX as in
    diffusers (get_3d_rotary_pos_embed) and HunyuanVideo's rope_dim_list, read in copies. "vjepa2": Assran et al. 2025,
    "V-JEPA 2: Self-Supervised Video Models Enable Understanding, Prediction and Planning"; transformers 5.23.0,
    rotate_queries_or_keys of VJEPA2 and MiniMaxM3VLVisionRotaryEmbedding.
    """

    positions_made_by = "Positions.grid(height, width, frames=frames)"

    def __init__(
        self,
        head_dim: int,
        shares: Sequence[int] | None = None,
        base: float = 10_000.0,
        form: Literal["rotation", "vjepa2"] = "rotation",
        *,
        layout: PairLayout = "interleaved",
        scaling: ScalingLike | None = None,
        scaled_axes: Sequence[int] | None = None,
    ) -> None:
        check_choice("form", form, ("rotation", "vjepa2"))
        d = whole("head_dim", head_dim, least=2 if form == "rotation" else 6)
        if d % 2:
            raise ValueError(f"head_dim must be even, got {head_dim}")
        each = 2 * (d // 6)
        if form == "vjepa2":
            if shares is not None or layout != "interleaved":
                name, value = ("layout", layout) if shares is None else ("shares", shares)
                raise ValueError(f"{name} must not be given for form='vjepa2', got {shown(value)}")
            shares = (each,) * 3
        shares = (d - 2 * each, each, each) if shares is None else shares
        if not isinstance(shares, Sequence) or len(shares) != 3:
            raise ValueError(f"shares must be the channels of time, row and column, got {shown(shares)}")
        d_t, d_h, d_w = (whole("shares", n, least=0) for n in shares)
        if not 2 <= d_t + d_h + d_w <= d or d_t % 2 or d_h % 2 or d_w % 2:
            raise ValueError(f"shares must be even and sum to 2..head_dim = {d}, got {shown(tuple(shares))}")
        allocation = (0,) * (d_t // 2) + (1,) * (d_h // 2) + (2,) * (d_w // 2)
        super().__init__(d, base, layout, d_t + d_h + d_w, axes=3, allocation=allocation, scaling=scaling)
        self.shares, self.form = (d_t, d_h, d_w), form
        if scaled_axes is not None and not isinstance(scaled_axes, Sequence):
            raise ValueError(
                f"scaled_axes must be axes, 0 for time, 1 for rows, 2 for columns, got {shown(scaled_axes)}"
            )
        self.scaled_axes = None if scaled_axes is None else tuple(whole("scaled_axes", a, 0, 2) for a in scaled_axes)
        if scaled_axes is not None and scaling is None:
            raise ValueError(f"scaled_axes must be None without a scaling, got {shown(scaled_axes)}")
        self._try_scaling()

    def frequencies(
        self, device: torch.device | None = None, lengths: Tensor | None = None
    ) -> tuple[Float64[Tensor, "#rows pairs"], float | Tensor]:
        scaled_axes = (0,) if self.scaled_axes is None else self.scaled_axes
        theta, factors = [], []
        for axis, share in enumerate(self.shares):
            if share:
                own = frequencies(share, self.base, device)
                scaled, factor = self.scaled_on_axis(own) if axis in scaled_axes else (own[None], 1.0)
                theta.append(scaled)
                factors.append(torch.ones_like(scaled) * factor)
        return torch.cat(theta, -1), 1.0 if self.scaling is None else torch.cat(factors, -1)

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE) -> Rotation:
        rotation = super().rotation(positions, dtype, context)
        if self.form == "rotation":
            return rotation
        assert isinstance(rotation.query, PairRotation)
        pairs = self.shares[0] // 2
        # The angles of an axis, twice: channel c has that of pair c mod n/2.
        cos, sin = (
            x.unflatten(-1, (3, 1, pairs)).expand(*x.shape[:-1], 3, 2, pairs).flatten(-3)
            for x in (rotation.query.cos, rotation.query.sin)
        )
        both = EachChannel(cos, sin, self.head_dim)
        return Rotation(both, both)


@dataclass(frozen=True, eq=False)
class EachChannel:
    """(a, b) -> (a cos_a - b sin_a, a sin_b + b cos_b) for pairs of consecutive channels, with an angle for each
    channel. Half-precision x is mapped in float32 and rounded once."""

    cos: Float[Tensor, "rows heads tokens channels"]
    sin: Float[Tensor, "rows heads tokens channels"]
    head_dim: int

    def __call__(self, x: Float[Tensor, "batch heads tokens head_dim"]) -> Float[Tensor, "batch heads tokens head_dim"]:
        if x.size(-1) != self.head_dim:
            raise ValueError(f"the rotation was made for head_dim {self.head_dim}, got q or k of head_dim {x.size(-1)}")
        check_fits("the rotation", self.cos.shape[:-1], x)
        dtype = torch.promote_types(x.dtype, torch.float32)
        pairs = x[..., : self.cos.size(-1)].to(dtype).unflatten(-1, (-1, 2))
        swapped = torch.stack((-pairs[..., 1], pairs[..., 0]), -1)
        mapped = pairs.flatten(-2) * self.cos.to(dtype) + swapped.flatten(-2) * self.sin.to(dtype)
        return torch.cat((mapped.to(x.dtype), x[..., self.cos.size(-1) :]), -1)


ENTRY = Entry(
    name="rope_3d",
    scheme=RoPE3D,
    paper="Wan team 2025",
    laws=FORMULA | ROTARY | {Law.DECAYING_BOUND},
    cost="one pass over q and k per layer",
    build=lambda shape: RoPE3D(shape.head_dim),
    axes="three",
    does='rotates parts of the channels by frame, row and column; `form="vjepa2"` for the map of V-JEPA 2',
    limits="angles beyond the training size are new to the model",
    formula=lines(
        ROTATED_SCORE,
        r"\phi_k = p_a \, \mathrm{base}^{-2k/d_a} \mbox{ in the } d_a \mbox{ channels} "
        r"\allowbreak \mbox{of the axis } a",
        r"\mbox{vjepa2} \mbox{: } (a, b)_k \mapsto "
        r"\allowbreak (a \, \cos \phi_{2k \bmod n} - b \, \sin \phi_{2k \bmod n}, "
        r"\allowbreak a \, \sin \phi_{(2k + 1) \bmod n} + b \, \cos \phi_{(2k + 1) \bmod n}), \qquad "
        r"n = d_a / 2 = \lfloor d / 6 \rfloor",
    ),
    example=(
        "positions = posenc.Positions.grid(4, 4, frames=4)\n"
        "posenc.attention(q, k, v, posenc.RoPE3D(64), query_positions=positions)"
    ),
    users="Wan 2.1, CogVideoX, HunyuanVideo, V-JEPA 2, the vision encoder of MiniMax M3",
    url="https://arxiv.org/abs/2503.20314",
    avoid="**Text between frames.** `MRoPE` has positions for both.",
)
