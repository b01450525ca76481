"""Writes what `patch` has put into a model into its configuration, as text, and reads that text."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.arguments import shown
from posenc.huggingface.keys import CODE, check_sizes, check_table
from posenc.huggingface.loading import RECORD
from posenc.huggingface.variants import DividedALiBi, OffsetLearned
from posenc.positions.tiles import Chunk
from posenc.rotation import scalings
from posenc.schedule import Schedule
from posenc.scheme import Scheme, bare_parts, is_scheme
from posenc.schemes.catalog import CATALOG

KNOWN: dict[str, Callable[..., Any]] = {
    **{entry.scheme.__name__: entry.scheme for entry in CATALOG},
    **{kind.__name__: kind for kind in (DividedALiBi, OffsetLearned, Chunk)},
    **{kind.__name__: kind for kind in vars(scalings).values() if isinstance(kind, type) and is_dataclass(kind)},
    "range": range,
}
"""All that a record may call: whoever wrote a configuration runs no other code."""


def written(what: Any) -> dict[str, Any]:
    """What `patch` was given, in words of JSON. A scheme or scaling is the Python code that makes it; that of a
    `Schedule` are its parts, and the parts and window of each layer. What no such code makes has only its repr."""
    try:
        if isinstance(what, Schedule):
            parts = {id(part): part for scheme in what.schemes for part in bare_parts(scheme)}
            number = {name: n for n, name in enumerate(parts)}
            layers = [[[number[id(part)] for part in bare_parts(scheme)], code(window)] for scheme, window in what]
            return {"parts": [code(part) for part in parts.values()], "layers": layers}
        if isinstance(what, Mapping):
            return {"by_name": {name: written(each) for name, each in what.items()}}
        return {"what": code(what)}
    except ValueError:
        return {"unwritten": repr(what)}


def read(record: Any) -> Any:
    """What `patch` was given, new. Raises ValueError for a record that `written` did not write, or could not."""
    check_sizes(RECORD, record)
    try:
        if "parts" in record:
            parts = [made(text) for text in record["parts"]]
            schemes = {
                tuple(which): sum((parts[n] for n in which[1:]), parts[which[0]]) for which, _ in record["layers"]
            }
            return Schedule([(schemes[tuple(which)], made(window)) for which, window in record["layers"]])
        if "by_name" in record:
            return {name: read(each) for name, each in record["by_name"].items()}
        return made(record["what"])
    except (LookupError, TypeError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        unwritten = isinstance(record, Mapping) and "unwritten" in record
        why = "no code of posenc's makes it" if unwritten else f"it cannot be read: {error}"
        raise ValueError(f"{RECORD} of the configuration is {shown(record)}, and {why}: give what=") from None


def code(value: Any) -> str:
    """The Python code that makes a value. Raises ValueError if there is none."""
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if isinstance(value, list | tuple):
        inside = ", ".join(map(code, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    if isinstance(value, range):
        return repr(value)
    if is_scheme(value):
        text = " + ".join(f"{type(part).__name__}({', '.join(_arguments(part))})" for part in bare_parts(value))
        if _traits(made(text)) == _traits(value):
            return text
    elif is_dataclass(value) and type(value) in KNOWN.values():
        given = (f"{each.name}={code(getattr(value, each.name))}" for each in fields(value))
        return f"{type(value).__name__}({', '.join(given)})"
    raise ValueError(f"no code of posenc's makes {shown(value)}")


def _arguments(scheme: Scheme) -> Iterator[str]:
    """The arguments of a scheme that it keeps as attributes, defaults too, which another release may change."""
    for name, parameter in inspect.signature(type(scheme)).parameters.items():
        value: Any = getattr(scheme, name, scheme)
        is_part = isinstance(value, Tensor | nn.Module) or inspect.ismethod(value)
        if isinstance(value, Tensor) and parameter.default is parameter.empty:
            raise ValueError(f"no code of posenc's makes {shown(value)}")
        if not is_part:
            yield f"{name}={code(value)}"


def _traits(scheme: Any) -> Any:
    """What tells schemes apart: classes, arguments, and the shapes of parameters."""
    each = [(KNOWN.get(type(part).__name__) is type(part), part.extra_repr()) for part in bare_parts(scheme)]
    return each, [parameter.shape for parameter in scheme.parameters()]


def made(text: str) -> Any:
    """The value of such code. Raises ValueError for any other."""

    def of(node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Tuple | ast.List):
            items = [of(each) for each in node.elts]
            return items if isinstance(node, ast.List) else tuple(items)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -of(node.operand)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return of(node.left) + of(node.right)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in (*KNOWN, "float"):
            kind = float if node.func.id == "float" else KNOWN[node.func.id]
            given, named = [of(each) for each in node.args], {str(each.arg): of(each.value) for each in node.keywords}
            if kind is range:
                check_sizes("heads", given)
            elif kind is not float:
                check_sizes(node.func.id, inspect.signature(kind).bind(*given, **named).arguments)
            return kind(*given, **named)
        raise ValueError(f"{ast.unparse(node)} is not among {', '.join(sorted(KNOWN))}")

    if len(text) > CODE:
        raise ValueError(f"the code of a scheme must have at most {CODE} characters, got {len(text)}")
    tree = ast.parse(text, mode="eval").body
    with torch.device("meta"):
        without_numbers = of(tree)
    if isinstance(without_numbers, nn.Module):
        check_table(type(without_numbers).__name__, sum(x.numel() for x in without_numbers.parameters()))
    return of(tree)
