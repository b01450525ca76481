"""RoPE: queries and keys turned by an angle that grows with their position."""

from __future__ import annotations

import torch

from posenc.arguments import check_choice, check_type, number, whole
from posenc.encoding import Rotation, Scheme
from posenc.phases import PairLayout, PairRotation, frequencies, phases
from posenc.positions import Positions
from posenc.schemes.entry import FORMULA, Entry, Law


class RoPE(Scheme):
    """Rotary position embedding: channel pair k of q and k is turned by p theta_k.

    Formula, for k = 0 .. rotary_dim/2 - 1 and theta_k = base^(-2k/rotary_dim):

        (a, b) -> (a cos p theta_k - b sin p theta_k,  a sin p theta_k + b cos p theta_k)

    on the channels (k, k + rotary_dim/2) in the "half" layout (Llama, GPT-NeoX) and (2k, 2k + 1) in the "interleaved"
    one (the paper, GPT-J). Channels past rotary_dim are not turned. The inner product of a turned query and a turned
    key depends on their positions through p_j - p_i alone. Values are not touched; nothing is learned.

    With several ``axes`` (the row and column of a patch), every axis turns rotary_dim/axes channels, by the formula
    above with rotary_dim/axes for rotary_dim and its own coordinate for p. The pairs of axis 0 come first, then those
    of axis 1; the layout then says which channels pair k of them all has, as it does for one axis.

    The layout is a property of the checkpoint: weights trained in one give silent nonsense in the other. So is the
    order of the axes: here it is that of the coordinates, rows before columns in `Positions.grid`, while the code of
    Heo et al. interleaves and has the columns first. Their base is 100, since images are less wide than texts are long.

    Shapes: query and key (batch, heads, tokens, head_dim), any floating dtype; angles are exact to float32 up to
    position 2^20 whatever the dtype. Positions may be fractional or negative.
    Errors: ValueError for a rotary_dim that is above head_dim or not a multiple of 2 axes, a base not above 1, an
    unknown layout, or positions of another number of axes.
    Source: Su et al. 2021, "RoFormer", equations 14, 15 and 34; Heo et al. 2024, "Rotary Position Embedding for Vision
    Transformer", whose axial form has two axes.
    """

    def __init__(
        self,
        head_dim: int,
        base: float = 10_000.0,
        layout: PairLayout = "half",
        rotary_dim: int | None = None,
        axes: int = 1,
    ) -> None:
        super().__init__()
        head_dim, axes = whole("head_dim", head_dim), whole("axes", axes)
        rotary_dim = head_dim if rotary_dim is None else whole("rotary_dim", rotary_dim)
        if rotary_dim % (2 * axes) or rotary_dim > head_dim:
            each = "" if axes == 1 else f" on each of {axes} axes"
            raise ValueError(f"rotary_dim must be even{each} and within 2..head_dim = {head_dim}, got {rotary_dim}")
        check_choice("layout", layout, ("half", "interleaved"))
        self.head_dim, self.base, self.rotary_dim, self.axes = head_dim, number("base", base, above=1), rotary_dim, axes
        self.layout: PairLayout = layout

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Rotation:
        """The same turn for queries and keys."""
        check_type("positions", positions, Positions)
        check_choice("dtype", dtype, (torch.float32, torch.float64))
        coords = positions.coords if positions.coords.dim() == 3 else positions.coords[..., None]
        if coords.size(-1) != self.axes:
            takes = "one coordinate" if self.axes == 1 else f"{self.axes} coordinates"
            raise ValueError(f"RoPE takes {takes} per token, got positions of {coords.size(-1)} axes")
        theta = frequencies(self.rotary_dim // self.axes, self.base, coords.device)
        angle = torch.cat([phases(axis, theta) for axis in coords.unbind(-1)], -1)[:, None]
        # Stacked, so that a compiler writes them down: it would make them anew for every head and layer.
        cos, sin = torch.stack((angle.cos().to(dtype), angle.sin().to(dtype)))
        turn = PairRotation(cos, sin, self.layout, self.head_dim)
        return Rotation(turn, turn)

    def extra_repr(self) -> str:
        return (
            f"{self.head_dim}, base={self.base}, layout={self.layout!r}, rotary_dim={self.rotary_dim}, axes={self.axes}"
        )


ENTRY = Entry(
    name="rope",
    scheme=RoPE,
    paper="Su et al. 2021",
    laws=FORMULA
    | {
        Law.RELATIVE,
        Law.UNIQUE,
        Law.LINEAR,
        Law.ORTHOGONAL,
        Law.BOUNDED,
        Law.DIRECTED,
        Law.DECAYING_BOUND,
        Law.EXTENSIBLE,
        Law.SEPARABLE,
    },
    cost="one pass over q and k per layer",
    build=lambda shape: RoPE(shape.head_dim, axes=shape.axes),
    axes="any",
    does=(
        'turns channel pairs of q and k by an angle that grows with the position; layouts `"half"` and '
        '`"interleaved"`, partial with `rotary_dim`, a share of the channels for each of several `axes`'
    ),
    limits="angles past the training length are new to the model",
)
