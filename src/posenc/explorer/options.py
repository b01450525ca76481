"""The options of a scheme as data, from its signature: what the page makes controls of."""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch

from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Shape

SIZES = {
    1: Shape(dim=64, num_heads=4, head_dim=16, max_positions=64),
    2: Shape(dim=64, num_heads=4, head_dim=16, max_positions=81, grid=(9, 9)),
    3: Shape(dim=96, num_heads=4, head_dim=24, max_positions=60, grid=(3, 4, 5)),
}
"""The small models that schemes are drawn for, by the coordinates of a token."""


def options_of(entry: Entry) -> list[dict[str, Any]]:
    """Each option: {name, kind, choices, optional, required, default, value}.

    ``kind`` is int, float, bool, choice, list, or other for what the page has no control for; ``optional`` says that it
    may be None; ``value`` is that of the catalog's scheme in the small model of `SIZES`, which need not be the default.
    """
    with torch.random.fork_rng(devices=()):
        built = entry.build(SIZES[entry.least_axes])
    hints = get_type_hints(entry.scheme.__init__)
    gathered = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(entry.scheme).parameters.values()
    return [_option(p, hints.get(p.name), built) for p in parameters if p.kind not in gathered]


def _option(parameter: inspect.Parameter, hint: Any, built: Scheme) -> dict[str, Any]:
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    (main, *_) = [kind for kind in kinds if kind is not types.NoneType]
    value = _plain(getattr(built, parameter.name, parameter.default))
    choices = list(get_args(main)) if get_origin(main) is Literal else None
    return {
        "name": parameter.name,
        "kind": "choice" if choices else _KINDS.get(main, "list" if _listed(main) else "other"),
        "choices": choices,
        "optional": types.NoneType in kinds,
        "required": parameter.default is parameter.empty,
        "default": None if parameter.default is parameter.empty else _plain(parameter.default),
        "value": value,
    }


_KINDS: dict[Any, str] = {int: "int", float: "float", bool: "bool"}


def _listed(kind: Any) -> bool:
    return get_origin(kind) in (tuple, Sequence)


def _plain(value: Any) -> Any:
    """A value as JSON has it; None for what it has not."""
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return value if isinstance(value, int | float | str) else None
