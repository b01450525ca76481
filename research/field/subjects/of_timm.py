"""timm: rotations of patches, resized tables, biases of windows, and shifted windows, as its models call them.

timm imports torchvision, which these do not use: names stand in its place where it is not installed.
"""

import importlib
import importlib.util
import sys
from unittest.mock import MagicMock

import torch

from posenc_check import Bias, Layer, NotApplicableError
from posenc_check.subjects import attend


def part(module, name):
    if "torchvision" not in sys.modules and importlib.util.find_spec("torchvision") is None:
        for stand_in in ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets"):
            sys.modules["torchvision" + stand_in] = MagicMock()
    return getattr(importlib.import_module(f"timm.{module}"), name)


def build(module, name, **options):
    return part(module, name)(**options)


def attend_patches(x, rotations, padding, half):
    """Attention of three heads: queries and keys are the rotated halves of x, values the second as it is."""
    query, value = (t.unflatten(2, (3, 16)).transpose(1, 2) for t in x.chunk(2, 2))
    query, key = (part("layers", "apply_rot_embed_cat")(t, rotations, half=half) for t in (query, value))
    seen = torch.ones(*x.shape[:2], dtype=torch.bool, device=x.device) if padding is None else padding
    out = attend(query, key, value, seen[:, None, :].expand(-1, x.size(1), -1))[0]
    return out.transpose(1, 2).flatten(2)


def rotated(module, x, grid=None, padding=None):
    """Patches in raster order, pairs next to one another; without a grid, one row."""
    return attend_patches(x, module.get_embed(grid or (1, x.size(1))).to(x), padding, half=False)


def rotated_half(module, x, grid=None, padding=None):
    """The channels of a pair half a head apart."""
    return attend_patches(x, module.get_embed(grid or (1, x.size(1))).to(x), padding, half=True)


def rotated_mixed(module, x, grid=None, padding=None):
    """By the frequencies of the first layer, of each head its own."""
    return attend_patches(x, module.get_embed(grid or (1, x.size(1)))[0].to(x), padding, half=False)


class Table(torch.nn.Module):
    """A learned table of 4 x 6 places, resampled to the grid at hand, as in a ViT with dynamic_img_size."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(1, 24, 32))


def add_table(module, x, grid=None):
    resample = part("layers", "resample_abs_pos_embed")
    return x + resample(module.table, grid or (1, x.size(1)), (4, 6), num_prefix_tokens=0)


def add_fourier(module, x, grid=None):
    """XCiT's: its sines, put through a linear layer."""
    height, width = grid or (1, x.size(1))
    return x + module(1, height, width).flatten(2).transpose(1, 2)


def bias_of_window(module, query_positions, key_positions):
    """The bias of patches at any places of its window of 5 x 6."""
    places = torch.cat((query_positions, key_positions), 1)
    if places.min() < 0 or (places.amax((0, 1)) >= torch.tensor([5, 6])).any():
        raise NotApplicableError("the window has no such place")
    asked, keys = (p[..., 0] * 6 + p[..., 1] for p in (query_positions, key_positions))
    bias = module.get_bias().flatten(0, -3)  # (heads, places, places), some with an axis for the batch in front
    return torch.stack([bias[:, a][:, :, k] for a, k in zip(asked, keys, strict=True)])


def attend_windows(module, x, grid=None):
    return module(x.unflatten(1, grid or (1, x.size(1)))).flatten(1, 2)


ROPE = "layers.pos_embed_sincos"
cat = Layer(
    build=build,
    call=rotated,
    options={"module": ROPE, "name": "RotaryEmbeddingCat", "dim": 16, "in_pixels": False},
    dim=96,
    axes=2,
    relative=True,
    varied={"temperature": 100.0, "grid_indexing": "xy"},
)
pixels = Layer(
    build=build,
    call=rotated,
    options={"module": ROPE, "name": "RotaryEmbeddingCat", "dim": 16, "max_res": 32},
    dim=96,
    axes=2,
    relative=True,
    varied={"max_res": 64, "linear_bands": True},
)
mixed = Layer(
    build=build,
    call=rotated_mixed,
    options={"module": ROPE, "name": "RotaryEmbeddingMixed", "dim": 48, "depth": 2, "num_heads": 3},
    dim=96,
    axes=2,
    relative=True,
)
dinov3 = Layer(
    build=build,
    call=rotated_half,
    options={"module": ROPE, "name": "RotaryEmbeddingDinoV3", "dim": 16},
    dim=96,
    axes=2,
    relative=True,
    varied={"temperature": 10.0},
)
mrope = Layer(
    build=build,
    call=rotated_half,
    options={"module": ROPE, "name": "RotaryEmbeddingMRope", "dim": 16, "mrope_section": (2, 3, 3)},
    dim=96,
    axes=2,
    relative=True,
)
table = Layer(build=Table, call=add_table, axes=2)
fourier = Layer(
    build=build,
    call=add_fourier,
    options={"module": "models.xcit", "name": "PositionalEncodingFourier", "hidden_dim": 8, "dim": 32},
    axes=2,
)
window = Bias(
    build=build,
    call=bias_of_window,
    options={"module": "layers.pos_embed_rel", "name": "RelPosBias", "window_size": (5, 6), "num_heads": 3},
    axes=2,
    relative=True,
    max_positions=5,
    jitter=1.0,
)
window_mlp = Bias(
    build=build,
    call=bias_of_window,
    options={
        "module": "layers.pos_embed_rel",
        "name": "RelPosMlp",
        "window_size": (5, 6),
        "num_heads": 3,
        "mode": "swin",
    },
    axes=2,
    relative=True,
    max_positions=5,
)
window_tf = Bias(
    build=build,
    call=bias_of_window,
    options={"module": "layers.pos_embed_rel", "name": "RelPosBiasTf", "window_size": (5, 6), "num_heads": 3},
    axes=2,
    relative=True,
    max_positions=5,
    jitter=1.0,
)
swin = Layer(
    build=build,
    call=attend_windows,
    options={
        "module": "models.swin_transformer",
        "name": "SwinTransformerBlock",
        "dim": 32,
        "input_resolution": (5, 9),
        "num_heads": 2,
        "window_size": 4,
        "shift_size": 2,
        "always_partition": True,
        "dynamic_mask": True,
    },
    axes=2,
    jitter=0.1,
)

SUBJECTS = (
    ("RotaryEmbeddingCat", cat),
    ("RotaryEmbeddingCat, in pixels", pixels),
    ("RotaryEmbeddingMixed", mixed),
    ("RotaryEmbeddingDinoV3", dinov3),
    ("RotaryEmbeddingMRope", mrope),
    ("resample_abs_pos_embed", table),
    ("PositionalEncodingFourier", fourier),
    ("RelPosBias", window),
    ("RelPosMlp", window_mlp),
    ("RelPosBiasTf", window_tf),
    ("Swin, shifted windows", swin),
)
