"""torchtune: RotaryPositionalEmbeddings(dim, max_seq_len, base)(x, input_pos=), x (rows, tokens, heads, head_dim).

The file of the module is loaded by its path: the package itself asks for torchao, which the module does not use.
"""

import importlib.util
import sys
from pathlib import Path

from posenc_check import Rotary


def build(**options):
    name = "position_embeddings"
    if name not in sys.modules:
        folder = Path(importlib.util.find_spec("torchtune").submodule_search_locations[0])
        spec = importlib.util.spec_from_file_location(name, folder / "modules" / f"{name}.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name].RotaryPositionalEmbeddings(**options)


def rotate(module, x, positions):
    return module(x.transpose(1, 2), input_pos=positions).transpose(1, 2)


rotary = Rotary(
    build=build,
    call=rotate,
    options={"dim": 16, "max_seq_len": 4096, "base": 10_000},
    relative=True,
    causal=True,
    base=10000.0,
    layout="interleaved",
    max_positions=4096,
    varied={"base": 500},
)

SUBJECTS = (("RotaryPositionalEmbeddings", rotary),)
