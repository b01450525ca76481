"""Swin: adds a learned bias for every row and column difference within a window."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.arguments import check_flag, sides, whole
from posenc.encoding.claims import coordinates
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.terms import Bias, Distance, Function, ScoreTerms, plus
from posenc.positions.positions import PADDING, Positions
from posenc.positions.tiles import check_reach
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Law


class Swin(Scheme):
    """Relative position bias of Swin Transformer, version 1: a number per head for every difference of two patches.

    Formula, for patches (a, b) of query and (a', b') of key in a window of h rows and w columns:

        s_ij + B[(a - a' + h - 1) (2w - 1) + (b - b' + w - 1)]

    where s_ij = q_i . k_j / sqrt(d); the bias itself is *not* divided. The difference is query minus key, as in the
    authors' table, so a checkpoint's ``relative_position_bias_table`` is ``weight``. Unlike in `Relative2D`, rows and
    columns are not separate, and the bias does not depend on the query.

    Represent windows, shifted or not, as documents: patches attend only within their own document.

    With ``class_token`` the token at (-1, -1) is a class token, as in BEiT, and the last three rows of the table are
    the bias of the class token for a patch, of a patch for the class token, and of the class token for itself. The
    method `positions` makes these positions: `Positions.grid` with ``prefix=1`` would put the class token on the first
    patch, without an error.

    Parameters: (2h - 1)(2w - 1) x H, and 3 x H with ``class_token``, from N(0, 0.02^2), as in the authors' code (from
    memory; transformers initializes to zeros).
    Shapes: score (batch, num_heads, queries, keys); coordinates (rows, tokens, 2), int64, as `Positions.grid` gives.
    Errors: PositionError for a difference outside the window; ValueError for sizes below 1, queries with another number
    of heads, and positions that do not have two axes.
    Source: Liu et al. 2021, "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", equation 4; the
    order of the table follows transformers. ``class_token``: Bao et al. 2022, "BEiT: BERT Pre-Training of Image
    Transformers"; transformers, BeitRelativePositionBias.
    """

    def __init__(self, grid: Sequence[int], num_heads: int, class_token: bool = False) -> None:
        super().__init__()
        self.grid, self.num_heads = sides(grid), whole("num_heads", num_heads)
        check_flag("class_token", class_token)
        self.class_token = class_token
        height, width = self.grid
        self.weight = nn.Parameter(torch.empty((2 * height - 1) * (2 * width - 1) + 3 * class_token, self.num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.weight, std=0.02)

    def score(self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE) -> ScoreTerms:
        distance = self._distance
        if not self.class_token:
            return (Bias(self._bias, distance),)
        # The class token lies beside the grid, so only distances between patches are checked.
        query_patches, key_patches = (
            Positions(p.coords, document=p.document.masked_fill(_is_class(coordinates(distance, p)), PADDING))
            for p in (query_positions, key_positions)
        )
        check_reach(query_patches, key_patches, self.grid, "Swin")
        return (Function(plus, self._of_pairs, adds=True, scheme="Swin", num_heads=self.num_heads),)

    @property
    def _distance(self) -> Distance:
        return Distance("Swin", axis=None, integral=True, reach=self.grid, num_heads=self.num_heads)

    def _bias(self, r: Tensor) -> Float[Tensor, "heads ..."]:
        return self.weight.transpose(0, 1)[:, self._index(r)]

    def _index(self, r: Tensor) -> Int[Tensor, "..."]:
        height, width = self.grid
        return (height - 1 - r[..., 0]) * (2 * width - 1) + (width - 1 - r[..., 1])

    def _of_pairs(self, x: Tensor, y: Tensor) -> tuple[Float[Tensor, "heads rows queries keys"]]:
        """B for queries and keys at these coordinates, which may be class tokens."""
        of_query, of_key, entries = _is_class(x), _is_class(y), self.weight.size(0)
        index = self._index(self._distance.clamped(y - x))
        index = torch.where(of_query, entries - 3, torch.where(of_key, entries - 2, index))
        return (self.weight.transpose(0, 1)[:, torch.where(of_query & of_key, entries - 1, index)],)

    def positions(self, device: torch.device | str | None = None) -> Positions:
        """The positions of the window's patches in raster order, after the class token if there is one.

        >>> posenc.Swin((1, 2), 12, class_token=True).positions().coords
        tensor([[[-1, -1], [ 0,  0], [ 0,  1]]])
        """
        window = Positions.grid(*self.grid, prefix=int(self.class_token), device=device)
        if not self.class_token:
            return window
        return Positions(torch.cat((window.coords[:, :1] - 1, window.coords[:, 1:]), 1))

    @torch.no_grad()
    def resized(self, grid: Sequence[int]) -> Swin:
        """A copy for another window, with the table interpolated bicubically, as the authors do when they load a
        checkpoint. For the same window the table is identical, and so are always the rows of the class token.
        ``requires_grad`` and the training mode are kept."""
        with torch.device("meta"):  # only checks and shapes: no random numbers are drawn
            other = Swin(grid, self.num_heads, self.class_token).train(self.training)
        weight = self.weight.clone()
        if other.grid != self.grid:
            (height, width), (rows, columns) = ([2 * side - 1 for side in g] for g in (self.grid, other.grid))
            weight, rest = weight.tensor_split([height * width])
            planes = weight.mT.reshape(1, -1, height, width).to(torch.promote_types(weight.dtype, torch.float32))
            planes = F.interpolate(planes, size=(rows, columns), mode="bicubic")
            weight = torch.cat((planes.flatten(2)[0].mT.to(weight.dtype), rest))
        other.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
        return other


def _is_class(coords: Tensor) -> Tensor:
    """Whether tokens are at (-1, -1)."""
    return (coords == -1).all(-1)


ENTRY = Entry(
    name="swin",
    scheme=Swin,
    paper="Liu et al. 2021",
    laws=frozenset({Law.RELATIVE, Law.UNIQUE, Law.BOUNDED, Law.DIRECTED}),
    cost="one bias on every score per layer",
    build=lambda shape: Swin(shape.grid or (min(shape.max_positions, 64),) * 2, shape.num_heads),
    axes="two",
    learned="(2h − 1)(2w − 1) × heads",
    does="a trainable bias per difference of two patches; `resized` for another window, `class_token` as in BEiT",
    limits="undefined beyond the window",
    formula=(r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} \allowbreak + B_{h, \, y_i - y_j, \, x_i - x_j}"),
    example="posenc.attention(q, k, v, posenc.Swin((8, 8), 12), query_positions=posenc.Positions.grid(8, 8))",
    users="Swin Transformer, BEiT, Data2Vec for images",
    url="https://arxiv.org/abs/2103.14030",
    avoid="**Images of several sizes.** Its table is of one window; `AxialRoPE` has no table.",
)
