"""p-RoPE: RoPE without its lowest frequencies, which is `RoPE` with the scaling `Proportional`.

Not to be confused with PRoPE of Li et al. 2025, a projective encoding of cameras: that is `Cameras`.
"""

from __future__ import annotations

from posenc.rotation.scalings import Proportional
from posenc.schemes.entry import FORMULA, ROTARY, ROTATED_SCORE, Entry, lines
from posenc.schemes.rope import RoPE

ENTRY = Entry(
    name="p_rope",
    scheme=RoPE,
    variant=("p-RoPE", "RoPE(head_dim, scaling=Proportional(share))"),
    paper="Barbero et al. 2024",
    laws=FORMULA | ROTARY,
    cost="one pass over q and k per layer",
    build=lambda shape: RoPE(shape.head_dim, scaling=Proportional(max(0.25, 2 / shape.head_dim))),
    does="RoPE whose lowest frequencies are 0, so that these channels carry only content: Gemma 4, LFM3",
    limits="angles beyond the training length are new to the model; incompatible with weights of partial RoPE",
    formula=lines(
        ROTATED_SCORE,
        r"\phi_k = p \, \theta_k, \qquad "
        r"\theta_k = \begin{cases} \mathrm{base}^{-2k/d} & k < \lfloor \mathrm{share} \cdot d / 2 \rfloor \\ "
        r"0 & \mbox{else} \end{cases}",
    ),
    example="posenc.attention(q, k, v, posenc.RoPE(64, scaling=posenc.Proportional(0.25)), is_causal=True)",
    users="Gemma 4, LFM3",
    url="https://arxiv.org/abs/2410.06205",
    avoid=(
        "**Weights of partial RoPE.** Both leave channels unrotated, and the others have different frequencies: such "
        "weights load, and are wrong."
    ),
)
