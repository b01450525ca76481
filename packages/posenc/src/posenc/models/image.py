"""A small vision Transformer that takes any scheme, with one or two coordinates per patch."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from posenc import compat
from posenc.arguments import check_flag, check_type, shown, whole
from posenc.models.transformer import Trunk, check_trunk
from posenc.positions.positions import Positions
from posenc.schedule import Schedule
from posenc.scheme import Scheme


class ImageClassifier(nn.Module):
    """A vision Transformer: square patches as tokens, the blocks of `Encoder`, mean pooling and a linear head.

    A patch's coordinates are its row and column or, with ``raster``, its index in raster order, for schemes that take
    one coordinate. Images may have any size that is a multiple of ``patch``; a scheme raises its own error for
    positions that it cannot encode. See `Trunk` for ``inject`` and ``per_layer``.

    >>> model = ImageClassifier(10, patch=2, dim=64, num_layers=2, num_heads=4, position=posenc.Relative2D((4, 4), 16))
    >>> model(torch.rand(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        num_classes: int,
        patch: int,
        dim: int,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        channels: int = 1,
        raster: bool = False,
        position: Scheme | Schedule | None = None,
        inject: Literal["input", "every_layer"] = "input",
        per_layer: bool = False,
    ) -> None:
        super().__init__()
        for name, size in (("num_classes", num_classes), ("patch", patch), ("channels", channels)):
            whole(name, size)
        check_flag("raster", raster)
        check_trunk(dim, num_layers, num_heads, num_kv_heads, position, inject, per_layer)
        self.patch, self.channels, self.raster = patch, channels, raster
        self.embedding = nn.Linear(channels * patch * patch, dim)
        self.head = nn.Linear(dim, num_classes)
        self.trunk = Trunk(dim, num_layers, num_heads, num_kv_heads, position, inject, per_layer, is_causal=False)

    def forward(
        self, images: Float[Tensor, "batch channels height width"], positions: Positions | None = None
    ) -> Float[Tensor, "batch classes"]:
        """The logits of the classes. ``positions`` of the patches, in raster order, default to the class docstring's.

        Raises ValueError for an image size that is not a multiple of the patch, and for images and positions that do
        not match the model.
        """
        weight = self.embedding.weight
        if not isinstance(images, Tensor) or images.dim() != 4 or images.size(1) != self.channels:
            raise ValueError(f"images must be a tensor (batch, {self.channels}, height, width), got {shown(images)}")
        if images.device != weight.device:
            raise ValueError(f"images must be on {weight.device} like the model, got {images.device}")
        if not images.is_floating_point() or (images.dtype != weight.dtype and not compat.is_autocast(images)):
            raise ValueError(f"images must be {weight.dtype} like the model, got {images.dtype}")
        check_type("positions", positions, Positions, None)
        height, width = images.shape[-2:]
        if height % self.patch or width % self.patch or not height or not width:
            raise ValueError(f"images must be a whole number of patches of {self.patch}, got {height} x {width}")
        rows, columns = height // self.patch, width // self.patch
        if positions is None and self.raster:
            positions = Positions.arange(rows * columns, device=images.device)
        elif positions is None:
            positions = Positions.grid(rows, columns, device=images.device)
        patches = F.unfold(images, self.patch, stride=self.patch).mT
        return self.head(self.trunk(self.embedding(patches), positions, None).mean(1))
