"""rotary-embedding-torch with xPos cannot be copied or pickled."""

import copy
import pickle
from importlib.metadata import version

import torch
from rotary_embedding_torch import RotaryEmbedding

rotary = RotaryEmbedding(16, use_xpos=True)
came = []
for name, make in (("deepcopy", copy.deepcopy), ("pickle", pickle.dumps)):
    make(RotaryEmbedding(16))  # without xPos it works
    try:
        make(rotary)
    except (TypeError, pickle.PicklingError) as error:
        came.append(f"{name}: {type(error).__name__}: {error}")

print(f"rotary-embedding-torch {version('rotary-embedding-torch')}, torch {torch.__version__}")
print("expected: a copy, and a pickle")
print("came:     " + ("; ".join(came) or "both"))
raise SystemExit(bool(came))
