"""axial-positional-embedding: what it gives is added to tokens, as its README does, or to images of its axial shape."""

import torch
from axial_positional_embedding import (
    AxialPositionalEmbedding,
    AxialPositionalEmbeddingImage,
    ContinuousAxialPositionalEmbedding,
)

from posenc_check import Layer


def add(module, x):
    return x + module(x)


def add_to_image(module, x, grid=None):
    """Images are (rows, dim, height, width). Without a grid, as much of the first row."""
    if grid is None:
        grid = (1, x.size(1))
    image = x.unflatten(1, grid).permute(0, 3, 1, 2)
    return (image + module(image)).permute(0, 2, 3, 1).flatten(1, 2)


def add_continuous(module, x, grid=None):
    return x + module(grid or (1, x.size(1)), flatten=True)


summed = Layer(
    build=AxialPositionalEmbedding,
    call=add,
    options={"dim": 32, "axial_shape": (8, 16)},
    relative=False,
    max_positions=128,
)
joined = Layer(
    build=AxialPositionalEmbedding,
    call=add,
    options={"dim": 32, "axial_shape": (8, 16), "axial_dims": (20, 12)},
    relative=False,
    max_positions=128,
)
image = Layer(
    build=AxialPositionalEmbeddingImage,
    call=add_to_image,
    options={"dim": 32, "axial_shape": (8, 8)},
    axes=2,
    max_positions=8,
    max_grid=(8, 8),
)
continuous = Layer(
    build=ContinuousAxialPositionalEmbedding,
    call=add_continuous,
    options={"dim": 32, "num_axial_dims": 2},
    axes=2,
    dtype=torch.float32,
)

SUBJECTS = (
    ("AxialPositionalEmbedding", summed),
    ("AxialPositionalEmbedding, joined", joined),
    ("AxialPositionalEmbeddingImage", image),
    ("ContinuousAxialPositionalEmbedding", continuous),
)
