"""Partial RoPE: RoPE of only the first channels of a head."""

from __future__ import annotations

from posenc.arguments import is_number, shown, whole
from posenc.rotary import Rotary
from posenc.rotation.given import Given
from posenc.rotation.phases import PairLayout
from posenc.rotation.scalings import Proportional
from posenc.schemes.entry import FORMULA, ROTARY, ROTATED_SCORE, Entry, lines


class PartialRoPE(Rotary):
    """Partial rotary position embedding: RoPE of the first n = int(share head_dim) channels. The others are unchanged.

    Formula, for k = 0 .. n/2 - 1: theta_k = base^(-2k/n), and

        (a, b) -> (a cos p theta_k - b sin p theta_k,  a sin p theta_k + b cos p theta_k)

    on the channels (k, k + n/2) in the "half" layout (Phi, GLM-4-MoE, Qwen3.5) and (2k, 2k + 1) in the "interleaved"
    one (GLM, GPT-J). Exponent and pairing use n: this is ``RoPE(head_dim, base, layout, rotary_dim=n)``. Configurations
    call the share ``partial_rotary_factor``.

    Not to be confused with `ProportionalRoPE`, which has the same shapes and number of rotated pairs, but head_dim in
    the exponent and in the pairing. Weights of one give wrong results with the other, without an error.

    Shapes, precision and ``scaling`` are as for `RoPE`. Nothing is learned.
    Errors: ValueError for a share outside (0, 1] or one that does not give whole pairs, and for the scaling
    `Proportional`, which belongs to `ProportionalRoPE`.
    Source: Wang and Komatsuzaki 2021, GPT-J; Black et al. 2022, "GPT-NeoX-20B", section 2.1; read in transformers'
    models phi, glm and glm4_moe.
    """

    def __init__(
        self,
        head_dim: int,
        share: float = 0.5,
        base: float = 10_000.0,
        layout: PairLayout = "half",
        *,
        scaling: Given | None = None,
    ) -> None:
        head_dim = whole("head_dim", head_dim, least=2)
        if not is_number(share) or not 0 < share <= 1:
            raise ValueError(
                f"share must be a number above 0 and up to 1, the share of rotated channels, got {shown(share)}; for a "
                "number of channels use RoPE's rotary_dim, for a share of the frequencies ProportionalRoPE"
            )
        turning = int(share * head_dim)
        if turning % 2 or not turning:
            raise ValueError(
                f"share must give pairs of channels, got {shown(share)} of {head_dim}, which is {turning}; "
                "ProportionalRoPE takes any share"
            )
        if isinstance(scaling, Proportional):
            raise ValueError(
                "scaling must not be Proportional with a share of the channels: use "
                f"ProportionalRoPE({head_dim}, share) for proportional rotation, or PartialRoPE({head_dim}, share) "
                "without scaling for partial rotation"
            )
        super().__init__(head_dim, base, layout, turning, scaling=scaling)
        self.share = float(share)


ENTRY = Entry(
    name="partial_rope",
    scheme=PartialRoPE,
    paper="Wang and Komatsuzaki 2021",
    laws=FORMULA | ROTARY,
    cost="one pass over q and k per layer",
    build=lambda shape: PartialRoPE(shape.head_dim, max(2, shape.head_dim // 4 * 2) / shape.head_dim),
    does="RoPE of only the first channels, with frequencies over these: GPT-J, GPT-NeoX, Phi, GLM, Qwen3.5",
    limits="angles beyond the training length are new to the model; incompatible with weights of proportional RoPE",
    formula=lines(
        ROTATED_SCORE,
        r"\phi_k = p \, \mathrm{base}^{-2k/n}, \qquad k < n / 2, \qquad "
        r"n = \lfloor \mathrm{share} \cdot d \rfloor \mbox{ channels turn,} \allowbreak \mbox{the others do not}",
    ),
    example="posenc.attention(q, k, v, posenc.PartialRoPE(64, share=0.5), is_causal=True)",
    users="GPT-J, GPT-NeoX, Phi, GLM, Qwen3.5",
    url="https://github.com/kingoflolz/mesh-transformer-jax",
)
