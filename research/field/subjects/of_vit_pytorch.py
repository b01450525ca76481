"""vit-pytorch: sinusoids and tables of patches, rotations of any number of axes, and a bias of the query's own making.

The package's own __init__ imports torchvision, which these do not use, so it is left out.
"""

import importlib
import importlib.util
import sys
import types

from posenc_check import Layer, Rotary


def part(module, name):
    """A name of a module, without the package's own __init__."""
    if "vit_pytorch" not in sys.modules:
        parent = types.ModuleType("vit_pytorch")
        parent.__path__ = list(importlib.util.find_spec("vit_pytorch").submodule_search_locations)
        sys.modules["vit_pytorch"] = parent
    return getattr(importlib.import_module(f"vit_pytorch.{module}"), name)


def build(module, name, **options):
    return part(module, name)(**options)


def function(module, name):
    return part(module, name)


def add_line(sinusoids, x):
    return x + sinusoids(x)


def add_raster(sinusoids, x, grid=None):
    """Without a grid, as one row."""
    height, width = grid or (1, x.size(1))
    return x + sinusoids(height, width, x.size(2)).to(x)


def rotate(module, x, positions):
    return module(x, positions)


def attend_raster(module, x, grid=None):
    """The layers take (rows, channels, height, width); without a grid, one row."""
    height, width = grid or (1, x.size(1))
    return module(x.transpose(1, 2).unflatten(2, (height, width))).flatten(2).transpose(1, 2)


def attend_last(module, x, grid=None):
    """The layers take (rows, height, width, channels); without a grid, one row."""
    return module(x.unflatten(1, grid or (1, x.size(1)))).flatten(1, 2)


sinusoids = Layer(
    build=function, call=add_line, options={"module": "simple_vit_1d", "name": "posemb_sincos_1d"}, relative=False
)
raster = Layer(
    build=function,
    call=add_raster,
    options={"module": "simple_vit", "name": "posemb_sincos_2d"},
    axes=2,
    relative=False,
)
golden_gate = Rotary(
    build=build,
    call=rotate,
    options={"module": "vit_nd_rotary", "name": "GoldenGateRoPENd", "dim_pos": 2, "heads": 3, "dim_head": 16},
    axes=2,
    relative=True,
    layout="half",
    varied={"rope_max_freq": 100.0, "rope_p_zero_freqs": 0.5},
)
nest = Layer(
    build=build,
    call=attend_raster,
    options={"module": "nest", "name": "Transformer", "dim": 32, "seq_len": 64, "depth": 1, "heads": 2, "mlp_mult": 2},
    axes=2,
    max_positions=8,
    max_grid=(8, 8),
)
projected = Layer(
    build=build,
    call=attend_last,
    options={
        "module": "simple_vit_with_relative_proj_pos_bias",
        "name": "Attention",
        "dim": 32,
        "heads": 2,
        "dim_head": 16,
        "max_dist": 32,
    },
    axes=2,
    relative=True,
    jitter=0.05,
)

SUBJECTS = (
    ("posemb_sincos_1d", sinusoids),
    ("posemb_sincos_2d", raster),
    ("GoldenGateRoPENd, two axes", golden_gate),
    ("NesT", nest),
    ("RelativeProjPositionalBias", projected),
)
