"""p-RoPE: RoPE without its lowest frequencies."""

from __future__ import annotations

from posenc.arguments import is_number, shown
from posenc.rotary import Rotary
from posenc.rotation.phases import PairLayout
from posenc.rotation.scalings import Proportional
from posenc.schemes.entry import FORMULA, ROTARY, ROTATED_SCORE, Entry, lines


class ProportionalRoPE(Rotary):
    """Proportional rotary position embedding: RoPE whose lowest frequencies are 0.

    Formula, for k = 0 .. d/2 - 1 with d = head_dim and p = share:

        theta_k = base^(-2k/d) for k < int(p d // 2), else 0

    with the rotation of `RoPE`, on the channels (k, k + d/2) in the "half" layout and (2k, 2k + 1) in the "interleaved"
    one. share = 1 is RoPE, share = 0 is NoPE. The omitted frequencies are so low that their channels carry content,
    which rotation distorts beyond the training length.

    Not to be confused with `PartialRoPE`, which has the same shapes and number of rotated pairs, but the number of
    rotated channels in the exponent and in the pairing. Weights of one give wrong results with the other, without an
    error.

    Not to be confused with PRoPE of Li et al. 2025, a projective encoding of cameras, either: that is `Cameras`.

    Shapes and precision are as for `RoPE`. Nothing is learned. The frequencies are those of `Proportional`.
    Errors: ValueError for a share outside [0, 1], and as for `RoPE`.
    Source: Barbero et al. 2024, "Round and Round We Go! What makes Rotary Positional Encodings useful?" (arXiv
    2410.06205), section 6; rounding and pairing read in transformers' "proportional" (Gemma 4, LFM3).
    """

    def __init__(self, head_dim: int, share: float = 0.25, base: float = 10_000.0, layout: PairLayout = "half") -> None:
        if not is_number(share) or not 0 <= share <= 1:
            raise ValueError(
                f"share must be a number within [0, 1], the share of nonzero frequencies, got {shown(share)}; for a "
                "number of channels use RoPE's rotary_dim, for a share of the channels PartialRoPE"
            )
        super().__init__(head_dim, base, layout, scaling=Proportional(share))
        self.share = float(share)


ENTRY = Entry(
    name="p_rope",
    scheme=ProportionalRoPE,
    paper="Barbero et al. 2024",
    laws=FORMULA | ROTARY,
    cost="one pass over q and k per layer",
    build=lambda shape: ProportionalRoPE(shape.head_dim, max(0.25, 2 / shape.head_dim)),
    does="RoPE whose lowest frequencies are 0, so that these channels carry only content: Gemma 4, LFM3",
    limits="angles beyond the training length are new to the model; incompatible with weights of partial RoPE",
    formula=lines(
        ROTATED_SCORE,
        r"\phi_k = p \, \theta_k, \qquad "
        r"\theta_k = \begin{cases} \mathrm{base}^{-2k/d} & k < \lfloor \mathrm{share} \cdot d / 2 \rfloor \\ "
        r"0 & \mbox{else} \end{cases}",
    ),
    example="posenc.attention(q, k, v, posenc.ProportionalRoPE(64, share=0.25), is_causal=True)",
    users="Gemma 4, LFM3",
    url="https://arxiv.org/abs/2410.06205",
)
