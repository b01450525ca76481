"""XLNet of keras-hub mixes the relative positions of the rows of a batch."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import keras_hub
import torch
from keras_hub.src.models.xlnet.xlnet_content_and_query_embedding import ContentAndQueryEmbedding

layer = ContentAndQueryEmbedding(vocabulary_size=32, hidden_dim=16, dropout=0.0)
ids = torch.arange(4)[None].expand(2, -1)
_, alone = layer(ids[:1])
_, together = layer(ids)


def distances(row):
    """Of which distance each vector is: its first channel is sin(distance)."""
    choices = torch.arange(-4, 5)
    return choices[(row[:, None, 0] - choices.sin()).abs().argmin(1)].tolist()


expected = distances(alone[0])
came = [distances(row) for row in together]

print(f"keras-hub {keras_hub.__version__}, keras {keras.__version__}, torch {torch.__version__}")
print(f"expected: of 4 tokens, the distances {expected} in each row")
print(f"came:     in a batch of 2, {came[0]} in the first row and {came[1]} in the second")
raise SystemExit(came != [expected, expected])
