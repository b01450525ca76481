"""A small vision Transformer that takes any scheme, of one coordinate per patch or of two."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.encoding import Scheme
from posenc.models.transformer import Trunk
from posenc.positions import Positions


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
        position: Scheme | None = None,
        inject: Literal["input", "every_layer"] = "input",
        per_layer: bool = False,
    ) -> None:
        super().__init__()
        for name, size in (("num_classes", num_classes), ("patch", patch), ("channels", channels)):
            if size < 1:
                raise ValueError(f"{name} must be positive, got {size}")
        self.patch, self.raster = patch, raster
        self.embedding = nn.Linear(channels * patch * patch, dim)
        self.head = nn.Linear(dim, num_classes)
        self.trunk = Trunk(dim, num_layers, num_heads, num_kv_heads, position, inject, per_layer, is_causal=False)

    def forward(
        self, images: Float[Tensor, "batch channels height width"], positions: Positions | None = None
    ) -> Float[Tensor, "batch classes"]:
        """The score of each class. Positions, of the patches row by row, default to those of the class's description.

        Raises ValueError for a size that is no whole number of patches.
        """
        height, width = images.shape[-2:]
        if height % self.patch or width % self.patch:
            raise ValueError(f"images must be a whole number of patches of {self.patch}, got {height} x {width}")
        rows, columns = height // self.patch, width // self.patch
        if positions is None and self.raster:
            positions = Positions.arange(rows * columns, device=images.device)
        elif positions is None:
            positions = Positions.grid(rows, columns, device=images.device)
        patches = F.unfold(images, self.patch, stride=self.patch).mT
        return self.head(self.trunk(self.embedding(patches), positions, None).mean(1))
