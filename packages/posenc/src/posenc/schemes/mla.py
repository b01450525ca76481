"""MLA: rotates the last channels of queries and keys, where all heads share one key slice."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from posenc.encoding.context import WHOLE, Context
from posenc.encoding.rotation import Rotation
from posenc.positions.positions import Positions
from posenc.rotary import Rotary, last_channels_start
from posenc.rotation.phases import PairLayout, PairRotation
from posenc.rotation.scaling_parameters import ScalingLike
from posenc.rotation.scalings import YaRN
from posenc.schemes.entry import FORMULA, ROTARY, ROTATED_PAIRS, Entry, lines


@dataclass(frozen=True, eq=False)
class SliceRotation:
    """Rotates the last channels of x, or all of x if x is only these channels."""

    whole: PairRotation

    @property
    def cos(self) -> Float[Tensor, "rows heads tokens pairs"]:
        """cos of the angles, times the scaling's factor."""
        return self.whole.cos

    @property
    def sin(self) -> Float[Tensor, "rows heads tokens pairs"]:
        """sin of the angles, times the scaling's factor."""
        return self.whole.sin

    def __call__(self, x: Float[Tensor, "batch heads tokens width"]) -> Float[Tensor, "batch heads tokens width"]:
        turning = self.whole.head_dim - self.whole.first
        if x.size(-1) == turning:
            return replace(self.whole, first=0, head_dim=turning)(x)
        if x.size(-1) != self.whole.head_dim:
            raise ValueError(
                f"MLA rotates q and k of head_dim {self.whole.head_dim}, or only their last {turning} channels, got "
                f"{x.size(-1)}"
            )
        return self.whole(x)


class MLA(Rotary):
    """The rotation of multi-head latent attention: rotates q_pe and k_pe of q = [q_nope, q_pe] and k = [k_nope, k_pe].

    Formula, for k = 0 .. n/2 - 1 with n = rope_dim: theta_k = base^(-2k/n), and the rotation of `RoPE` on the pair (2k,
    2k + 1) of the last n channels in the "interleaved" layout, the checkpoint's, or (k, k + n/2) in "half". With the
    scaling `YaRN` and its ``mscale_all_dim`` = a, scores are multiplied by (0.1 a ln s + 1)^2 / sqrt(head_dim).

    k_pe is a single head that all heads share: a cache stores it once, with the latent vector c that gives every head's
    k_nope = U_K c and v = U_V c. There are three ways to call it:

    - whole: q and k (batch, heads, tokens, head_dim), k_pe expanded to every head; ``attention(q, k, v, mla)``.
    - by slice: ``encoding.rotate_query(q_pe)`` and ``rotate_key(k_pe)`` rotate tensors (batch, heads or 1, tokens,
      rope_dim); then pass ``encoding.pairs`` to attention, which keeps the scale.
    - absorbed, for decoding: queries [U_K^T q_nope, rotated q_pe], the key [c, rotated k_pe] of one head, and c as its
      value, with ``encoding.pairs``; multiply the output by U_V. The latent vector is not rotated.

    Shapes and precision are as for `RoPE`.
    Source: DeepSeek-AI 2024, "DeepSeek-V2", equations 9 to 19 and section 2.1.3; read in transformers' deepseek_v3.
    """

    def __init__(
        self,
        head_dim: int,
        rope_dim: int = 64,
        base: float = 10_000.0,
        layout: PairLayout = "interleaved",
        *,
        scaling: ScalingLike | None = None,
    ) -> None:
        first = last_channels_start("rope_dim", rope_dim, head_dim)
        super().__init__(head_dim, base, layout, rope_dim, scaling=scaling, first_channel=first)
        self.rope_dim = self.rotary_dim

    @property
    def scale(self) -> float:
        """The softmax scale, with YaRN's ``mscale_all_dim`` if set."""
        scale = 1 / math.sqrt(self.head_dim)
        return scale * self.scaling.score_factor if isinstance(self.scaling, YaRN) else scale

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE) -> Rotation:
        made = super().rotation(positions, dtype, context).query
        assert isinstance(made, PairRotation)
        token_map = SliceRotation(made)
        return Rotation(token_map, token_map)


ENTRY = Entry(
    name="mla",
    scheme=MLA,
    paper="DeepSeek-AI 2024",
    laws=FORMULA | ROTARY,
    cost="one pass over a slice of q and of one key head per layer",
    build=lambda shape: MLA(shape.head_dim, max(2, shape.head_dim // 4 * 2)),
    does="rotates the last channels of q and k, or only that slice, which all key heads share: DeepSeek, Kimi",
    limits="angles beyond the training length are new to the model",
    formula=lines(
        r"s_{ij} = \bigl( q_i^{\mathrm{nope}} \cdot k_j^{\mathrm{nope}} "
        r"\allowbreak + (R_{p_i} q_i^{\mathrm{pe}}) \cdot (R_{p_j} k_j^{\mathrm{pe}}) \bigr) / \sqrt{d}",
        ROTATED_PAIRS + r", \qquad \phi_k = p \, \mathrm{base}^{-2k/n}, \qquad n = \mathrm{rope\_dim}",
    ),
    example="posenc.attention(q, k, v, posenc.MLA(64, rope_dim=32), is_causal=True)",
    users="DeepSeek-V2 and V3, Kimi K2",
    url="https://arxiv.org/abs/2405.04434",
    avoid="**Attention without latent keys.** `RoPE` with a rotary_dim rotates a share of the channels of any.",
)
