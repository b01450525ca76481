"""Axial RoPE: rotates half of the channels by the row of a patch and half by its column, in several conventions."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from posenc.arguments import check_choice, number, shown
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.rotation import Rotation
from posenc.positions.positions import Positions
from posenc.positions.validation import extent_of
from posenc.rotary import Rotary, multiple_of_4
from posenc.rotation.phases import MapSequence, PairLayout, PairRotation, coords_of, frequencies
from posenc.rotation.scaling_parameters import ScalingLike
from posenc.schemes.entry import FORMULA, ROTARY, ROTATED_SCORE, Entry, Law, lines

Name = Literal["index", "llama4", "pe", "eva", "dinov3", "gemma4", "step3"]


@dataclass(frozen=True)
class Convention:
    """How image models differ: the base, the pairing of channels, whether pairs of columns come first, the angle of one
    coordinate unit in radians, and whether each axis has its own half of the channels, in which they are paired."""

    base: float
    layout: PairLayout
    columns_first: bool
    unit: float = 1.0
    apart: bool = False


CONVENTIONS: dict[str, Convention] = {
    "index": Convention(100.0, "interleaved", columns_first=True),
    "llama4": Convention(10_000.0, "interleaved", columns_first=True),
    "pe": Convention(10_000.0, "interleaved", columns_first=True),
    "eva": Convention(10_000.0, "interleaved", columns_first=False),
    "dinov3": Convention(100.0, "half", columns_first=False, unit=2 * math.pi),
    "gemma4": Convention(100.0, "half", columns_first=True, apart=True),
    "step3": Convention(10_000.0, "half", columns_first=True),
}


class AxialRoPE(Rotary):
    """Rotary position embedding for images: each axis rotates half of the channels, in one of several conventions.

    Formula, for a patch at coordinates (y, x), theta_k = base^(-2k/(D/2)), k = 0 .. D/4 - 1, and D = rotary_dim: D/4
    pairs are rotated by unit y theta_k and D/4 by unit x theta_k, each (a, b) -> (a cos - b sin, a sin + b cos).
    The conventions, for the patch in row i of h and column j of w:

        convention  coordinates (y, x)                        base    pairs first   channels of pair k   unit
        "index"     (i, j)                                    100     the columns'  2k, 2k + 1           1
        "llama4"    (i + 1, j + 1)                            10 000  the columns'  2k, 2k + 1           1
        "pe"        (i + 1, j + 1)                            10 000  the columns'  2k, 2k + 1           1
        "eva"       (i H/h, j W/w), (H, W) = ``extent``       10 000  the rows'     2k, 2k + 1           1
        "dinov3"    (2 (i + 1/2)/h - 1, 2 (j + 1/2)/w - 1)    100     the rows'     k, k + D/2           2 pi
        "gemma4"    (i, j)                                    100     the columns'  k, k + D/4           1
        "step3"     (i, j)                                    10 000  the columns'  k, k + D/2           1

    where "gemma4" pairs the channels within the half of each axis: k = 0 .. D/4 - 1 for columns, and D/2 more for rows.

    `grid` makes the positions of a convention; the scheme uses any coordinates. A class token or register is at the
    origin (0, 0), where every angle is 0; `grid` puts its ``prefix`` there, before the patches. Llama 4's class token
    comes last: ``positions[torch.arange(1, n + 1) % n]``. Gemma 4 counts the column before the row, so its
    ``pixel_position_ids`` are ``coords.flip(-1)``, and does not scale products: pass ``scale=1.0`` to `attention`.

    ``scaling`` maps the frequencies unit theta_k of both axes, as for `RoPE` with two axes.

    In training mode, ``grid`` of "dinov3" augments the coordinates of patches, not of the prefix, as DINOv3 does in
    training: ``shift`` adds U(-shift, shift) per axis; ``jitter`` multiplies each axis by a factor, log-uniform in
    1/jitter .. jitter; ``rescale`` multiplies both axes by one such factor; in this order.

    Shapes: coordinates (rows, tokens, 2), row before column in every convention; query and key (batch, heads, tokens,
    head_dim), any floating dtype. Nothing is learned.
    Source: "index": Heo et al. 2024, "Rotary Position Embedding for Vision Transformer", section 3.2, and
    compute_axial_cis of their code; "llama4", "dinov3", "gemma4" and "step3": transformers 5.23.0,
    Llama4VisionRotaryEmbedding, DINOv3ViTRopePositionEmbedding, Gemma4VisionRotaryEmbedding and
    Step3p7VisionRotaryEmbedding; "pe": Rope2D in copies of the code of Bolya et al. 2025, "Perception Encoder"; "eva":
    build_fourier_pos_embed of timm with ref_feat_shape.
    """

    positions_made_by = "its grid(height, width)"

    def __init__(
        self,
        head_dim: int,
        convention: Name = "index",
        base: float | None = None,
        *,
        rotary_dim: int | None = None,
        scaling: ScalingLike | None = None,
        extent: tuple[int, int] | None = None,
        shift: float | None = None,
        jitter: float | None = None,
        rescale: float | None = None,
    ) -> None:
        check_choice("convention", convention, tuple(CONVENTIONS))
        means = CONVENTIONS[convention]
        head_dim, rotary_dim = multiple_of_4(head_dim, rotary_dim)
        if (extent is None) != (convention != "eva"):
            needs = "(height, width) of the training grid" if convention == "eva" else "None"
            raise ValueError(f"extent must be {needs} for convention={convention!r}, got {shown(extent)}")
        for name, value in (("shift", shift), ("jitter", jitter), ("rescale", rescale)):
            if value is not None and convention != "dinov3":
                raise ValueError(f"{name} must be None for convention={convention!r}, got {shown(value)}")
        base = means.base if base is None else base
        axes = (1, 0) if means.columns_first else (0, 1)
        allocation = [axis for axis in axes for _ in range(rotary_dim // 4)]
        super().__init__(head_dim, base, means.layout, rotary_dim, axes=2, allocation=allocation, scaling=scaling)
        self.convention, self.extent = convention, None if extent is None else extent_of(extent)
        self.shift = None if shift is None else number("shift", shift, above=0)
        self.jitter = None if jitter is None else number("jitter", jitter, above=1)
        self.rescale = None if rescale is None else number("rescale", rescale, above=1)
        self._try_scaling()

    def grid(self, height: int, width: int, *, prefix: int = 0, device: torch.device | str | None = None) -> Positions:
        """The positions of an image's patches in raster order, after a prefix of tokens at the origin.

        To pack images of several sizes use `Positions.cat` with ``documents="new"``.

        >>> posenc.AxialRoPE(64, "llama4").grid(1, 2, prefix=1).coords
        tensor([[[0, 0], [1, 1], [1, 2]]])
        """
        raster = Positions.grid(height, width, prefix=prefix, device=device)
        if self.convention in ("index", "gemma4", "step3"):
            return raster
        index = raster.coords[:, prefix:]
        if self.convention in ("llama4", "pe"):
            patches = index + 1
        else:
            y, x = index.double().unbind(-1)
            if self.extent is not None:
                patches = torch.stack((y * (self.extent[0] / height), x * (self.extent[1] / width)), -1)
            else:
                patches = self._jitter_patches(torch.stack(((2 * y + 1) / height - 1, (2 * x + 1) / width - 1), -1))
        origin = raster.coords[:, :prefix].to(patches.dtype)
        return Positions(torch.cat((origin, patches), 1))

    def _jitter_patches(self, patches: Tensor) -> Tensor:
        """The coordinates of patches, augmented in training mode."""
        if not self.training:
            return patches

        def uniform(count: int) -> Tensor:
            return 2 * torch.rand(count, dtype=patches.dtype, device=patches.device) - 1

        if self.shift is not None:
            patches = patches + self.shift * uniform(2)
        if self.jitter is not None:
            patches = patches * (math.log(self.jitter) * uniform(2)).exp()
        if self.rescale is not None:
            patches = patches * (math.log(self.rescale) * uniform(1)).exp()
        return patches

    def frequencies(
        self, device: torch.device | None = None, lengths: Tensor | None = None
    ) -> tuple[Float64[Tensor, "#rows pairs"], float | Tensor]:
        unit = CONVENTIONS[self.convention].unit
        theta, factor = self.scaled_on_axis(unit * frequencies(self.rotary_dim // 2, self.base, device))
        return theta.repeat(1, 2), factor

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE) -> Rotation:
        coords = coords_of(positions, self.axes, "AxialRoPE", self.positions_made_by)
        if self.convention == "dinov3" and not coords.is_floating_point():
            raise ValueError(
                "AxialRoPE with convention='dinov3' takes floating coordinates from -1 to 1, made by its grid(height, "
                f"width), got {coords.dtype}"
            )
        rotation = super().rotation(positions, dtype, context)
        if not CONVENTIONS[self.convention].apart:
            return rotation
        pair_rotation, pairs = rotation.query, self.rotary_dim // 4
        assert isinstance(pair_rotation, PairRotation)
        cos, sin = pair_rotation.cos, pair_rotation.sin
        columns = replace(pair_rotation, cos=cos[..., :pairs], sin=sin[..., :pairs])
        rows = replace(pair_rotation, cos=cos[..., pairs:], sin=sin[..., pairs:], first=2 * pairs)
        both = MapSequence((columns, rows))
        return Rotation(both, both)


ENTRY = Entry(
    name="axial_rope",
    scheme=AxialRoPE,
    paper="Heo et al. 2024",
    laws=FORMULA | ROTARY | {Law.DECAYING_BOUND, Law.SEPARABLE},
    cost="one pass over q and k per layer",
    build=lambda shape: AxialRoPE(shape.head_dim, rotary_dim=shape.head_dim // 4 * 4),
    axes="two",
    does="rotates half of the channels by row, half by column, in seven conventions, by positions of its `grid`",
    limits="cannot encode diagonals: rows and columns rotate different channels",
    formula=lines(
        ROTATED_SCORE,
        r"\phi_k = u \, y \, \theta_k \mbox{ in half of the pairs,} "
        r"\allowbreak u \, x \, \theta_k \mbox{ in the others}, \qquad \theta_k = \mathrm{base}^{-4k/n}, \qquad "
        r"n = \mathrm{rotary\_dim}, \qquad u = 2 \pi \mbox{ for } \mbox{dinov3}, \mbox{ else } 1",
    ),
    example=("rope = posenc.AxialRoPE(64)\nposenc.attention(q, k, v, rope, query_positions=rope.grid(8, 8))"),
    users="DINOv3, Perception Encoder, EVA-02, the vision encoders of Llama 4, Gemma 4 and Step 3.7",
    url="https://arxiv.org/abs/2403.13298",
    avoid="**Diagonals.** A score is a part by rows plus a part by columns. `MixedRoPE` rotates each pair by both.",
)
