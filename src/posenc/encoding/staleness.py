"""Whether the parameters that an encoding was made with are still as they were."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor, nn

MadeWith: TypeAlias = tuple[tuple[Tensor, int], ...]
"""Parameters, each with its version: how often its numbers had been written to."""


def made_with(module: nn.Module) -> MadeWith:
    """The parameters of a module as they are now. A compiled graph keeps no account of them."""
    return () if torch.compiler.is_compiling() else tuple((p, _version_of(p)) for p in module.parameters())


def is_inference() -> bool:
    """Whether tensors that are made now cannot be trained with."""
    return not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()


def check_fresh(made: MadeWith, is_read: bool) -> None:
    """ValueError where one was changed since or, where attention is to read them, taken away."""
    if torch.compiler.is_compiling():
        return
    if is_read and any(_is_freed(p) for p, _ in made):
        raise ValueError(
            "the encoding was made by a scheme whose parameters were freed after its call, and attention reads "
            "them: shard the scheme together with the block that calls it, or by itself with "
            "fully_shard(scheme, reshard_after_forward=False)"
        )
    if any(_version_of(p) != version for p, version in made):
        raise ValueError(
            "the encoding was made before the scheme's parameters changed: call the scheme with the positions "
            "again, once in every forward pass"
        )


def _version_of(parameter: Tensor) -> int:
    """How often its numbers were written to; those of inference mode are not counted."""
    return -1 if parameter.is_inference() else parameter._version


def _is_freed(parameter: Tensor) -> bool:
    """Whether FSDP gathered it for a call and has let go of its numbers since."""
    return type(parameter) is nn.Parameter and parameter.numel() > 0 and parameter.untyped_storage().size() == 0
