"""ReRoPE: RoPE with distances clipped to a window."""

import torch

from posenc.arguments import number, shown, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.rotation import Band, Rotation
from posenc.positions.positions import Positions
from posenc.rotary import PairwiseRotary
from posenc.rotation.phases import PairLayout, check_representable, identity, in_double
from posenc.schemes.entry import FORMULA, Entry, Law, lines


class ReRoPE(PairwiseRotary):
    """Rectified rotary position embedding: RoPE with distances clipped (or compressed) beyond a window.

    Formula, for query i and key j with d = p_i - p_j, window w, leak 1/k and theta_m = base^(-2m/head_dim):

        s_ij = q_i . R(-f(d)) k_j / sqrt(head_dim),   f(d) = d for d < w,   w + leak (d - w) for d >= w

    where R(a) rotates channel pair m by a theta_m, as in `RoPE`. leak = 0 is ReRoPE: all distant keys are at distance
    w. leak = 1/k with k > 1 is the leaky form: distant queries are rotated to leak p_i + (1 - leak) w, distant keys to
    leak p_j.

    A cache keeps unrotated keys.

    For models trained with RoPE, without fine-tuning: w is an eighth to a half of the training length. The authors'
    code also multiplies queries by max(1, ln(p + 1) / ln(training length)): compose with ``QueryScale("rerope",
    length=...)``.

    Shapes: query and key (batch, heads, tokens, head_dim), any floating dtype; positions of one coordinate, fractional
    or negative too.
    Source: Su Jianlin 2023, "Transformer upgrade road 12" (kexue.fm/archives/9708); read: ``rerope_patch.py`` and
    ``leaky_rerope_patch.py`` of github.com/bojone/rerope. It uses |d| < w, which is the same for causal attention.
    """

    def __init__(
        self,
        head_dim: int,
        window: int = 512,
        base: float = 10_000.0,
        layout: PairLayout = "half",
        *,
        leak: float = 0.0,
    ) -> None:
        super().__init__(head_dim, base, layout)
        self.window, self.leak = whole("window", window), number("leak", leak)
        if not 0 <= self.leak < 1:
            raise ValueError(f"leak must be within [0, 1), got {shown(leak)}")

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE) -> Rotation:
        p = positions.scalar("ReRoPE")
        check_representable(positions, "ReRoPE")
        w, leak = self.window, self.leak
        near = self.rotation_at(p, dtype)
        if leak == 0:
            far = Band(w, self.rotation_at(p.new_full((1, 1), w), dtype), identity)  # a key at 0
        else:
            shrunk = leak * in_double(p)
            far = Band(w, self.rotation_at(shrunk + (1 - leak) * w, dtype), self.rotation_at(shrunk, dtype))
        return Rotation(near, near, bands=(far,))


ENTRY = Entry(
    name="re_rope",
    scheme=ReRoPE,
    paper="Su 2023",
    laws=FORMULA | {Law.RELATIVE, Law.BOUNDED, Law.DIRECTED},
    cost="two passes over q and k per layer, two calls merged",
    build=lambda shape: ReRoPE(shape.head_dim, window=8),
    does="RoPE for near pairs; all pairs a `window` or more apart are treated as `window` apart; `leak`",
    limits="for causal attention; distant keys cannot be distinguished by distance",
    formula=lines(
        r"s_{ij} = q_i \cdot R_{-f(p_i - p_j)} k_j / \sqrt{d}, \qquad "
        r"R_a \mbox{ turns pair } k \mbox{ by } a \, \mathrm{base}^{-2k/d}",
        r"f(n) = \begin{cases} n & n < w \\ w + \mathrm{leak} \cdot (n - w) & n \ge w \end{cases}",
    ),
    symbols={"window": "w"},
    example="posenc.attention(q, k, v, posenc.ReRoPE(64, window=32), is_causal=True)",
    url="https://kexue.fm/archives/9708",
    avoid="**Training from scratch.** It runs trained weights of `RoPE` on longer texts, and costs more.",
)
