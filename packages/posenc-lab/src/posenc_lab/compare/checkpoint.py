"""Saves and loads checkpoints of a training in safetensors files, which cannot execute code.

Its tensors are ``model.<name>``, the state of the model; ``step.<name>``, ``exp_avg.<name>`` and ``exp_avg_sq.<name>``,
that of AdamW for every parameter that had a gradient; and ``running``, the sum of the losses since the last point of
the curve. Its metadata has one entry, ``training``, in JSON: step, seconds, curve, probed, fingerprint, and a digest of
all that. There is no generator's state, since a batch follows from seed and step.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from posenc.command.files import write_whole
from posenc_lab.kit.files import parse, require

SUFFIX = ".safetensors"
ENTRY = "training"
REMOVAL_HINT = "remove it to train anew"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
CURVE = list[tuple[int, float]]
STORED_FIELDS = {"step": int, "seconds": float, "curve": CURVE, "probed": CURVE, "fingerprint": str, "digest": str}


class CheckpointError(ValueError):
    """A checkpoint that is damaged, of another model, or of another comparison."""


@dataclass
class Reached:
    """The progress of a training: steps done, seconds spent in them, the curve [(step, mean bits up to it)],
    ``running``, and what the task's probe measured at each point of the curve."""

    step: int
    seconds: float
    curve: list[tuple[int, float]]
    running: Tensor
    probed: list[tuple[int, float]] = field(default_factory=list)


def save(
    path: Path, model: nn.Module, optimizer: torch.optim.AdamW, reached: Reached, *, fingerprint: str = ""
) -> None:
    """Writes a checkpoint atomically. OSError, naming the file, if it cannot be written."""
    held = {f"model.{name}": value for name, value in model.state_dict().items()} | {"running": reached.running}
    for name, parameter in model.named_parameters():
        held |= {f"{what}.{name}": value for what, value in optimizer.state.get(parameter, {}).items()}
    # Copies, since safetensors refuses tensors that share memory, such as tied weights.
    tensors = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in held.items()}
    told = {name: getattr(reached, name) for name in ("step", "seconds", "curve", "probed")}
    told["fingerprint"] = fingerprint
    told["digest"] = _digest(tensors, told)
    write_whole(path, to_bytes(tensors, {ENTRY: json.dumps(told)}))


def load(path: Path, model: nn.Module, optimizer: torch.optim.AdamW, *, fingerprint: str = "") -> Reached:
    """Loads a checkpoint into ``model`` and ``optimizer``, and returns the progress of their training.

    Raises CheckpointError, with both unchanged, for a damaged file, for tensors that do not match this model by name,
    shape and dtype, or for another ``fingerprint``.
    """
    try:
        with safe_open(path, framework="pt") as file:
            told = parse((file.metadata() or {}).get(ENTRY, ""))
            require({"probed": [], **told}, STORED_FIELDS)  # which earlier versions had not
            # Copies, since the file is memory-mapped and will be replaced.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a mapping)
        if told.pop("digest") != _digest(tensors, told):
            raise ValueError("its digest is another")
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} is not a whole checkpoint ({error}): {REMOVAL_HINT}") from None
    if (its := told["fingerprint"]) != fingerprint:
        raise CheckpointError(
            f"{path} is a checkpoint of another comparison ({its} there, {fingerprint} here): {REMOVAL_HINT}"
        )
    if unlike := _unlike(tensors, model):
        raise CheckpointError(f"{path} is a checkpoint of another model ({unlike}): {REMOVAL_HINT}")
    model.load_state_dict({name: tensors[f"model.{name}"] for name in model.state_dict()})
    names = {parameter: name for name, parameter in model.named_parameters()}
    order = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        index: {what: tensors[f"{what}.{name}"] for what in MOMENTS}
        for index, name in enumerate(order)
        if f"step.{name}" in tensors
    }
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    device = next(model.parameters()).device
    curve, probed = ([(step, float(value)) for step, value in told.get(name, ())] for name in ("curve", "probed"))
    return Reached(told["step"], told["seconds"], curve, tensors["running"].to(device), probed)


def _unlike(tensors: dict[str, Tensor], model: nn.Module) -> str:
    """How tensors differ from those of a checkpoint of this model; empty if they match."""
    scalar = torch.zeros(())
    expected = {f"model.{name}": value for name, value in model.state_dict().items()} | {"running": scalar}
    for name, parameter in model.named_parameters():
        moments = {f"{what}.{name}": scalar if what == "step" else parameter for what in MOMENTS}
        if moments.keys() & tensors.keys():  # none where it never had a gradient
            expected |= moments
    for name in sorted(expected.keys() ^ tensors.keys()):
        return f"without {name}" if name in expected else f"with {name}"
    for name in sorted(expected):
        there, here = tensors[name], expected[name]
        if (there.shape, there.dtype) != (here.shape, here.dtype):
            return f"{name} is {_shown(there)} there and {_shown(here)} here"
    return ""


def _shown(value: Tensor) -> str:
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"


def _digest(tensors: dict[str, Tensor], told: dict[str, Any]) -> str:
    """A hash of all tensors and of ``told``, since safetensors files have no checksum."""
    digest = hashlib.sha256(json.dumps(told).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
