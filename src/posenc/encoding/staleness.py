"""Checks whether a scheme's parameters have changed since an encoding was made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor, nn

MadeWith: TypeAlias = tuple[tuple[Tensor, int], ...]
"""Parameters, each with its version counter."""


def made_with(module: nn.Module, device: torch.device, parameters: Iterable[Tensor] | None = None) -> MadeWith:
    """The current parameters of a module, if they are not given; empty in a compiled graph, which does not track them.
    ValueError for one on another device than the positions."""
    if torch.compiler.is_compiling():
        return ()
    made = tuple((p, version_of(p)) for p in (module.parameters() if parameters is None else parameters))
    for p, _ in made:
        if p.device != device:
            raise ValueError(
                f"{type(module).__name__} must be on {device} like the positions, got parameters on {p.device}: move "
                "the scheme with the model, and make positions with device= or positions.to(device)"
            )
    return made


def is_counted(module: nn.Module) -> bool:
    """Whether a change of any number that a module holds is seen in `made_with`: not of buffers, of inference tensors
    or in a compiled graph."""
    if torch.compiler.is_compiling() or any(True for _ in module.buffers()):
        return False
    return all(type(p) is nn.Parameter and not p.is_inference() for p in module.parameters())


def is_inference() -> bool:
    """Whether new tensors are inference tensors."""
    return not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()


def check_fresh(made: MadeWith, is_read: bool) -> None:
    """ValueError if a parameter has changed or, where attention reads the parameters, was freed."""
    if torch.compiler.is_compiling():
        return
    if is_read and any(_is_freed(p) for p, _ in made):
        raise ValueError(
            "the encoding was made by a scheme whose parameters were freed after its call, and attention reads "
            "them: shard the scheme together with the block that calls it, or separately with "
            "fully_shard(scheme, reshard_after_forward=False)"
        )
    if any(version_of(p) != version for p, version in made):
        raise ValueError(
            "the encoding was made before the scheme's parameters changed: call the scheme with the positions "
            "again, once in every forward pass"
        )


def version_of(parameter: Tensor) -> int:
    """The version counter, which inference tensors do not have."""
    return -1 if parameter.is_inference() else parameter._version


def _is_freed(parameter: Tensor) -> bool:
    """Whether FSDP gathered it for a call and has since freed its storage."""
    return type(parameter) is nn.Parameter and parameter.numel() > 0 and parameter.untyped_storage().size() == 0
