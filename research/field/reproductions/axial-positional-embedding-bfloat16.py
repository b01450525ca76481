"""ContinuousAxialPositionalEmbedding counts in the dtype of its weights: past 256, bfloat16 has no place for each."""

from importlib.metadata import version

import torch
from axial_positional_embedding import ContinuousAxialPositionalEmbedding

SIZE = 1024

torch.manual_seed(0)
module = ContinuousAxialPositionalEmbedding(dim=64, num_axial_dims=1).bfloat16()
asked = []
module.mlps[0].register_forward_pre_hook(lambda _, inputs: asked.append(inputs[0]))
module((SIZE,))
places = len(asked[0].unique())

print(f"axial-positional-embedding {version('axial-positional-embedding')}, torch {torch.__version__}")
print(f"expected: {SIZE} places along an axis of {SIZE}")
print(f"came:     {places}")
raise SystemExit(places < SIZE)
