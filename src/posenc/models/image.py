"""A small vision Transformer that takes any scheme, of one coordinate per patch or of two."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.arguments import check_flag, check_type, shown, whole
from posenc.models.transformer import Trunk, check_trunk
from posenc.positions.positions import Positions
from posenc.schedule import Schedule
from posenc.scheme import Scheme


class ImageClassifier(nn.Module):
    """Square patches as tokens, the blocks of `Encoder`, the mean over patches, and a score for each class.

    Every patch stands at its row and column. With ``raster`` it has one coordinate instead, counted along the rows, for
    schemes that take no more. Images may have any size that patches fill: what a scheme has no position for is its own
    error. See `Trunk` for ``inject`` and ``per_layer``.

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
        """The score of each class. Positions, of the patches row by row, default to those of the class's description.

        Raises ValueError for a size that is no whole number of patches, and for images and positions that are not for
        this model.
        """
        weight = self.embedding.weight
        if not isinstance(images, Tensor) or images.dim() != 4 or images.size(1) != self.channels:
            raise ValueError(f"images must be a tensor (batch, {self.channels}, height, width), got {shown(images)}")
        if images.device != weight.device:
            raise ValueError(f"images must be on {weight.device} like the model, got {images.device}")
        kind = images.device.type
        casts = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        if not images.is_floating_point() or (images.dtype != weight.dtype and not casts):
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
