"""open_clip: its text tower, causal and with learned positions, and the sinusoids of its image tower.

open_clip imports torchvision, which these do not use: names stand in its place where it is not installed.
"""

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

import torch

from posenc_check import Layer, Model


def part(module, name):
    if "torchvision" not in sys.modules and importlib.util.find_spec("torchvision") is None:
        for stand_in in ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets"):
            spec = ModuleSpec("torchvision" + stand_in, None)
            sys.modules["torchvision" + stand_in] = MagicMock(__spec__=spec)
    return getattr(importlib.import_module(f"open_clip.{module}"), name)


def build(**options):
    return part("transformer", "TextTransformer")(vocab_size=48, width=32, heads=2, layers=2, **options)


def call(model, ids):
    """What its layers give for each token, of a text that is filled up as its tokenizer does."""
    x, mask = model._embeds(torch.nn.functional.pad(ids, (0, max(0, model.context_length - ids.size(1)))))
    return model.ln_final(model.transformer(x, attn_mask=mask))[:, : ids.size(1)]


def sinusoids():
    return part("pos_embed", "get_2d_sincos_pos_embed")


def add(function, x, grid=None):
    """It knows squares alone, of which this takes the first rows and columns; without a grid, one row."""
    height, width = grid or (1, x.size(1))
    side = max(height, width)
    table = torch.from_numpy(function(x.size(2), side)).view(side, side, -1)
    return x + table[:height, :width].flatten(0, 1).to(x)


text = Model(build=build, call=call, options={"context_length": 64}, causal=True, relative=False, max_positions=64)
image = Layer(build=sinusoids, call=add, axes=2, relative=False)

SUBJECTS = (
    ("TextTransformer", text),
    ("get_2d_sincos_pos_embed", image),
)
