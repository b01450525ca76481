"""Rotated values: rotates the last channels of queries, keys and values, and rotates the output back."""

from posenc.rotary import Rotary, last_channels_start
from posenc.rotation.phases import PairLayout
from posenc.rotation.scaling_parameters import ScalingLike
from posenc.schemes.entry import FORMULA, ROTARY, ROTATED_PAIRS, Entry, lines


class RotatedValues(Rotary):
    """Rotary position embedding of values too: o_i = R(-p_i) sum_j a_ij R(p_j) v_j.

    Formula, for k = 0 .. n/2 - 1 with n = rotary_dim: theta_k = base^(-2k/n), R(p) rotates the pair (2k, 2k + 1) of the
    last n channels by p theta_k ("interleaved"; (k, k + n/2) in "half"), and

        a_i = softmax_j (R(p_i) q_i) . (R(p_j) k_j) / sqrt(d),    o_i = sum_j a_ij R(p_j - p_i) v_j

    The contribution of a value thus depends on its distance, and a key can also be the value, rotated once: DeepSeek-V4
    has one head of 512 channels that is both, with 64 rotated channels. `attention` rotates all four tensors; otherwise
    call ``rotate_query``, ``rotate_key`` and ``rotate_value``, and ``rotate_output`` on the output.

    A compressed key is rotated at the start of its block and visible from the end of its block on: use
    ``Positions(coords=starts, order=ends)``.

    Shapes: query, key and value (batch, heads, tokens, head_dim), values as wide as keys. Precision is as for `RoPE`.
    Nothing is learned. The factor of a ``scaling`` applies only to queries and keys (V4 sets that of YaRN to 1).
    Source: DeepSeek-V4's report was not read; the formula was read in transformers' deepseek_v4.
    """

    def __init__(
        self,
        head_dim: int,
        rotary_dim: int = 64,
        base: float = 10_000.0,
        layout: PairLayout = "interleaved",
        *,
        scaling: ScalingLike | None = None,
    ) -> None:
        first = last_channels_start("rotary_dim", rotary_dim, head_dim)
        super().__init__(head_dim, base, layout, rotary_dim, scaling=scaling, first_channel=first, values=True)


ENTRY = Entry(
    name="rotated_values",
    scheme=RotatedValues,
    paper="DeepSeek-V4, 2026",
    laws=FORMULA | ROTARY,
    cost="one pass over q, k, v and the output per layer",
    build=lambda shape: RotatedValues(shape.head_dim, max(2, shape.head_dim // 4 * 2)),
    does="rotates the last channels of q, k and v, and the output back, so that values encode their distance",
    limits="angles beyond the training length are new to the model; values must be as wide as keys",
    formula=lines(
        r"o_i = R_{-p_i} \sum_j a_{ij} R_{p_j} v_j, \qquad "
        r"a_i = \mathrm{softmax}_j (R_{p_i} q_i) \cdot (R_{p_j} k_j) / \sqrt{d}",
        ROTATED_PAIRS + r", \qquad \phi_k = p \, \mathrm{base}^{-2k/n}, \qquad n = \mathrm{rotary\_dim}",
    ),
    example="posenc.attention(q, k, v, posenc.RotatedValues(64, rotary_dim=32), is_causal=True)",
    users="DeepSeek-V4",
    avoid="**Weights of RoPE**, whose values are not rotated, and values that are not as wide as keys.",
)
