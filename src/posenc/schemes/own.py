"""Loads a user's scheme, ``my.py:MyScheme``, which can be used wherever a name of the catalog can.

It claims no laws, and is built by calling the class with those of dim, num_heads, head_dim, max_positions and grid that
its ``__init__`` takes, unless the file has an ``ENTRY`` of that class.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from posenc.arguments import check_name, shown
from posenc.own import TargetError, digest_of, imported

if TYPE_CHECKING:  # imported inside functions, so that this module works without torch
    from posenc.scheme import Scheme
    from posenc.schemes.entry import Entry, Shape

FORM = "path/to/file.py:Name"
# Separates the schemes of several layers. Not the ~ of a home folder or of PROGRA~1.
BETWEEN = re.compile(r"(?<=[^+~])~(?!\d)")
SIZES = ("dim", "num_heads", "head_dim", "max_positions", "grid")


def entry_of(text: str) -> Entry:
    """The entry of ``my.py:MyScheme`` or ``my.py:ENTRY``, under that name. The file is executed once.

    Raises ValueError for a missing file or class and, with the file's line, if its code fails.
    """
    from posenc.scheme import Scheme
    from posenc.schemes.entry import Entry

    where, _, name = text.rpartition(":")
    module = _module(text)
    kinds = {k: v for k, v in vars(module).items() if isinstance(v, type) and issubclass(v, Scheme)}
    entry = getattr(module, "ENTRY", None)
    if name == "ENTRY" and isinstance(entry, Entry):
        kind = entry.scheme
    else:
        check_name(f"the scheme of {where}", name, [k for k, v in kinds.items() if v.__module__ == module.__name__])
        kind = kinds[name]
    if not isinstance(entry, Entry) or entry.scheme is not kind:
        entry = _without_entry(text, kind)
    return replace(entry, name=text, build=_guarded(text, entry.build))


def source_of(names: str) -> str:
    """The digests of the files of a composition's (or several layers') user schemes, as executed; empty without any."""
    parts = (part for layer in BETWEEN.split(names) for part in layer.split("+"))
    return "".join(digest_of(_module(part)) for part in parts if ":" in part)


def _module(text: str) -> ModuleType:
    where = text.rpartition(":")[0]
    if Path(where).suffix != ".py" or not Path(where).is_file():
        raise ValueError(f"scheme must be a name of the catalog or {FORM} of an existing file, got {text!r}")
    return imported(where, "scheme")


def _without_entry(text: str, kind: type[Scheme]) -> Entry:
    from posenc.schemes.entry import Entry

    taken = {
        p.name: p
        for p in inspect.signature(kind).parameters.values()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    needed = [name for name, p in taken.items() if p.default is p.empty and name not in SIZES]
    if needed:
        raise ValueError(
            f"{text} must be built from {', '.join(SIZES)}, got an __init__ that needs {', '.join(needed)}: add a "
            "default, or an ENTRY with a build function to the file"
        )
    grid = taken.get("grid")

    def build(shape: Shape) -> Scheme:
        sizes: dict[str, Any] = {name: getattr(shape, name) for name in SIZES if name in taken}
        if grid is not None and shape.grid is None:
            if grid.default is grid.empty:
                sizes["grid"] = (shape.max_positions, shape.max_positions)
            else:
                del sizes["grid"]
        return kind(**sizes)

    axes: Literal["one", "two", "any"] = "one" if grid is None else "two" if grid.default is grid.empty else "any"
    return Entry(text, kind, "no paper", frozenset(), "not known", build, axes=axes)


def _guarded(text: str, build: Callable[[Shape], Scheme]) -> Callable[[Shape], Scheme]:
    def guarded(shape: Shape) -> Scheme:
        from posenc.scheme import Scheme

        try:
            made = build(shape)
        except Exception as error:
            raise TargetError(f"building {text}", error) from error
        if not isinstance(made, Scheme):
            raise ValueError(f"{text} must build a Scheme, got {shown(made)}")
        if "_modules" not in vars(made):
            raise ValueError(f"{text} must call super().__init__() in its __init__")
        return made

    return guarded
