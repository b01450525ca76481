"""LearnedPositionalEmbedding of fair-esm does not take padding_idx=None, of which its documentation speaks."""

from importlib.metadata import version

import torch
from esm.modules import LearnedPositionalEmbedding

try:
    out = LearnedPositionalEmbedding(8, 4, padding_idx=None)(torch.tensor([[0, 1, 2]]))
    came = f"vectors of shape {tuple(out.shape)}"
except TypeError as error:
    came = f"TypeError: {str(error).splitlines()[0]}"

print(f"fair-esm {version('fair-esm')}, torch {torch.__version__}")
print('expected: "by setting padding_idx to None and ensuring that the appropriate position ids are passed", vectors')
print(f"came:     {came}")
raise SystemExit("vectors" not in came)
