"""The trained decoders of the page: how their files hold the weights, and the same models in posenc.

A file has float32 numbers, then int8 ones, all little-endian. In the order of ``models.json`` each matrix of a layer
has a scale for each row among the floats and its rows among the integers, and every other parameter is floats alone: a
weight is its integer times the scale of its row. ``python -m study.page_models`` trains the models and writes the
files.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import posenc
from posenc.models import Decoder, position_parameters
from posenc.rotation.scaling_parameters import ScalingLike
from posenc_lab.compare.compare import build_model
from posenc_lab.compare.tasks import configured
from posenc_lab.explore import data
from posenc_lab.kit.files import packaged

FOLDER = Path(data.__path__[0]) / "models"
LEVELS = 127  # of an int8, on either side of 0


def header() -> dict[str, Any]:
    """What ``models.json`` says: the ``configuration`` of the training, a ``text`` to begin with, and for each of the
    ``models`` its losses and the ``name``, ``shape`` and ``is_int8`` of each parameter. ValueError for a damaged
    file."""
    return packaged(data.__name__, "models/models.json")


def weights_of(name: str) -> bytes:
    """The file of a model."""
    return (FOLDER / f"{name}.bin").read_bytes()


def quantised(model: torch.nn.Module) -> tuple[list[dict[str, Any]], bytes]:
    """The parameters as ``models.json`` lists them, and the file of their numbers."""
    positional = position_parameters(model)
    listed, floats, integers = [], [], []
    for name, parameter in model.named_parameters():
        weight = parameter.detach().float().numpy()
        is_int8 = weight.ndim == 2 and parameter not in positional
        if is_int8:
            scale = (np.abs(weight).max(axis=1, keepdims=True) / LEVELS).astype("<f4")
            integers.append(np.rint(weight / scale).astype("i1").tobytes())
            weight = scale
        floats.append(weight.astype("<f4").tobytes())
        listed.append({"name": name, "shape": list(parameter.shape), "is_int8": is_int8})
    return listed, b"".join(floats + integers)


def weights(listed: Sequence[Mapping[str, Any]], packed: bytes) -> dict[str, Tensor]:
    """The parameters in float64, in which integer times scale is exact."""
    count = sum(one["shape"][0] if one["is_int8"] else int(np.prod(one["shape"])) for one in listed)
    floats = np.frombuffer(packed, "<f4", count).astype(float)
    integers = np.frombuffer(packed, "i1", offset=4 * count).astype(float)
    found, at, at_integer = {}, 0, 0
    for one in listed:
        shape, size = one["shape"], int(np.prod(one["shape"]))
        length = shape[0] if one["is_int8"] else size
        part, at = floats[at : at + length], at + length
        if one["is_int8"]:
            part = integers[at_integer : at_integer + size].reshape(shape) * part[:, None]
            at_integer += size
        found[one["name"]] = torch.from_numpy(part.reshape(shape))
    return found


def decoder(name: str, scaling: ScalingLike | None = None) -> Decoder:
    """A model of the page in posenc, in float64: nope, rope, alibi or t5. ``scaling`` is put on RoPE's frequencies.

    >>> decoder("rope", posenc.YaRN(4, 128))(torch.tensor([list(b"To be, or not to be")])).shape
    torch.Size([1, 19, 256])
    """
    said = header()
    if name not in said["models"]:
        raise ValueError(f"name must be one of {', '.join(said['models'])}, got {name!r}")
    if scaling is not None and name != "rope":
        raise ValueError(f"scaling is for rope, got {name}")
    config = configured(said["configuration"])
    model = build_model(config, name, 0).double().eval()
    assert isinstance(model, Decoder)
    model.load_state_dict(weights(said["models"][name]["parameters"], weights_of(name)))
    if scaling is not None:
        model.trunk.position = posenc.RoPE(config.dim // config.heads, scaling=scaling)
    return model
