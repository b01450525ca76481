"""Self-Extend: rotation by the distance up to a window, and by the distance of groups of tokens past it."""

from __future__ import annotations

import torch

from posenc.arguments import whole
from posenc.encoding.encoding import Band, Context, Rotation
from posenc.positions.positions import Positions
from posenc.rotary import BandedRotary
from posenc.rotation.phases import PairLayout, check_held
from posenc.schemes.entry import FORMULA, Entry, Law


class SelfExtend(BandedRotary):
    """Neighbours by their distance, all others by the distance of their groups.

    Formula, for query i and key j with d = p_i - p_j, group size G, window w and theta_m = base^(-2m/head_dim):

        s_ij = q_i . R(-f_ij) k_j / sqrt(head_dim)
        f_ij = d                                                   for d < w
        f_ij = floor(p_i/G) + w - floor(w/G) - floor(p_j/G)        for d >= w

    where R(a) turns channel pair m by a theta_m, as in `RoPE`. With a trained length L, texts of (L - w) G + w tokens
    meet no distance that is new to the model. Scores are not those of distances alone: where a group begins depends on
    the position, so a shift of all positions changes nothing only if it is a multiple of G.

    The bands are two calls of attention over the same keys, merged: no pair is computed twice where coordinates rise
    by one with the order. A cache keeps keys as they are. The formula looks back: a key ahead has f = d, however far,
    as in RoPE. That is no error in an encoder, but there it may stand at a distance that the model has not seen.

    Learned: nothing. Cost: two passes over q and k per layer, and a merge. Shapes: query and key (batch, heads,
    tokens, head_dim), any floating dtype; positions of one coordinate, fractional or negative too.
    Errors: ValueError for an odd head_dim, a group or a window below 1, a base not above 1, an unknown layout, or
    positions of several axes.
    Source: Jin et al. 2024, "LLM Maybe LongLM: Self-Extend LLM Context Window Without Tuning" (arXiv 2401.01325),
    section 3; read: ``self_extend_patch/Llama.py`` and ``selfextend_flash_attn.py`` of github.com/datamllab/LongLM,
    whose ``group_size_1`` is G and ``group_size_2`` is w. There the queries of a whole text are shifted by w - w/G,
    which is the same where G divides w, and those of its fused decoding by w - floor(w/G), as in the paper and here.
    """

    def __init__(
        self,
        head_dim: int,
        group: int = 8,
        window: int = 1024,
        base: float = 10_000.0,
        layout: PairLayout = "half",
    ) -> None:
        super().__init__(head_dim, base, layout)
        self.group, self.window = whole("group", group), whole("window", window)

    def rotation(
        self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context | None = None
    ) -> Rotation:
        """The turn to the position, and for pairs at least a window apart the turn to the group's."""
        p = positions.scalar("SelfExtend")
        check_held(positions, "SelfExtend")
        grouped = p.div(self.group, rounding_mode="floor")
        shift = self.window - self.window // self.group
        near, far_query, far_key = (self.turned_to(at, dtype) for at in (p, grouped + shift, grouped))
        return Rotation(near, near, bands=(Band(self.window, far_query, far_key),))


ENTRY = Entry(
    name="self_extend",
    scheme=SelfExtend,
    paper="Jin et al. 2024",
    laws=FORMULA | {Law.BOUNDED, Law.DIRECTED},
    cost="two passes over q and k per layer, two calls merged",
    build=lambda shape: SelfExtend(shape.head_dim, group=4, window=4),
    does="turns pairs closer than a `window` as RoPE does, and all others by the places of groups of `group` tokens",
    limits="made for causal attention; far keys of one group cannot be told apart",
    formula=(
        r"\begin{array}{l} "
        r"s_{ij} = q_i \cdot R_{-f_{ij}} k_j / \sqrt{d} \\ "
        r"f_{ij} = p_i - p_j \mbox{ if } p_i - p_j < w, \; \mbox{ else } \lfloor p_i / G \rfloor - \lfloor p_j / G "
        r"\rfloor + w - \lfloor w / G \rfloor "
        r"\end{array}"
    ),
    example="posenc.attention(q, k, v, posenc.SelfExtend(64, group=4, window=32), is_causal=True)",
    url="https://arxiv.org/abs/2401.01325",
)
