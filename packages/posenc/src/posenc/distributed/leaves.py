"""What gets gradients besides queries, keys and values: the leaves of autograd's graph that a scheme's terms reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from posenc.encoding.encoding import Encoding


def leaves_of(scheme: nn.Module, encoding: Encoding) -> list[Tensor]:
    """The parameters of a scheme, and what else its terms were computed from, such as the weights of another network
    that gave it a table: found in attributes of the scheme, and in the fields and closures of its terms.

    Leaves alone, since a gradient of a tensor *and* of what it was made from would be counted twice.
    """
    found: list[Tensor] = list(scheme.parameters())
    if not torch.is_grad_enabled():
        return found
    known = {id(x) for x in found}
    held = [value for module in scheme.modules() for name, value in vars(module).items() if name[0] != "_"]
    for tensor in _tensors((*held, *encoding.rotations, *encoding.pieces, *encoding.values), set()):
        for leaf in _reached(tensor):
            if id(leaf) not in known:
                known.add(id(leaf))
                found.append(leaf)
    return found


def _tensors(x: Any, seen: set[int]) -> Iterator[Tensor]:
    """The tensors in x, and in what functions hold."""
    if id(x) in seen:
        return
    seen.add(id(x))
    parts: Any = ()
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, Mapping):
        parts = x.values()
    elif isinstance(x, (tuple, list)):
        parts = x
    elif isinstance(x, partial):
        parts = (x.func, *x.args, *x.keywords.values())
    elif isinstance(x, FunctionType):
        parts = [cell.cell_contents for cell in x.__closure__ or () if cell.cell_contents is not x]
    elif is_dataclass(x) and not isinstance(x, type):
        parts = [getattr(x, field.name) for field in fields(x)]
    for part in parts:
        yield from _tensors(part, seen)


def _reached(x: Tensor) -> Iterator[Tensor]:
    """The leaves with a gradient that x was computed from."""
    if x.is_leaf:
        if x.requires_grad:
            yield x
        return
    waiting, seen = [x.grad_fn], {x.grad_fn}
    while waiting:
        node: Any = waiting.pop()
        if hasattr(node, "variable"):
            yield node.variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
