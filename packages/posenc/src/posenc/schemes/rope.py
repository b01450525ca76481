"""RoPE: rotates queries and keys by an angle proportional to their position."""

from posenc.rotary import Rotary
from posenc.rotation.scalings import Proportional
from posenc.schemes.entry import FORMULA, ROTARY, ROTATED_SCORE, Entry, Law, lines


class RoPE(Rotary):
    """Rotary position embedding: rotates channel pair k of queries and keys by p theta_k.

    Formula, for k = 0 .. rotary_dim/2 - 1 and theta_k = base^(-2k/rotary_dim):

        (a, b) -> (a cos p theta_k - b sin p theta_k,  a sin p theta_k + b cos p theta_k)

    on the channels (k, k + rotary_dim/2) in the "half" layout (Llama, GPT-NeoX) and (2k, 2k + 1) in the "interleaved"
    one (the paper, GPT-J). Channels from rotary_dim on are unchanged (GPT-NeoX, Phi and GLM, whose configurations have
    their share, ``partial_rotary_factor``); the scaling `Proportional` has other frequencies and pairs. The inner
    product of a rotated query and a rotated key depends only on p_j - p_i. Values are unchanged. Nothing is learned.

    With several ``axes`` (the row and column of a patch), each axis rotates rotary_dim/axes channels by the formula
    above, with rotary_dim/axes in place of rotary_dim and its own coordinate as p. The pairs of axis 0 come first, then
    those of axis 1. The layout maps pairs to channels as for one axis.

    The layout is a property of the checkpoint: weights trained with one give wrong results with the other, without an
    error. So is the order of the axes. Here it is the order of the coordinates, rows before columns in
    `Positions.grid`; the code of Heo et al. interleaves channels and puts columns first, with base 100.

    With an ``allocation`` of axes to pairs, pair k is rotated by the coordinate of axis allocation[k] times theta_k as
    for one axis. Vision-language models use this for time, row and column, in sections or interleaved.

    ``scaling`` is one of ``posenc.scalings``, a function, or transformers' dictionary, such as ``{"rope_type":
    "linear", "factor": 4.0}``. A function takes the frequencies theta (pairs,) and, if its
    ``needs_lengths`` is true, the length of each row (rows, 1), and returns frequencies (pairs,) or (rows, pairs) and a
    factor of cos and sin for queries and keys. If it needs lengths, keys cannot be cached rotated. ``first_channel`` is
    the first rotated channel. ``heads`` are the rotated heads out of ``num_heads`` query heads; fewer key heads rotate
    if the queries that share them do. With ``values``, values are rotated too, and the output is rotated back at the
    query's position.

    ``imaginary`` are the heads out of ``num_heads`` query heads whose queries are rotated by p theta_k - pi/2. With z =
    a + i b for the channels of a pair, their score is the imaginary part of the sum of z_q conj(z_k) e^(i (p_i - p_j)
    theta_k) over pairs, of which the usual score is the real part. RoPE++ has both for every query: pass each query
    twice, ``query.repeat_interleave(2, 1)``, with ``imaginary=range(1, num_heads, 2)``.

    Shapes: query and key (batch, heads, tokens, head_dim), any floating dtype; angles are exact to float32 up to
    position 2^20 whatever the dtype. Positions may be fractional or negative.
    Source: Su et al. 2021, "RoFormer", equations 14, 15 and 34; Heo et al. 2024, "Rotary Position Embedding for Vision
    Transformer", whose axial form has two axes; Wang et al. 2024, "Qwen2-VL", section 2.1, for the allocation;
    Liu et al. 2025, "Beyond Real: Imaginary Extension of Rotary Position Embeddings" (arXiv 2512.07525), and its code
    (OpenMOSS/rope_pp, modeling_llama_rope_pp.py), for RoPE++.
    """


ENTRY = Entry(
    name="rope",
    scheme=RoPE,
    paper="Su et al. 2021",
    laws=FORMULA | ROTARY | {Law.DECAYING_BOUND, Law.EXTENSIBLE, Law.SEPARABLE},
    cost="one pass over q and k per layer",
    build=lambda shape: RoPE(shape.head_dim, axes=shape.axes),
    axes="any",
    does="rotates channel pairs of q and k by an angle proportional to the position; two layouts, several `axes`",
    limits="angles beyond the training length are new to the model",
    formula=lines(
        ROTATED_SCORE,
        r"\phi_k = p \, \theta_k, \qquad \theta_k = \mathrm{base}^{-2k/n}, \qquad "
        r"n = \mathrm{rotary\_dim}, \mbox{ or else } d",
    ),
    example="posenc.attention(q, k, v, posenc.RoPE(64), is_causal=True)",
    users="Llama, Mistral, Qwen2 and 3, Gemma 1 to 3, gpt-oss, OLMo 3, ModernBERT",
    url="https://arxiv.org/abs/2104.09864",
    avoid="**Texts longer than in training, as it is.** Add a [scaling](../extend.md), or use `ALiBi`.",
)

VARIANTS = (
    Entry(
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
        avoid="**Weights of proportional RoPE.** They load, have other frequencies, and are wrong.",
    ),
    Entry(
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
        avoid="**Weights of partial RoPE.** They load, have other frequencies, and are wrong.",
    ),
)
"""Partial RoPE, and p-RoPE: not PRoPE of Li et al. 2025, a projective encoding of cameras, which is `Cameras`."""
