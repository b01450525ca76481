"""Self-Extend: RoPE within a window, and by the distance between groups of tokens beyond it."""

import torch

from posenc.arguments import whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.rotation import Band, Rotation
from posenc.positions.positions import Positions
from posenc.rotary import PairwiseRotary
from posenc.rotation.phases import PairLayout, check_representable
from posenc.schemes.entry import FORMULA, Entry, Law, lines


class SelfExtend(PairwiseRotary):
    """Self-Extend: RoPE for near pairs, and by the distance between their groups for distant pairs.

    Formula, for query i and key j with d = p_i - p_j, group size G, window w and theta_m = base^(-2m/head_dim):

        s_ij = q_i . R(-f_ij) k_j / sqrt(head_dim)
        f_ij = d                                                   for d < w
        f_ij = floor(p_i/G) + w - floor(w/G) - floor(p_j/G)        for d >= w

    where R(a) rotates channel pair m by a theta_m, as in `RoPE`. With a training length L, texts of up to (L - w) G + w
    tokens have only distances known to the model. Where a group begins depends on the position, so scores are invariant
    only to shifts by a multiple of G.

    A cache keeps unrotated keys.

    Shapes: query and key (batch, heads, tokens, head_dim), any floating dtype; positions of one coordinate, fractional
    or negative too.
    Source: Jin et al. 2024, "LLM Maybe LongLM: Self-Extend LLM Context Window Without Tuning" (arXiv 2401.01325),
    section 3; read: ``self_extend_patch/Llama.py`` and ``selfextend_flash_attn.py`` of github.com/datamllab/LongLM,
    whose ``group_size_1`` is G and ``group_size_2`` is w. It shifts the queries of a whole text by w - w/G, which is
    the same if G divides w, and those of its fused decoding by w - floor(w/G), as in the paper and here.
    """

    def __init__(
        self, head_dim: int, group: int = 8, window: int = 1024, base: float = 10_000.0, layout: PairLayout = "half"
    ) -> None:
        super().__init__(head_dim, base, layout)
        self.group, self.window = whole("group", group), whole("window", window)

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE) -> Rotation:
        p = positions.scalar("SelfExtend")
        check_representable(positions, "SelfExtend")
        grouped = p.div(self.group, rounding_mode="floor")
        shift = self.window - self.window // self.group
        near, far_query, far_key = (self.rotation_at(at, dtype) for at in (p, grouped + shift, grouped))
        return Rotation(near, near, bands=(Band(self.window, far_query, far_key),))


ENTRY = Entry(
    name="self_extend",
    scheme=SelfExtend,
    paper="Jin et al. 2024",
    laws=FORMULA | {Law.BOUNDED, Law.DIRECTED},
    cost="two passes over q and k per layer, two calls merged",
    build=lambda shape: SelfExtend(shape.head_dim, group=4, window=4),
    does="RoPE for pairs closer than a `window`; rotates all others by the positions of groups of `group` tokens",
    limits="for causal attention; distant keys of one group cannot be distinguished",
    formula=lines(
        r"s_{ij} = q_i \cdot R_{-f_{ij}} k_j / \sqrt{d}, \qquad "
        r"R_a \mbox{ turns pair } k \mbox{ by } a \, \mathrm{base}^{-2k/d}",
        r"f_{ij} = p_i - p_j \mbox{ for } p_i - p_j < w, \qquad "
        r"\mbox{else } \lfloor p_i / G \rfloor - \lfloor p_j / G \rfloor \allowbreak + w - \lfloor w / G \rfloor",
    ),
    symbols={"window": "w", "group": "G"},
    example="posenc.attention(q, k, v, posenc.SelfExtend(64, group=4, window=32), is_causal=True)",
    url="https://arxiv.org/abs/2401.01325",
    avoid="**Training from scratch.** It runs trained weights of `RoPE` on longer texts, and costs more.",
)
