"""RoPE: queries and keys turned by an angle that grows with their position."""

from __future__ import annotations

from posenc.rotary import Rotary
from posenc.schemes.entry import FORMULA, Entry, Law


class RoPE(Rotary):
    """Rotary position embedding: channel pair k of q and k is turned by p theta_k.

    Formula, for k = 0 .. rotary_dim/2 - 1 and theta_k = base^(-2k/rotary_dim):

        (a, b) -> (a cos p theta_k - b sin p theta_k,  a sin p theta_k + b cos p theta_k)

    on the channels (k, k + rotary_dim/2) in the "half" layout (Llama, GPT-NeoX) and (2k, 2k + 1) in the "interleaved"
    one (the paper, GPT-J). Channels past rotary_dim are not turned. The inner product of a turned query and a turned
    key depends on their positions through p_j - p_i alone. Values are not touched; nothing is learned.

    With several ``axes`` (the row and column of a patch), every axis turns rotary_dim/axes channels, by the formula
    above with rotary_dim/axes for rotary_dim and its own coordinate for p. The pairs of axis 0 come first, then those
    of axis 1; the layout then says which channels pair k of them all has, as it does for one axis.

    The layout is a property of the checkpoint: weights trained in one give silent nonsense in the other. So is the
    order of the axes: here it is that of the coordinates, rows before columns in `Positions.grid`, while the code of
    Heo et al. interleaves and has the columns first. Their base is 100, since images are less wide than texts are long.

    With an ``allocation`` of axes to pairs, pair k is turned by the coordinate along axis allocation[k] and by theta_k
    as for one axis: the rotation of time, row and column that language models with images use, in sections or
    interleaved.

    A ``scaling`` takes the frequencies theta (pairs,) and, where its ``needs_lengths`` is true, the length of each row
    of the batch (rows, 1), and gives frequencies (pairs,) or (rows, pairs) and a factor of cos and sin: one of
    ``posenc.scalings``, or any function. With lengths no key may be kept rotated. ``first_channel`` is the first
    channel that is turned, ``heads`` are the heads that are, of ``num_heads`` query heads; keys of fewer heads turn
    those that these queries share. With ``values`` the values are turned too, and the output is turned back at the
    query's position; a factor is of queries and keys alone.

    Shapes: query and key (batch, heads, tokens, head_dim), any floating dtype; angles are exact to float32 up to
    position 2^20 whatever the dtype. Positions may be fractional or negative.
    Errors: ValueError for a rotary_dim that is above head_dim or not a multiple of 2 axes, a base not above 1, an
    unknown layout, an allocation that is not one axis for each pair, a scaling that is no function, or positions of
    another number of axes.
    Source: Su et al. 2021, "RoFormer", equations 14, 15 and 34; Heo et al. 2024, "Rotary Position Embedding for Vision
    Transformer", whose axial form has two axes; Wang et al. 2024, "Qwen2-VL", section 2.1, for the allocation.
    """


ENTRY = Entry(
    name="rope",
    scheme=RoPE,
    paper="Su et al. 2021",
    laws=FORMULA
    | {
        Law.RELATIVE,
        Law.UNIQUE,
        Law.LINEAR,
        Law.ORTHOGONAL,
        Law.BOUNDED,
        Law.DIRECTED,
        Law.DECAYING_BOUND,
        Law.EXTENSIBLE,
        Law.SEPARABLE,
    },
    cost="one pass over q and k per layer",
    build=lambda shape: RoPE(shape.head_dim, axes=shape.axes),
    axes="any",
    does=(
        'turns channel pairs of q and k by an angle that grows with the position; layouts `"half"` and '
        '`"interleaved"`, partial with `rotary_dim`, a share of the channels for each of several `axes`'
    ),
    limits="angles past the training length are new to the model",
    formula=(
        r"\begin{array}{l} "
        r"s_{ij} = (R_{p_i} q_i) \cdot (R_{p_j} k_j) / \sqrt{d}, \qquad R_p: \; (a, b)_k \mapsto (a \, \cos \phi_k - "
        r"b \, \sin \phi_k, \; a \, \sin \phi_k + b \, \cos \phi_k) \\ "
        r"\phi_k = p \, \theta_k, \qquad \theta_k = \mathrm{base}^{-2k/d} "
        r"\end{array}"
    ),
    example="posenc.attention(q, k, v, posenc.RoPE(64), is_causal=True)",
    users="Llama, Mistral, Qwen2 and 3, Gemma 1 to 3, gpt-oss, OLMo 3, ModernBERT",
    url="https://arxiv.org/abs/2104.09864",
)
