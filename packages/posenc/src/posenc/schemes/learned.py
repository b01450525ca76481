"""Learned: adds a trainable vector per position to the input."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posenc.arguments import check_choice, check_type, whole
from posenc.positions.positions import Positions
from posenc.positions.tiles import table_index
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Law


class Learned(Scheme):
    """A learned vector for each position 0 .. max_positions - 1, added to the input.

    Formula: x_i <- x_i + W[p_i], W from N(0, 0.02^2).

    Parameters: max_positions x dim. Shapes: table (rows, tokens, dim). Coordinates must be int64.
    Errors: PositionError for a position outside the table; ValueError for fractional or multi-axis positions.
    Source: Gehring et al. 2017, "Convolutional Sequence to Sequence Learning", section 3.1; Devlin et al. 2019, "BERT",
    for the initialisation.
    """

    def __init__(self, max_positions: int, dim: int) -> None:
        super().__init__()
        self.max_positions, self.dim = whole("max_positions", max_positions), whole("dim", dim)
        self.weight = nn.Parameter(torch.empty(self.max_positions, self.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Float[Tensor, "rows tokens dim"]:
        check_type("positions", positions, Positions)
        check_choice("dtype", dtype, (torch.float32, torch.float64))
        return self.weight[table_index(positions, "Learned", self.max_positions)].to(dtype)


ENTRY = Entry(
    name="learned",
    scheme=Learned,
    paper="Gehring et al. 2017; Devlin et al. 2019",
    laws=frozenset({Law.ABSOLUTE, Law.UNIQUE, Law.BOUNDED, Law.DIRECTED}),
    cost="one addition to the input",
    build=lambda shape: Learned(shape.max_positions, shape.dim),
    learned="max_positions × dim",
    does="a trainable vector per position",
    limits="undefined beyond the table: `PositionError`",
    formula=r"x_i \leftarrow x_i + W_{p_i}",
    example=("encoding = posenc.Learned(1024, 768)(posenc.Positions.arange(64))\nx = encoding.add(x)"),
    users="GPT-2, BERT, RoBERTa, OPT",
    url="https://arxiv.org/abs/1705.03122",
    avoid="**Contexts that will be extended.** A longer table must be trained or interpolated (`resize_line`).",
)
