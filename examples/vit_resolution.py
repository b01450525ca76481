"""A vision Transformer made for 8 x 8 patches, run on images of 12 x 12 patches.

Its class token and registers are prefix tokens: they stand at (0, 0), where a rotation turns nothing. The larger grid
is laid over the one that the model was made for, ``grid(12, 12, extent=(8, 8))``: no patch stands further out than it
has seen, and the rotation is smooth between the old places.

1. The patches of the larger grid lie within the extent of the small one; an extent that is the grid changes nothing.
2. The model runs on both grids with the same weights.
3. It sees the same smooth picture in both: the class token differs less with the extent than with plain coordinates.

Run: python examples/vit_resolution.py
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import posenc
from posenc import Positions
from posenc.models import ForwardPass

PATCH, DIM, HEADS, LAYERS, PREFIX = 4, 64, 4, 2, 5  # a class token and four registers
SMALL, LARGE = 8, 12  # patches along each side


class Block(nn.Module):
    """Attention and an MLP, pre-norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))
        self.project, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x: Tensor, step: ForwardPass) -> Tensor:
        query, key, value = self.project(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(step.attention(query, key, value).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class ViT(nn.Module):
    """Patches, prefix tokens and blocks; gives the vector of the class token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(PATCH * PATCH, DIM)
        self.prefix = nn.Parameter(torch.randn(1, PREFIX, DIM))
        self.scheme = posenc.RoPE(DIM // HEADS, base=100.0, axes=2)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, images: Tensor, extent: tuple[int, int] | None = None) -> Tensor:
        height, width = (side // PATCH for side in images.shape[-2:])
        positions = Positions.grid(height, width, extent=extent, prefix=PREFIX)
        step = ForwardPass(self.scheme, positions, is_causal=False)
        patches = self.embedding(F.unfold(images, PATCH, stride=PATCH).mT)
        x = step.add(torch.cat((self.prefix.expand(len(images), -1, -1), patches), 1))
        for block in self.blocks:
            x = block(x, step)
        return x[:, 0]


def pictures(patches: int) -> Tensor:
    """Sixteen smooth pictures, the same at every resolution but for the number of patches."""
    generator = torch.Generator().manual_seed(1)
    coarse = torch.randn(16, 1, 4, 4, generator=generator)
    levels = F.interpolate(coarse, size=(patches, patches), mode="bilinear")
    return levels.repeat_interleave(PATCH, -1).repeat_interleave(PATCH, -2)  # one level to a patch


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    model = ViT()
    small, large = pictures(SMALL), pictures(LARGE)
    coords = Positions.grid(LARGE, LARGE, extent=(SMALL, SMALL), prefix=PREFIX).coords[0, PREFIX:]
    print(f"coordinates of {LARGE} x {LARGE} patches over {SMALL} x {SMALL}: {coords.min():.3f} to {coords.max():.3f}")
    as_made = model(small)
    same = model(small, extent=(SMALL, SMALL))
    print(f"the same grid as its own extent changes the class token by {float((same - as_made).abs().max()):.1e}")
    for name, extent in (("with the extent", (SMALL, SMALL)), ("with plain coordinates", None)):
        apart = float((model(large, extent=extent) - as_made).norm() / as_made.norm())
        print(f"{LARGE} x {LARGE} patches {name} change it by {apart:.4f} of its norm")


if __name__ == "__main__":
    main()
