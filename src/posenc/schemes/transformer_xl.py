"""Transformer-XL: four terms of content and distance, with a sinusoid of the distance projected per head."""

from __future__ import annotations

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posenc.arguments import check_flag, check_type, number, whole
from posenc.encoding import Block, ByDistance, Scheme, Score, ScoreFunction
from posenc.phases import frequencies, phases
from posenc.schemes.entry import Entry, Law


class TransformerXL(Scheme):
    """Relative attention in four terms, each with its own reading.

    Formula, with r = p_i - p_j and R_r = [sin(r theta_k) | cos(r theta_k)], k = 0 .. dim/2 - 1, as wide as the model:

        s_ij = (q_i . k_j  +  q_i . W R_r  +  u . k_j  +  v . W R_r) / sqrt(d)
                content       content-        global      global
                              dependent       content     position
                              position bias   bias        bias

    W projects the sinusoid for each head, apart from the projection of the keys. The distance is signed, so a
    bidirectional model tells left from right; keys before the first query (a memory) are just smaller positions.

    R is never written out per distance: sin(p_i - p_j) and cos(p_i - p_j) come from angle addition, so any real
    positions have a score and no matrix needs shifting.

    Parameters: W H x d x dim, u and v H x d; all N(0, 0.02^2). A model that gives every layer its own W may share u and
    v between them, as the paper does: ``share_biases`` says whether `another` keeps them.
    Shapes: query (batch, num_heads, queries, head_dim). Any real positions, of one axis.
    Errors: ValueError for an odd dim, a base not above 1, another head_dim or number of heads.
    Source: Dai et al. 2019, "Transformer-XL: Attentive Language Models beyond a Fixed-Length Context", section 3.3.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        dim: int | None = None,
        base: float = 10_000.0,
        share_biases: bool = True,
    ) -> None:
        super().__init__()
        num_heads, head_dim = whole("num_heads", num_heads), whole("head_dim", head_dim)
        dim = num_heads * head_dim if dim is None else whole("dim", dim)
        if dim % 2:
            raise ValueError(f"dim must be positive and even (sines and cosines come in pairs), got {dim}")
        check_flag("share_biases", share_biases)
        self.num_heads, self.head_dim, self.dim = num_heads, head_dim, dim
        self.base, self.share_biases = number("base", base, above=1), share_biases
        self.projection = nn.Parameter(torch.empty(num_heads, head_dim, dim))
        self.content_bias = nn.Parameter(torch.empty(num_heads, head_dim))
        self.position_bias = nn.Parameter(torch.empty(num_heads, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """W, u and v from N(0, 0.02^2)."""
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def another(self) -> TransformerXL:
        """A copy for another layer: with a W of its own, and with a u and v of its own unless ``share_biases``."""
        shared = (self.content_bias, self.position_bias) if self.share_biases else ()
        other = copy.deepcopy(self, {id(parameter): parameter for parameter in shared})
        nn.init.normal_(other.projection, std=0.02)
        if not self.share_biases:
            other.reset_parameters()
        return other

    def terms(self, block: Block) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The four terms in the order of the formula, each (batch, heads, queries, keys) and already scaled."""
        check_type("block", block, Block)
        block.check_heads("TransformerXL", self.num_heads, self.head_dim)
        query, key = block.query, block.key
        group = query.size(1) // key.size(1)
        grouped = query.unflatten(1, (-1, group))
        u = self.content_bias.to(query.dtype).unflatten(0, (-1, group))
        v = self.position_bias.to(query.dtype)[:, None].expand(-1, query.size(2), -1)[None]
        content = torch.einsum("bguid,bgjd->bguij", grouped, key).flatten(1, 2)
        global_content = torch.einsum("gud,bgjd->bguj", u, key).flatten(1, 2)[:, :, None].expand_as(content)
        content_position = self._meet(query, block)
        global_position = self._meet(v, block).expand_as(content)
        four = (content, content_position, global_content, global_position)
        return tuple(block.scale * term for term in four)  # type: ignore[return-value]

    def _meet(self, vectors: Float[Tensor, "#batch heads queries head_dim"], block: Block) -> Tensor:
        """vectors . W R_r for every pair: with a = vectors W split over sines and cosines,

        a_s sin(x - y) + a_c cos(x - y) = (a_s sin x + a_c cos x) cos y + (a_c sin x - a_s cos x) sin y
        """
        theta = frequencies(self.dim, self.base, vectors.device)
        x = phases(block.query_positions.scalar("TransformerXL"), theta)[:, None]
        y = phases(block.key_positions.scalar("TransformerXL"), theta)
        sin_x, cos_x, sin_y, cos_y = (t.to(vectors.dtype) for t in (x.sin(), x.cos(), y.sin(), y.cos()))
        of_sin, of_cos = (vectors @ self.projection.to(vectors.dtype)).chunk(2, -1)
        left = torch.cat((of_sin * sin_x + of_cos * cos_x, of_cos * sin_x - of_sin * cos_x), -1)
        return torch.einsum("bhic,bjc->bhij", left, torch.cat((cos_y, sin_y), -1))

    def score(self) -> Score:
        """The last three terms; the first is the score itself."""
        return Score(self._bind, fold=self._fold, by_distance=self._by_distance)

    def _fold(self, block: Block) -> tuple[Tensor, Tensor]:
        block.check_heads("TransformerXL", self.num_heads, self.head_dim)
        return block.query + self.content_bias.to(block.query.dtype)[:, None], block.key

    def _by_distance(self, block: Block, distances: Tensor) -> ByDistance:
        block.check_heads("TransformerXL", self.num_heads, self.head_dim)
        angle = phases(-distances[None], frequencies(self.dim, self.base, distances.device))[0]
        sinusoid = torch.cat((angle.sin(), angle.cos()), -1).to(block.dtype)
        vectors = block.scale * sinusoid @ self.projection.to(block.dtype).mT
        return ByDistance(vectors, (vectors @ self.position_bias.to(block.dtype)[..., None])[..., 0])

    def _bind(self, block: Block) -> ScoreFunction:
        block.check_heads("TransformerXL", self.num_heads, self.head_dim)
        group = block.query.size(1) // block.key.size(1)
        dtype = block.query.dtype
        u = self.content_bias.to(dtype).unflatten(0, (-1, group))
        content = block.scale * torch.einsum("gud,bgjd->bguj", u, block.key).flatten(1, 2)
        position = block.scale * self._meet(block.query + self.position_bias.to(dtype)[:, None], block)

        def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + content[b, h, j] + position[b, h, i, j]

        return biased

    def extra_repr(self) -> str:
        return f"{self.num_heads}, {self.head_dim}, dim={self.dim}, base={self.base}, share_biases={self.share_biases}"


ENTRY = Entry(
    name="transformer_xl",
    scheme=TransformerXL,
    paper="Dai et al. 2019",
    laws=frozenset({Law.RELATIVE, Law.UNIQUE, Law.BOUNDED, Law.DIRECTED, Law.LENGTH_FREE, Law.FRACTIONAL}),
    cost="a dim-wide product per score and a head_dim-wide one per key per layer",
    build=lambda shape: TransformerXL(shape.num_heads, shape.head_dim, max(2, shape.dim - shape.dim % 2)),
    learned="dim² + 2 dim",
    does=(
        "content, content-dependent position, global content and global position: four terms, one by one in "
        "`terms(block)`"
    ),
    limits="one product as wide as the model on every score",
)
