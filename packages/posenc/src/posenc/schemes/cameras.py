"""Cameras: multiplies channels of queries, keys, values and the output by matrices of the camera that saw the patch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from posenc import compat
from posenc.arguments import number, one_or, shown, sides, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.rotation import Rotation
from posenc.positions.positions import PADDING, Positions
from posenc.positions.tiles import check_index
from posenc.positions.validation import is_readable
from posenc.rotation.phases import (
    MapSequence,
    PairRotation,
    TokenMap,
    check_fits,
    coords_of,
    frequencies,
    in_double,
    phases,
)
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Law, lines


class Cameras(Scheme):
    """Cameras as relative positions of patches from several views: PRoPE of Li et al. 2025, and GTA.

    Formula, for a patch of view n at row y and column x, with the world-to-camera matrix T_n and the intrinsics K_n:

        q -> D(P_n^T) q,   k -> D(P_n^-1) k,   v -> D(P_n^-1) v,   o -> D(P_n) o
        P_n = [K_n 0; 0 1] T_n,  4 x 4

    D(M) multiplies each four of the first c = ``camera_dim`` channels by M. The next r = ``rotary_dim`` channels are
    rotated in D(.) of queries, keys and values, and back in that of the output: half of them by the column x, then
    half by the row y, each by -p theta_m, theta_m = base^(-4m/r), in pairs (m, m + r/4) of the half. The others are
    unchanged. So scores and outputs depend only on P_i P_j^-1, which maps what one camera sees to what another sees,
    and not on the choice of the world's axes and origin.

    Without ``intrinsics`` K is the identity, and the formula is that of GTA. Otherwise ``image`` is the (height, width)
    of the images that they are for, in the same unit, and K_n is that of an image of side 1 whose middle is the origin:
    focal lengths, skew and center are divided by width or height, and 1/2 is subtracted from the center.

    Poses from camera to world, which no check can tell apart, are the inverses of T: pass ``poses.inverse()``.

    Cameras are data: make the scheme for every batch. Calling it costs a 4 x 4 inverse per camera; gradients reach
    ``cameras`` and ``intrinsics``. For a single view it is an axial RoPE of values too.

    Shapes: cameras (views, 4, 4) or (rows, views, 4, 4), the last row (0, 0, 0, 1); intrinsics (views, 3, 3) or (rows,
    views, 3, 3), the last row (0, 0, 1); coordinates (rows, tokens, 3), int64: view, row, column, as
    ``Positions.grid(height, width, frames=views)`` gives. Query, key and value (batch, heads, tokens, head_dim), values
    as wide as keys. Nothing is learned.
    Errors: PositionError for a view without a camera; ValueError for other shapes, a last row that is not as above or
    matrices without an inverse (where they can be read), intrinsics without ``image`` or the reverse, a camera_dim or
    rotary_dim that is not a multiple of 4 within head_dim, and fractional coordinates.
    Source: Li et al. 2025, "Cameras as Relative Positional Encoding" (arXiv 2507.10496), after the authors' code, which
    has c = r = d/2, base 100 and no skew, and inverts T as a rigid motion; Miyato et al. 2024, "GTA: A Geometry-Aware
    Attention Mechanism for Multi-View Transformers" (arXiv 2310.10375), in the form of that code. For p-RoPE of Barbero
    et al. see `Proportional`.
    """

    def __init__(
        self,
        head_dim: int,
        cameras: Tensor,
        intrinsics: Tensor | None = None,
        image: Sequence[int] | None = None,
        *,
        camera_dim: int | None = None,
        rotary_dim: int | None = None,
        base: float = 100.0,
    ) -> None:
        super().__init__()
        self.head_dim = whole("head_dim", head_dim, least=4)
        self.camera_dim = self.head_dim // 2 if camera_dim is None else whole("camera_dim", camera_dim)
        room = self.head_dim - self.camera_dim
        self.rotary_dim = room if rotary_dim is None else whole("rotary_dim", rotary_dim, least=0)
        if self.camera_dim % 4 or self.rotary_dim % 4 or self.rotary_dim > room:
            raise ValueError(
                "camera_dim and rotary_dim must be multiples of 4 with a sum of at most head_dim = "
                f"{self.head_dim}, got {self.camera_dim} and {self.rotary_dim}"
            )
        self.base = number("base", base, above=1)
        self.cameras = _matrices("cameras", cameras, 4)
        self.intrinsics = None if intrinsics is None else _matrices("intrinsics", intrinsics, 3)
        self.image = None if image is None else sides(image, "image")
        if (intrinsics is None) != (image is None):
            raise ValueError(
                "intrinsics and image must be given together, since intrinsics are in the unit of the image's height "
                f"and width, got {shown(intrinsics)} and {shown(image)}"
            )
        if self.intrinsics is not None and not all(
            one_or(n, m) for n, m in zip(self.intrinsics.shape[:2], self.cameras.shape[:2], strict=True)
        ):
            raise ValueError(
                f"intrinsics must be of as many views as cameras, got {shown(intrinsics)}, {shown(cameras)}"
            )

    def projections(self) -> Float64[Tensor, "rows views 4 4"]:
        """P of every view."""
        cameras = in_double(self.cameras)
        if self.intrinsics is None or self.image is None:
            return cameras
        height, width = self.image
        unit = cameras.new_ones(3, 3)
        unit[0], unit[1] = 1 / width, 1 / height
        middle = torch.zeros_like(unit)
        middle[:2, 2] = 0.5
        inner = in_double(self.intrinsics) * unit - middle
        lifted = torch.nn.functional.pad(inner, (0, 1, 0, 1))
        corner = torch.zeros_like(cameras[0, 0])
        corner[3, 3] = 1
        return (lifted + corner) @ cameras

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE) -> Rotation:
        coords = coords_of(positions, 3, "Cameras", "Positions.grid(height, width, frames=views)")
        if coords.dtype != torch.int64:
            raise ValueError(f"Cameras looks cameras up by their view and needs int64 coordinates, got {coords.dtype}")
        rows, views = self.cameras.shape[:2]
        view = coords[..., 0].masked_fill(positions.document == PADDING, 0)
        check_index(view, views, "Cameras", "views")
        if not one_or(rows, view.size(0)) and view.size(0) != 1:
            raise ValueError(f"positions must have 1 or {rows} rows like the cameras, got {view.size(0)}")
        row = torch.arange(rows, device=view.device)[:, None]

        def each(matrices: Tensor) -> Tensor:
            return matrices.to(dtype=dtype, device=coords.device)[row, view]

        projections = self.projections()
        inverses, _ = torch.linalg.inv_ex(projections)
        rotations: list[PairRotation] = []
        if self.rotary_dim:
            theta = frequencies(self.rotary_dim // 2, self.base, coords.device)
            for n, axis in enumerate((2, 1)):
                first = self.camera_dim + n * self.rotary_dim // 2
                angle = -phases(coords[..., axis], theta)
                rotations.append(PairRotation.by(angle, coords, dtype, "half", self.head_dim, first))

        def together(matrices: Tensor, rotations: Sequence[TokenMap]) -> TokenMap:
            return MapSequence((EachFour(each(matrices), self.camera_dim, self.head_dim), *rotations))

        of_keys = together(inverses, rotations)
        back = [rotation.inverse() for rotation in rotations]
        return Rotation(together(projections.mT, rotations), of_keys, of_keys, together(projections, back))


@dataclass(frozen=True, eq=False)
class EachFour:
    """Multiplies each four of the first ``channels`` channels of x (batch, heads, tokens, head_dim) by the token's
    matrix. Half-precision x is multiplied in float32 and rounded once."""

    matrices: Float[Tensor, "rows tokens 4 4"]
    channels: int
    head_dim: int

    def __call__(self, x: Float[Tensor, "batch heads tokens head_dim"]) -> Float[Tensor, "batch heads tokens head_dim"]:
        if x.size(-1) != self.head_dim:
            raise ValueError(f"the cameras are for head_dim {self.head_dim}, got q, k or v of head_dim {x.size(-1)}")
        check_fits("the rotation", (self.matrices.size(0), 1, self.matrices.size(1)), x)
        dtype = torch.promote_types(x.dtype, torch.float32)
        fours = x[..., : self.channels].to(dtype).unflatten(-1, (-1, 4))
        with compat.without_autocast(x):
            mapped = (fours @ self.matrices.to(dtype)[:, None].mT).flatten(-2).to(x.dtype)
        return torch.cat((mapped, x[..., self.channels :]), -1)


def _matrices(name: str, matrices: Tensor, size: int) -> Float[Tensor, "rows views n n"]:
    """(rows, views, size, size). Raises ValueError for anything else, for another last row than (0, .., 0, 1), and for
    matrices without an inverse."""
    fits = isinstance(matrices, Tensor) and matrices.is_floating_point() and matrices.dim() in (3, 4)
    if not fits or matrices.shape[-2:] != (size, size) or 0 in matrices.shape:
        raise ValueError(
            f"{name} must be a floating tensor (views, {size}, {size}) or (rows, views, {size}, {size}), got "
            f"{shown(matrices)}"
        )
    if is_readable(matrices.detach()):
        last = torch.eye(size, device="cpu")[-1]
        if not torch.equal(matrices.detach().float()[..., -1, :], last.expand(matrices.shape[:-1])):
            raise ValueError(
                f"{name} must have the last row {tuple(map(int, last))}, got another: they multiply columns from the "
                "left"
            )
        if not (matrices.detach().double().det().abs() > 0).all():
            raise ValueError(f"{name} must have an inverse, got a matrix that has none")
    return matrices if matrices.dim() == 4 else matrices[None]


def around(views: int) -> Float64[Tensor, "views 4 4"]:
    """Cameras that look at the origin from a circle around it, at changing distances."""
    # As data they are never on the meta device, on which a scheme may be built.
    n = torch.arange(views, dtype=torch.float64, device="cpu")
    cameras = torch.eye(4, dtype=torch.float64, device="cpu").repeat(views, 1, 1)
    angle = 0.3 * n
    cameras[:, 0, 0] = cameras[:, 2, 2] = angle.cos()
    cameras[:, 0, 2] = angle.sin()
    cameras[:, 2, 0] = -angle.sin()
    cameras[:, 2, 3] = 2 + (0.7 * n).sin()
    return cameras


def _build(head_dim: int, views: int) -> Cameras:
    camera_dim = max(4, head_dim // 8 * 4)
    return Cameras(head_dim, around(views), camera_dim=camera_dim, rotary_dim=(head_dim - camera_dim) // 4 * 4)


ENTRY = Entry(
    name="cameras",
    scheme=Cameras,
    paper="Li et al. 2025",
    laws=frozenset({Law.ABSOLUTE, Law.UNIQUE, Law.BOUNDED, Law.DIRECTED, Law.DETERMINISTIC, Law.PARAMETER_FREE}),
    cost="a product of 4 per channel of half of q, k, v and the output, and one pass over the rest, per layer",
    build=lambda shape: _build(shape.head_dim, max(shape.max_positions, 1 if shape.grid is None else shape.grid[0])),
    axes="three",
    does="multiplies channels of q, k, v and the output by matrices of a patch's camera: PRoPE of Li et al., GTA",
    limits="needs the cameras of all views; not p-RoPE, which is RoPE with the scaling Proportional",
    formula=lines(
        r"s_{ij} = \frac{q_i^{T} D_{ij} \, k_j}{\sqrt{d}}, \qquad o_i = \sum_j a_{ij} \, D_{ij} \, v_j, \qquad "
        r"P_n = \mathrm{diag}(K_n, 1) \, T_n \mbox{ of view } n",
        r"D_{ij} \mbox{ multiplies by } P_{n_i} P_{n_j}^{-1} "
        r"\allowbreak \mbox{each four of the first channels} \qquad "
        r"\mbox{and turns pairs of the next } c \mbox{ channels} "
        r"\allowbreak \mbox{by } (x_i - x_j) \, \theta_m \mbox{ or } (y_i - y_j) \, \theta_m, \qquad "
        r"\theta_m = \mathrm{base}^{-4m/c}, \qquad c = \mathrm{rotary\_dim}",
    ),
    example=(
        "cameras = torch.eye(4).repeat(4, 1, 1)  # world to camera, for each of 4 views\n"
        "positions = posenc.Positions.grid(4, 4, frames=4)\n"
        "posenc.attention(q, k, v, posenc.Cameras(64, cameras), query_positions=positions)"
    ),
    users="LVSM with PRoPE, GTA",
    url="https://arxiv.org/abs/2507.10496",
    avoid="**One camera, or unknown ones.** Use `AxialRoPE` for an image, and `RoPE3D` for a video.",
)
