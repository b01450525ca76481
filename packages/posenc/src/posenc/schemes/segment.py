"""Segment: adds a trainable vector per segment to the input."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posenc.arguments import check_choice, check_type, whole
from posenc.positions.positions import PADDING, Positions
from posenc.positions.tiles import check_index
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Law


class Segment(Scheme):
    """A learned vector for each segment (premise or hypothesis), added to the input.

    Formula: x_i <- x_i + W[segment_i], W from N(0, 0.02^2). It encodes segments, not positions, so compose it with a
    scheme that does: ``Learned(512, dim) + Segment(2, dim)`` is BERT's input.

    Parameters: num_segments x dim. Shapes: table (rows, tokens, dim).
    Errors: ValueError for positions without segments; PositionError for a segment outside the table.
    Source: Devlin et al. 2019, "BERT", section 3 and figure 2.
    """

    def __init__(self, num_segments: int, dim: int) -> None:
        super().__init__()
        self.num_segments, self.dim = whole("num_segments", num_segments), whole("dim", dim)
        self.weight = nn.Parameter(torch.empty(self.num_segments, self.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Float[Tensor, "rows tokens dim"]:
        check_type("positions", positions, Positions)
        check_choice("dtype", dtype, (torch.float32, torch.float64))
        if positions.segment is None:
            raise ValueError("Segment needs positions with a segment per token: positions.with_segment(segment)")
        segment = positions.segment.masked_fill(positions.document == PADDING, 0)
        check_index(segment, self.num_segments, "Segment", "segments")
        return self.weight[segment].to(dtype)


ENTRY = Entry(
    name="segment",
    scheme=Segment,
    paper="Devlin et al. 2019",
    laws=frozenset({Law.RELATIVE, Law.BOUNDED, Law.LENGTH_FREE, Law.FRACTIONAL, Law.ORDER_FREE}),
    cost="one addition to the input",
    build=lambda shape: Segment(2, shape.dim),
    needs_segments=True,
    learned="num_segments × dim",
    does="a trainable vector per segment, to compose with another scheme",
    limits="does not encode positions",
    formula=r"x_i \leftarrow x_i + W_{\mathrm{segment}(i)}",
    example=(
        "positions = posenc.Positions.arange(64).with_segment((torch.arange(64) >= 40).long()[None])\n"
        "x = (posenc.Learned(512, 768) + posenc.Segment(2, 768))(positions).add(x)"
    ),
    users="BERT",
    url="https://arxiv.org/abs/1810.04805",
    avoid="**By itself.** It says which segment a token is in, and not where. Compose it with a scheme of positions.",
)
