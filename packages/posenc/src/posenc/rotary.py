"""Base classes of rotary schemes: frequencies, axes, layout, scaling, and the rotated channels and heads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float64, Shaped
from torch import Tensor

from posenc import compat
from posenc.arguments import check_choice, check_flag, check_type, is_number, number, shown, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.rotation import Rotation
from posenc.positions.positions import Positions
from posenc.rotation.phases import (
    OfHeads,
    PairLayout,
    PairRotation,
    TokenMap,
    coords_of,
    frequencies,
    in_double,
    phases,
    phases_by_axis,
)
from posenc.rotation.scaling_parameters import ScalingLike, read_scaling
from posenc.rotation.scalings import Scaling
from posenc.scheme import Scheme


class Rotary(Scheme):
    """Abstract base class of `RoPE` and its variants: rotates channel pairs with given frequencies, allocation of pairs
    to axes, layout and scaling.

    See `RoPE` for the arguments. Subclasses pass them or override `frequencies`.
    """

    positions_made_by: ClassVar[str | None] = None
    """How to make its positions, for the error about a wrong number of axes; None if ``axes`` is an argument."""

    def __init__(
        self,
        head_dim: int,
        base: float = 10_000.0,
        layout: PairLayout = "half",
        rotary_dim: int | None = None,
        axes: int = 1,
        *,
        allocation: Sequence[int] | None = None,
        scaling: ScalingLike | None = None,
        first_channel: int = 0,
        heads: range | None = None,
        num_heads: int | None = None,
        values: bool = False,
        imaginary: range | None = None,
    ) -> None:
        super().__init__()
        head_dim, axes = whole("head_dim", head_dim, least=2), whole("axes", axes)
        first_channel = whole("first_channel", first_channel, 0, head_dim - 2)
        room = head_dim - first_channel
        rotates_all = rotary_dim is None
        rotary_dim = room if rotary_dim is None else whole("rotary_dim", rotary_dim)
        split = 1 if allocation is not None else axes
        if rotary_dim % (2 * split) or rotary_dim > room:
            each = "" if split == 1 else f" on each of {axes} axes"
            if rotates_all and split == 1 and first_channel == 0:
                raise ValueError(f"head_dim must be even, got {head_dim}")
            room_name = "head_dim" if first_channel == 0 else "head_dim - first_channel"
            raise ValueError(f"rotary_dim must be even{each} and within 2..{room_name} = {room}, got {rotary_dim}")
        check_choice("layout", layout, ("half", "interleaved"))
        check_type("heads", heads, range, None)
        check_type("imaginary", imaginary, range, None)
        if heads is not None and imaginary is not None:
            raise ValueError(f"imaginary must be None for a rotation of some heads, {heads}, got {imaginary}")
        name, some = ("heads", heads) if imaginary is None else ("imaginary", imaginary)
        every = range(0 if num_heads is None else whole("num_heads", num_heads))
        if (some is None) != (num_heads is None):
            raise ValueError(f"{name} and num_heads must be given together, got {some}, {num_heads}")
        fits = some and some[0] in every and some[-1] in every and (some.step == 1 or some is imaginary)
        if some is not None and not fits:
            raise ValueError(f"{name} must be a non-empty range within 0..{num_heads}, got {some}")
        check_flag("values", values)
        base = number("base", base, above=1)
        if isinstance(scaling, (str, Mapping)):
            scaling = read_scaling(scaling, base, head_dim, rotary_dim, axes)
        if scaling is not None and (isinstance(scaling, type) or not callable(scaling)):
            raise ValueError(
                f"scaling must be a scaling such as YaRN(4.0, 4096), a function of theta, a dictionary of transformers "
                f"or None, got {shown(scaling)}"
            )
        self.head_dim, self.base, self.rotary_dim, self.axes = head_dim, base, rotary_dim, axes
        self.layout: PairLayout = layout
        pairs = rotary_dim // 2
        if allocation is not None and (not isinstance(allocation, Sequence) or len(allocation) != pairs):
            raise ValueError(f"allocation must be one axis for each of {pairs} pairs, got {shown(allocation)}")
        of_pairs = None if allocation is None else tuple(whole("allocation", axis, 0, axes - 1) for axis in allocation)
        self.allocation = of_pairs
        self.scaling: Scaling | None = scaling
        self.first_channel, self.values = first_channel, values
        self.heads, self.num_heads, self.imaginary = heads, num_heads, imaginary
        if type(self).frequencies is Rotary.frequencies:
            self._try_scaling()

    def _try_scaling(self) -> None:
        """Raises the errors of a scaling that does not fit these pairs, such as one of another width, when the scheme
        is made. A subclass with frequencies of its own calls it when it has what these need."""
        if self.scaling is not None and compat.is_eager():
            with torch.no_grad(), torch.device("cpu"):
                self.frequencies(lengths=torch.ones(1, dtype=torch.int64) if self.needs_lengths else None)

    @property
    def channels(self) -> range:
        """The rotated channels."""
        return range(self.first_channel, self.first_channel + self.rotary_dim)

    @property
    def needs_lengths(self) -> bool:
        return bool(getattr(self.scaling, "needs_lengths", False))

    def frequencies(
        self, device: torch.device | None = None, lengths: Tensor | None = None
    ) -> tuple[Float64[Tensor, "#rows pairs"], float | Tensor]:
        """The scaled theta of every pair, and the factor of cos and sin."""
        each = self.rotary_dim if self.allocation is not None else self.rotary_dim // self.axes
        theta = frequencies(each, self.base, device)
        if self.scaling is None:
            return theta[None], 1.0
        return _scaled(self.scaling, theta, *(() if lengths is None else (in_double(lengths)[:, None],)))

    def scaled_on_axis(self, theta: Float64[Tensor, " pairs"]) -> tuple[Float64[Tensor, "#rows pairs"], float | Tensor]:
        """The scaled theta of the pairs of one axis, and the factor of cos and sin. Raises ValueError for a scaling by
        the length of a row, which counts its tokens, and not what lies along the axis."""
        if self.needs_lengths:
            name = type(self).__name__
            raise ValueError(f"scaling must not depend on the number of tokens, for {name}, got {self.scaling!r}")
        return (theta[None], 1.0) if self.scaling is None else _scaled(self.scaling, theta)

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE) -> Rotation:
        # Small loops: on a busy machine, each would wait for its slowest thread.
        with nullcontext() if torch.compiler.is_compiling() else compat.single_threaded():
            return self._rotation(positions, dtype, context)

    def _rotation(self, positions: Positions, dtype: torch.dtype, context: Context) -> Rotation:
        coords = coords_of(positions, self.axes, type(self).__name__, self.positions_made_by)
        lengths = None
        if self.needs_lengths:
            lengths = positions.lengths if context.lengths is None else context.lengths
        theta, factor = self.frequencies(coords.device, lengths)
        if self.allocation is not None:
            angle = phases_by_axis(coords, self.allocation, theta[:, None])
        else:
            angle = torch.cat([phases(axis, theta[:, None]) for axis in coords.unbind(-1)], -1)
        shard = context.heads

        def make_rotation(factor: float | Tensor, angle: Tensor = angle) -> PairRotation:
            made = PairRotation.by(angle, coords, dtype, self.layout, self.head_dim, self.first_channel, factor)
            heads, num_heads = self._heads_of(shard)
            return made if heads is None else replace(made, heads=heads, num_heads=num_heads)

        of_key = make_rotation(factor)
        of_query: TokenMap = of_key
        if self.imaginary is not None:
            every = range(self.num_heads or 0) if shard is None else shard
            behind = torch.tensor([math.pi / 2 * (h in self.imaginary) for h in every], dtype=angle.dtype)
            late = angle[:, None] - behind[:, None, None].to(angle.device)
            of_query = OfHeads(make_rotation(factor, late), len(every), "queries")
        if not self.values:
            return Rotation(of_query, of_key)
        of_values = make_rotation(1.0)
        return Rotation(of_query, of_key, of_values, of_values.inverse())

    def _heads_of(self, shard: range | None) -> tuple[range | None, int]:
        """The rotated heads of a shard, relative to its first, and their total."""
        if self.heads is None or self.num_heads is None:
            return None, 0
        if shard is None:
            return self.heads, self.num_heads
        ends = (self.heads.start, self.heads.stop)
        return range(*(min(max(end, shard.start), shard.stop) - shard.start for end in ends)), len(shard)


class OfAllPairs(Scheme):
    """Abstract base class of schemes that rotate all pairs of channels, in one of the layouts of `RoPE`."""

    def __init__(self, head_dim: int, layout: PairLayout) -> None:
        super().__init__()
        self.head_dim = whole("head_dim", head_dim, least=2)
        if head_dim % 2:
            raise ValueError(f"head_dim must be even (channels come in pairs), got {head_dim}")
        check_choice("layout", layout, ("half", "interleaved"))
        self.layout: PairLayout = layout

    @property
    def channels(self) -> range:
        """The rotated channels: all of them."""
        return range(self.head_dim)


class PairwiseRotary(OfAllPairs):
    """Abstract base class of schemes whose rotation depends on both tokens of a pair, by frequencies
    theta_k = base^(-2k/head_dim) in the layouts of `RoPE`. A subclass overrides ``rotation``.
    """

    def __init__(self, head_dim: int, base: float, layout: PairLayout) -> None:
        super().__init__(head_dim, layout)
        self.base = number("base", base, above=1)

    @property
    def needs_raw_keys(self) -> bool:
        return True

    def rotation_at(self, coords: Shaped[Tensor, "rows tokens"], dtype: torch.dtype) -> PairRotation:
        """The rotation of all channel pairs by p theta_k for these coordinates p, in ``dtype``."""
        angle = phases(coords, frequencies(self.head_dim, self.base, coords.device))
        return PairRotation.by(angle, coords, dtype, self.layout, self.head_dim)


class ClockRotary(OfAllPairs):
    """Abstract base class of schemes that rotate channel pairs by what each layer projects from the tokens. A subclass
    has one feature that ``rotates``: a clock, summed over the tokens so far, with a number for each pair of each key
    head, or a position of each token, with one for each key head. ``frequencies`` multiply it.
    """

    heads_of = "key"

    def __init__(self, num_heads: int, head_dim: int, layout: PairLayout) -> None:
        super().__init__(head_dim, layout)
        self.num_heads = whole("num_heads", num_heads)

    def frequencies(self, device: torch.device | None = None) -> Float64[Tensor, " pairs"] | float:
        """The factor of the clock in the angle of each pair."""
        return 1.0

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE) -> Rotation:
        check_choice("dtype", dtype, (torch.float32, torch.float64))
        ((name, feature),) = self.features.items()
        theta = self.frequencies(positions.device)
        pairs = self.head_dim // 2 if feature.is_clock else None
        return Rotation.by_feature(name, ClockRotation(theta, dtype, self.layout, self.head_dim, pairs))


@dataclass(frozen=True, eq=False)
class ClockRotation:
    """The rotation by theta times the readings of a clock, (batch, key heads, tokens, pairs), or times positions,
    (batch, key heads, tokens)."""

    theta: Float64[Tensor, " pairs"] | float
    dtype: torch.dtype
    layout: PairLayout
    head_dim: int
    pairs: int | None

    def __call__(self, readings: Tensor) -> PairRotation:
        of_pairs = () if self.pairs is None else (self.pairs,)
        if readings.dim() != 3 + len(of_pairs) or readings.shape[3:] != of_pairs:
            wanted = ", ".join(map(str, ("batch", "key heads", "tokens", *of_pairs)))
            raise ValueError(f"the feature that the rotation reads must be ({wanted}), got {shown(readings)}")
        angle = in_double(readings if of_pairs else readings[..., None]) * self.theta
        return PairRotation.by(angle, readings, self.dtype, self.layout, self.head_dim)


def last_channels_start(name: str, turning: int, head_dim: int) -> int:
    """The first of the last ``turning`` channels. Raises ValueError, naming the argument, unless they are pairs."""
    head_dim, turning = whole("head_dim", head_dim, least=2), whole(name, turning, 2)
    if turning % 2 or turning > head_dim:
        raise ValueError(f"{name} must be even and within 2..head_dim = {head_dim}, got {turning}")
    return head_dim - turning


def multiple_of_4(head_dim: int, rotary_dim: int | None) -> tuple[int, int]:
    """head_dim and rotary_dim, which is head_dim if None, of a scheme for images. Raises ValueError unless rotary_dim
    is a multiple of 4: pairs of channels on each of two axes."""
    head_dim = whole("head_dim", head_dim)
    rotary_dim = head_dim if rotary_dim is None else whole("rotary_dim", rotary_dim)
    if rotary_dim % 4 or rotary_dim > head_dim:
        raise ValueError(f"rotary_dim must be a multiple of 4 within 4..head_dim = {head_dim}, got {rotary_dim}")
    return head_dim, rotary_dim


def _scaled(scaling: Scaling, *given: Tensor) -> tuple[Tensor, float | Tensor]:
    """theta', (rows or 1, pairs), and the factor of cos and sin. Raises ValueError for an invalid result: a tensor of
    two pairs could otherwise be unpacked into theta' and the factor."""
    found: Any = scaling(*given)
    pairs = given[0].numel()
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Tensor):
        theta, factor = found
        fits = theta.dtype == torch.float64 and theta.dim() in (1, 2) and theta.size(-1) == pairs
        if fits and (isinstance(factor, (Tensor, torch.SymFloat)) or (is_number(factor) and math.isfinite(factor))):
            return (theta if theta.dim() == 2 else theta[None]), factor
    raise ValueError(f"scaling must return theta' of {pairs} pairs in float64 and a factor, got {shown(found)}")
