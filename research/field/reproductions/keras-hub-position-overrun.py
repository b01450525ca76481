"""PositionEmbedding of keras-hub gives every token the last position where one row of its table is left."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import keras_hub
import torch

LENGTH = 8

keras.utils.set_random_seed(0)
layer = keras_hub.layers.PositionEmbedding(LENGTH)
layer.build((1, LENGTH, 4))
try:
    came = layer(torch.zeros(1, 4, 4), start_index=LENGTH - 1)
    rows = len(came[0].unique(dim=0))
    said = f"an answer, of {rows} row for all 4"
except (ValueError, IndexError, RuntimeError) as error:
    rows, said = 0, f"{type(error).__name__}"

print(f"keras-hub {keras_hub.__version__}, keras {keras.__version__}, torch {torch.__version__}")
print(f"expected: an error for 4 tokens from position {LENGTH - 1} of a table of {LENGTH}")
print(f"came:     {said}")
raise SystemExit(rows > 0)
