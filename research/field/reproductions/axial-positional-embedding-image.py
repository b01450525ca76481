"""AxialPositionalEmbeddingImage gives an image that is not of its axial shape the places of other patches."""

from importlib.metadata import version

import torch
from axial_positional_embedding import AxialPositionalEmbeddingImage

module = AxialPositionalEmbeddingImage(dim=2, axial_shape=(4, 4), axial_dims=(1, 1))
with torch.no_grad():
    for weight in module.pos_emb.weights:  # so that a vector reads (row, column)
        weight.copy_(torch.arange(4.0).view(weight.shape))
    try:
        places = module(torch.zeros(1, 2, 2, 2))[0].flatten(1).T.int().tolist()
    except (AssertionError, ValueError, RuntimeError) as error:
        places = f"{type(error).__name__}: {error}"

expected = [[0, 0], [0, 1], [1, 0], [1, 1]]
print(f"axial-positional-embedding {version('axial-positional-embedding')}, torch {torch.__version__}")
print(f"expected: an error, or for an image of 2 by 2 the rows and columns {expected}")
print(f"came:     {places}")
raise SystemExit(isinstance(places, list) and places != expected)
