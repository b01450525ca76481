"""Encodings as pytrees, for torch.compile, export and FSDP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posenc import compat
from posenc.positions.positions import Positions


def with_tensors(x: Any, change: Callable[[Tensor], Any]) -> Any:
    """x with ``change`` applied to each tensor in it."""
    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, Positions):
        return compat.tree_map(change, x)
    if isinstance(x, tuple):
        return tuple(with_tensors(each, change) for each in x)
    if isinstance(x, Mapping):
        return {name: with_tensors(each, change) for name, each in x.items()}
    if is_dataclass(x) and not isinstance(x, type):  # a rotation, its maps, a context
        return replace(x, **{f.name: with_tensors(getattr(x, f.name), change) for f in fields(x)})
    return x


def tensors_of(x: Any) -> list[Tensor]:
    """All tensors in x."""
    found: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        found.append(x)
        return x

    with_tensors(x, keep)
    return found


def closed_over(terms: Iterable[Any]) -> list[Tensor]:
    """The tensors that the functions of these terms close over."""
    functions = [getattr(term, f.name) for term in terms for f in fields(term)]
    cells = [cell for function in functions for cell in getattr(function, "__closure__", None) or ()]
    return [cell.cell_contents for cell in cells if isinstance(cell.cell_contents, Tensor)]


def register(kind: type, values: tuple[str, ...], name: str) -> None:
    """Registers the class as a pytree of its positions and the tensors in its fields ``values``. Pair terms are not
    leaves: they refer to the scheme's parameters."""

    def changed(encoding: Any, change: Callable[[Tensor], Any]) -> Any:
        queries = with_tensors(encoding.query_positions, change)
        same = encoding.key_positions is encoding.query_positions
        keys = queries if same else with_tensors(encoding.key_positions, change)
        others = {field: with_tensors(getattr(encoding, field), change) for field in values}
        return replace(encoding, query_positions=queries, key_positions=keys, **others)

    def flatten(encoding: Any) -> tuple[list[Any], Any]:
        others = (getattr(encoding, field) for field in values)
        same = encoding.key_positions is encoding.query_positions
        return tensors_of((encoding.query_positions, () if same else encoding.key_positions, *others)), encoding

    def unflatten(tensors: Any, encoding: Any) -> Any:
        following = iter(tensors)

        def other(before: Tensor) -> Any:
            x = next(following)
            half = (torch.float16, torch.bfloat16)
            if isinstance(x, Tensor) and x.dtype in half and before.dtype not in half:
                raise ValueError(
                    f"the encoding was cast to {x.dtype}, which is too coarse for phases: cast only the other tensors"
                )
            return x

        return changed(encoding, other)

    compat.register_pytree(kind, flatten, unflatten, name)
