"""Inkling: a bias by distance that each query mixes from learned profiles."""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from posenc.arguments import number, whole
from posenc.encoding.context import WHOLE, Context, Feature
from posenc.encoding.rotation import Rotation
from posenc.encoding.terms import Distance, RelativeDot, ScoreTerms
from posenc.positions.positions import Positions
from posenc.rotation.phases import TokenScale, identity, in_double, log_length_scale
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Law, lines


class Inkling(Scheme):
    """A bias by the distance to earlier keys, which each query mixes from learned profiles.

    Formula, with r_ih = W_h x_i, ``width`` numbers per query head that each layer projects from its hidden state:

        s_ij + r_ih . B[p_i - p_j]   where 0 <= p_i - p_j < extent, else s_ij

    B is extent x width, shared by the heads, and the product is not scaled. With ``length`` = n, as in the model's
    global layers, query and bias are multiplied by 1 + strength ln max(1, (p_i + 1) / n). With ``clip`` = c, as in
    Inkling 2, a longer r_ih is first shortened to length c: r_ih min(1, c / (|r_ih| + 1e-6)).

    The layer provides the feature ``profile``, a projection without bias. See `posenc.models.ForwardPass.features`.
    Parameters: B, from N(0, 0.02^2).
    Shapes: profile (batch, num_heads, queries, width). Coordinates must be int64, of one axis.
    Source: the model Inkling in transformers (modeling_inkling.py, `InklingRelativeLogits` and `InklingAttention`),
    with d_rel = 16 and rel_extent = 1024 in global layers, the window in local ones. Its softmax scale is 1/head_dim:
    pass it to `attention`.
    Inkling 2 (modeling_inkling2.py, `Inkling2SlidingAttention` and `Inkling2FullAttention`) has clip = 8, the usual
    softmax scale, and sinks that it projects from the hidden state: ``attention(..., sinks=)``. Its learned scale of r,
    a number per head and channel, is a factor of the rows of W_h."""

    def __init__(
        self,
        num_heads: int,
        width: int = 16,
        extent: int = 1024,
        *,
        length: int | None = None,
        strength: float = 0.1,
        clip: float | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.width = whole("num_heads", num_heads), whole("width", width)
        self.extent = whole("extent", extent)
        self.length = None if length is None else whole("length", length)
        self.strength = number("strength", strength)
        self.clip = None if clip is None else number("clip", clip, above=0)
        self.B = nn.Parameter(torch.empty(self.extent, self.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.B, std=0.02)

    @property
    def features(self) -> Mapping[str, Feature]:
        if self.length is None and self.clip is None:
            return {"profile": Feature(self.num_heads, self.width)}
        of_layer = partial(_of_layer, self.clip, self.length, self.strength)
        return {"profile": Feature(self.num_heads, self.width, map=of_layer)}

    @property
    def doors(self) -> tuple[str, ...]:
        return ("score",) if self.length is None else ("rotate", "score")

    def rotation(
        self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE
    ) -> Rotation | None:
        if self.length is None:
            return None
        return Rotation(TokenScale(_factor(self.length, self.strength, positions, dtype)), identity)

    def score(self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE) -> ScoreTerms:
        distance = Distance("Inkling", integral=True, tail="constant", past=self.extent)
        return (RelativeDot(self._profile_vectors, distance, feature="profile"),)

    def _profile_vectors(self, r: Tensor) -> Tensor:
        back = -r
        inside = (back >= 0) & (back < self.extent)
        return (self.B[back.clamp(0, self.extent - 1)] * inside[..., None])[None]


def _factor(length: int, strength: float, positions: Positions, dtype: torch.dtype) -> Tensor:
    n = in_double(positions.scalar("Inkling")) + 1
    return log_length_scale(n, length, strength)[:, None, :, None].to(dtype=dtype, device=positions.device)


def _of_layer(
    clip: float | None, length: int | None, strength: float, projected: Tensor, positions: Positions
) -> Tensor:
    """r, clipped, times the factor."""
    dtype = torch.promote_types(projected.dtype, torch.float32)
    r = projected.to(dtype)
    if clip is not None:
        r = r * (clip / (torch.linalg.vector_norm(r, dim=-1, keepdim=True) + 1e-6)).clamp(max=1.0)
    return (r if length is None else r * _factor(length, strength, positions, dtype)).to(projected.dtype)


ENTRY = Entry(
    name="inkling",
    scheme=Inkling,
    paper="Inkling 2026",
    laws=frozenset({Law.RELATIVE, Law.BOUNDED, Law.DIRECTED, Law.LENGTH_FREE}),
    cost="width × extent products per query and layer",
    build=lambda shape: Inkling(shape.num_heads, 16, 256),
    learned="extent × width, and width per head in each layer",
    does="each query mixes a bias by distance from learned profiles, with weights that the layer projects",
    limits="no bias beyond the extent",
    formula=lines(
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} "
        r"\allowbreak + \begin{cases} (W_h x_i) \cdot B_n & 0 \le n < \mathrm{extent} \\ "
        r"0 & \mbox{else} \end{cases} \qquad n = p_i - p_j",
        r"\mbox{with length } L \mbox{: both terms times} "
        r"\allowbreak 1 + \mathrm{strength} \cdot \ln \max(1, (p_i + 1) / L)",
    ),
    symbols={"length": "L"},
    example=(
        'profile = {"profile": torch.randn(2, 12, 64, 16)}\n'
        "encoding = posenc.Inkling(12)(posenc.Positions.arange(64)).with_projected(profile)\n"
        "posenc.attention(q, k, v, encoding, is_causal=True)"
    ),
    users="Inkling 1 and 2",
    avoid="**Distances beyond `extent`.** There is no bias there, so contents alone decide.",
)
