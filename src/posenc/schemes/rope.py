"""RoPE: queries and keys turned by an angle that grows with their position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc.arguments import check_choice, check_flag, check_type, number, shown, whole
from posenc.encoding import Context, Rotation
from posenc.phases import PairLayout, PairRotation, coords_of, frequencies, in_double, phases, phases_by_axis
from posenc.positions import Positions
from posenc.scheme import Scheme
from posenc.schemes.entry import FORMULA, Entry, Law

Scaling: TypeAlias = Callable[..., tuple[Tensor, Any]]
"""(theta[, lengths]) -> (theta, factor): see `RoPE`."""


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

    With an ``allocation`` of axes to pairs, pair k is turned by the coordinate along axis allocation[k] and by theta_k
    as for one axis: the rotation of time, row and column that language models with images use, in sections or
    interleaved.

    A ``scaling`` takes the frequencies theta (pairs,) and, where its ``needs_lengths`` is true, the length of each row
    of the batch (rows, 1), and gives frequencies (pairs,) or (rows, pairs) and a factor of cos and sin: one of
    `posenc.scalings`, or any function. With lengths no key may be kept rotated. ``first_channel`` is the first channel
    that is turned, ``heads`` are the heads that are, of ``num_heads`` query heads; keys of fewer heads turn those that
    these queries share. With ``values`` the values are turned too, and the output is turned back at the query's
    position; a factor is of queries and keys alone.

    Shapes: query and key (batch, heads, tokens, head_dim), any floating dtype; angles are exact to float32 up to
    position 2^20 whatever the dtype. Positions may be fractional or negative.
    Errors: ValueError for a rotary_dim that is above head_dim or not a multiple of 2 axes, a base not above 1, an
    unknown layout, an allocation that is not one axis for each pair, a scaling that is no function, or positions of
    another number of axes.
    Source: Su et al. 2021, "RoFormer", equations 14, 15 and 34; Heo et al. 2024, "Rotary Position Embedding for Vision
    Transformer", whose axial form has two axes; Wang et al. 2024, "Qwen2-VL", section 2.1, for the allocation.
    """

    def __init__(
        self,
        head_dim: int,
        base: float = 10_000.0,
        layout: PairLayout = "half",
        rotary_dim: int | None = None,
        axes: int = 1,
        *,
        allocation: Sequence[int] | None = None,
        scaling: Scaling | None = None,
        first_channel: int = 0,
        heads: range | None = None,
        num_heads: int | None = None,
        values: bool = False,
    ) -> None:
        super().__init__()
        head_dim, axes = whole("head_dim", head_dim), whole("axes", axes)
        first_channel = whole("first_channel", first_channel, 0, head_dim - 2)
        room = head_dim - first_channel
        rotary_dim = room if rotary_dim is None else whole("rotary_dim", rotary_dim)
        split = 1 if allocation is not None else axes
        if rotary_dim % (2 * split) or rotary_dim > room:
            each = "" if split == 1 else f" on each of {axes} axes"
            room_name = "head_dim" if first_channel == 0 else "head_dim - first_channel"
            raise ValueError(f"rotary_dim must be even{each} and within 2..{room_name} = {room}, got {rotary_dim}")
        check_choice("layout", layout, ("half", "interleaved"))
        check_type("heads", heads, range, None)
        if (heads is None) != (num_heads is None):
            raise ValueError(
                f"heads and num_heads go together: which heads turn, of how many; got {heads}, {num_heads}"
            )
        if heads is not None and num_heads is not None:
            whole("num_heads", num_heads)
            if heads.step != 1 or not 0 <= heads.start < heads.stop <= num_heads:
                raise ValueError(f"heads must be a range within 0..{num_heads} with a head at least, got {heads}")
        check_flag("values", values)
        if scaling is not None and (isinstance(scaling, type) or not callable(scaling)):
            raise ValueError(
                f"scaling must be a scaling such as YaRN(4.0, 4096), a function of theta or None, got {shown(scaling)}"
            )
        self.head_dim, self.base, self.rotary_dim, self.axes = head_dim, number("base", base, above=1), rotary_dim, axes
        self.layout: PairLayout = layout
        self.allocation = None if allocation is None else _allocation(allocation, rotary_dim // 2, axes)
        self.scaling, self.first_channel, self.values = scaling, first_channel, values
        self.heads, self.num_heads = heads, num_heads

    @property
    def channels(self) -> range:
        """The channels that are turned."""
        return range(self.first_channel, self.first_channel + self.rotary_dim)

    @property
    def needs_lengths(self) -> bool:
        """Whether a key's rotation depends on how long its text has become, so that none may be kept rotated."""
        return bool(getattr(self.scaling, "needs_lengths", False))

    def frequencies(
        self, device: torch.device | None = None, lengths: Tensor | None = None
    ) -> tuple[Float64[Tensor, "#rows pairs"], float | Tensor]:
        """theta of every pair, scaled, and the factor of cos and sin."""
        each = self.rotary_dim if self.allocation is not None else self.rotary_dim // self.axes
        theta = frequencies(each, self.base, device)
        if self.scaling is None:
            return theta[None], 1.0
        scaled, factor = (
            self.scaling(theta, in_double(lengths)[:, None]) if lengths is not None else self.scaling(theta)
        )
        return (scaled if scaled.dim() == 2 else scaled[None]), factor

    def rotation(
        self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context | None = None
    ) -> Rotation:
        """The same turn for queries and keys."""
        check_type("positions", positions, Positions)
        check_choice("dtype", dtype, (torch.float32, torch.float64))
        coords = coords_of(positions, self.axes, "RoPE")
        lengths = None
        if self.needs_lengths:
            lengths = positions.lengths if context is None or context.lengths is None else context.lengths
        theta, factor = self.frequencies(coords.device, lengths)
        if self.allocation is not None:
            angle = phases_by_axis(coords, self.allocation, theta[:, None])
        else:
            angle = torch.cat([phases(axis, theta[:, None]) for axis in coords.unbind(-1)], -1)
        shard = None if context is None else context.heads

        def turn(factor: float | Tensor) -> PairRotation:
            made = PairRotation.by(angle, coords, dtype, self.layout, self.head_dim, self.first_channel, factor)
            heads, num_heads = self._heads_of(shard)
            return replace(made, heads=heads, num_heads=num_heads)

        of_both = turn(factor)
        if not self.values:
            return Rotation(of_both, of_both)
        of_values = turn(1.0)
        return Rotation(of_both, of_both, of_values, of_values.inverse())

    def _heads_of(self, shard: range | None) -> tuple[range | None, int]:
        """Which heads of a shard turn, counted from its first, and how many it has."""
        if self.heads is None or self.num_heads is None:
            return None, 0
        if shard is None:
            return self.heads, self.num_heads
        start, stop = (
            min(max(end, shard.start), shard.stop) - shard.start for end in (self.heads.start, self.heads.stop)
        )
        return range(start, stop), len(shard)


def _allocation(allocation: Sequence[int], pairs: int, axes: int) -> tuple[int, ...]:
    """The axis of every pair; ValueError for anything else."""
    if not isinstance(allocation, Sequence) or len(allocation) != pairs:
        raise ValueError(f"allocation must be one axis for each of {pairs} pairs, got {shown(allocation)}")
    return tuple(whole("allocation", axis, 0, axes - 1) for axis in allocation)


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
