"""Partial RoPE: RoPE of only the first channels of a head, which is `RoPE` with a rotary_dim."""

from __future__ import annotations

from posenc.schemes.entry import FORMULA, ROTARY, ROTATED_SCORE, Entry, lines
from posenc.schemes.rope import RoPE

ENTRY = Entry(
    name="partial_rope",
    scheme=RoPE,
    variant=("Partial RoPE", "RoPE(head_dim, rotary_dim=n)"),
    paper="Wang and Komatsuzaki 2021",
    laws=FORMULA | ROTARY,
    cost="one pass over q and k per layer",
    build=lambda shape: RoPE(shape.head_dim, rotary_dim=max(2, shape.head_dim // 4 * 2)),
    does="RoPE of only the first n channels, with frequencies over these: GPT-J, GPT-NeoX, Phi, GLM, Qwen3.5",
    limits="angles beyond the training length are new to the model; incompatible with weights of proportional RoPE",
    formula=lines(
        ROTATED_SCORE,
        r"\phi_k = p \, \mathrm{base}^{-2k/n}, \qquad k < n / 2, \qquad "
        r"n = \mathrm{rotary\_dim} \mbox{ channels turn,} \allowbreak \mbox{the others do not}",
    ),
    example="posenc.attention(q, k, v, posenc.RoPE(64, rotary_dim=32), is_causal=True)",
    users="GPT-J, GPT-NeoX, Phi, GLM, Qwen3.5",
    url="https://github.com/kingoflolz/mesh-transformer-jax",
    avoid=(
        "**Weights of proportional RoPE.** Both leave channels unrotated, and the others have different frequencies: "
        "such weights load, and are wrong."
    ),
)
