"""Transformer-XL: scores of four terms of content and distance, with a sinusoid of the distance projected per head."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posenc.arguments import check_flag, check_type, number, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.terms import AddedVector, Distance, RelativeDot
from posenc.lowering.distances import Block
from posenc.lowering.forms import added
from posenc.positions.positions import Positions
from posenc.rotation.phases import frequencies, phases
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Law, lines


class Biases(nn.Module):
    """u, v and, with segments, w. A module, since tensors that two modules share are no longer shared after they leave
    ``meta``."""

    def __init__(self, num_heads: int, head_dim: int, segments: bool) -> None:
        super().__init__()
        self.content = nn.Parameter(torch.empty(num_heads, head_dim))
        self.position = nn.Parameter(torch.empty(num_heads, head_dim))
        self.segment = nn.Parameter(torch.empty(num_heads, head_dim)) if segments else None


class TransformerXL(Scheme):
    """Relative attention with four terms.

    Formula, with r = p_i - p_j and R_r = [sin(r theta_k) | cos(r theta_k)], k = 0 .. dim/2 - 1, as wide as the model:

        s_ij = (q_i . k_j  +  q_i . W R_r  +  u . k_j  +  v . W R_r) / sqrt(d)
                content       content-        global      global
                              dependent       content     position
                              position bias   bias        bias

    With ``segments``, as in XLNet, a fifth term is added to the four,

        (q_i + w) . e[0 if segment_i = segment_j else 1]

    W projects the sinusoid for each head; it is separate from the projection of the keys. The distance is signed, so a
    bidirectional model distinguishes left from right.

    Parameters: W H x d x dim, u and v H x d, w H x d, e 2 x H x d; all N(0, 0.02^2). A model whose layers have
    different W may share u, v and w between them, as in the paper: ``share_biases`` sets whether `another` shares them.
    XLNet does not.
    Shapes: query (batch, num_heads, queries, head_dim). Any real positions, of one axis.
    Source: Dai et al. 2019, "Transformer-XL: Attentive Language Models beyond a Fixed-Length Context", section 3.3;
    segments: Yang et al. 2019, "XLNet" (arXiv 1906.08237), section 2.5, whose names in its code are r_w_bias = u,
    r_r_bias = v, r_s_bias = w and seg_embed = e. Both divide by sqrt(d) after adding all terms.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        dim: int | None = None,
        base: float = 10_000.0,
        share_biases: bool = True,
        segments: bool = False,
    ) -> None:
        super().__init__()
        num_heads, head_dim = whole("num_heads", num_heads), whole("head_dim", head_dim)
        dim = num_heads * head_dim if dim is None else whole("dim", dim)
        if dim % 2:
            raise ValueError(f"dim must be positive and even (sines and cosines come in pairs), got {dim}")
        check_flag("share_biases", share_biases)
        check_flag("segments", segments)
        self.num_heads, self.head_dim, self.dim = num_heads, head_dim, dim
        self.base, self.share_biases = number("base", base, above=1), share_biases
        self.segments = segments
        self.projection = nn.Parameter(torch.empty(num_heads, head_dim, dim))
        self.biases = Biases(num_heads, head_dim, segments)
        self.segment = nn.Parameter(torch.empty(2, num_heads, head_dim)) if segments else None
        self.reset_parameters()

    @property
    def content_bias(self) -> Float[Tensor, "heads head_dim"]:
        """u."""
        return self.biases.content

    @property
    def position_bias(self) -> Float[Tensor, "heads head_dim"]:
        """v."""
        return self.biases.position

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def another(self) -> TransformerXL:
        """A copy for another layer with its own W and e and, unless ``share_biases``, its own u, v and w."""
        other = copy.deepcopy(self, {id(self.biases): self.biases} if self.share_biases else None)
        for parameter in other.parameters(recurse=not self.share_biases):
            nn.init.normal_(parameter, std=0.02)
        return other

    def score(
        self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE
    ) -> tuple[AddedVector | RelativeDot, ...]:
        u = AddedVector("TransformerXL", query=self.content_bias)
        distance = Distance("TransformerXL", num_heads=self.num_heads)
        meeting = RelativeDot(
            self._sinusoid, distance, shift=self.position_bias, through=self.projection, base=self.base
        )
        if self.segment is None:
            return u, meeting
        apart = replace(distance, axis="segment", integral=True, tail="constant", past=1)
        e = self.segment
        at = RelativeDot(lambda r: e.transpose(0, 1)[:, (r != 0).long()], apart, shift=self.biases.segment)
        return u, meeting, at

    def terms(self, block: Block) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The four scaled terms in the order of the formula, each (batch, heads, queries, keys). Their sum is the
        score without segments. Raises ValueError for another number of heads or head_dim."""
        check_type("block", block, Block)
        u, meeting = self.score(block.query_positions, block.key_positions)[:2]
        assert isinstance(u, AddedVector)
        assert isinstance(meeting, RelativeDot)
        of_query, of_both = added(replace(meeting, shift=None), block), added(meeting, block)
        key = block.key.repeat_interleave(block.query.size(1) // block.key.size(1), 1)
        content = block.query.to(block.dtype) @ key.to(block.dtype).mT * block.scale
        return content, of_query, added(u, block).expand_as(content), of_both - of_query

    def _sinusoid(self, r: Tensor) -> Float[Tensor, "1 ... dim"]:
        angle = phases(-r, frequencies(self.dim, self.base, r.device))
        dtype = torch.promote_types(self.projection.dtype, torch.float32)
        return torch.cat((angle.sin(), angle.cos()), -1).to(dtype=dtype, device=r.device)[None]


ENTRY = Entry(
    name="transformer_xl",
    scheme=TransformerXL,
    paper="Dai et al. 2019",
    laws=frozenset({Law.RELATIVE, Law.UNIQUE, Law.BOUNDED, Law.DIRECTED, Law.LENGTH_FREE, Law.FRACTIONAL}),
    cost="a dim-wide product per score and a head_dim-wide one per key per layer",
    build=lambda shape: TransformerXL(shape.num_heads, shape.head_dim, max(2, shape.dim - shape.dim % 2)),
    learned="dim² + 2 dim; with segments 3 dim more",
    does="four terms, of content and distance, which `terms(block)` returns; with `segments` XLNet's fifth",
    limits="a product as wide as the model for every score",
    formula=lines(
        r"s_{ij} = \frac{q_i \cdot k_j + q_i \cdot W S_n + u \cdot k_j + v \cdot W S_n}{\sqrt{d}}, \qquad "
        r"n = p_i - p_j, \qquad S_n = [\, \sin n \theta_k \mid \cos n \theta_k \,], \qquad "
        r"\theta_k = \mathrm{base}^{-2k/\mathrm{dim}}",
        r"\mathrm{segments} \mbox{: in the numerator also} "
        r"\allowbreak (q_i + w) \cdot e_0 \mbox{ in the same segment,} "
        r"\allowbreak (q_i + w) \cdot e_1 \mbox{ in another}",
    ),
    example="posenc.attention(q, k, v, posenc.TransformerXL(12, 64), is_causal=True)",
    users="Transformer-XL; XLNet, with `segments`",
    url="https://arxiv.org/abs/1901.02860",
    avoid="**Cheap attention.** Each score has a product as wide as the model. `Shaw` has a vector per distance.",
)
