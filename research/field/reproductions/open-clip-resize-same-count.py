"""A table of positions for 8 x 8 patches is loaded into a model of 4 x 16 as it is."""

import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch

for name in ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets"):
    stand_in = MagicMock(__spec__=ModuleSpec("torchvision" + name, None))
    sys.modules["torchvision" + name] = stand_in  # it is imported, and this does not need it

import open_clip
from open_clip.model import resize_pos_embed

table = torch.cat((torch.zeros(1), torch.arange(8.0).repeat_interleave(8)))[:, None]  # its row, for each patch
state = {"visual.positional_embedding": table}
resize_pos_embed(state, SimpleNamespace(visual=SimpleNamespace(grid_size=(4, 16))))
rows = state["visual.positional_embedding"][1:, 0].view(4, 16)
apart = float((rows[:, 0] - rows[:, -1]).abs().max())

print(f"open_clip {open_clip.__version__}, torch {torch.__version__}")
print("expected: patches of one row of 4 x 16 at one height")
print(f"came:     the first and the last patch of a row are {apart:.3g} rows apart")
raise SystemExit(apart > 0.01)
