"""The catalog of schemes: the ``ENTRY`` of every file in this package, and its ``VARIANTS``."""

import importlib
import pkgutil
from functools import reduce
from operator import add
from types import ModuleType

from posenc import schemes
from posenc.arguments import check_name, check_type
from posenc.encoding.encoding import DOORS
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Shape
from posenc.schemes.user_code import PATH_FORM, entry_of


def entries_in(package: ModuleType) -> tuple[Entry, ...]:
    """The ``ENTRY`` of every file of a package and its ``VARIANTS``, sorted by the scheme's first door, then by name.
    Raises ValueError for an ``ENTRY`` with another name than its file."""
    found: list[Entry] = []
    for file in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        module = None if file.name == __name__ else importlib.import_module(file.name)
        if (entry := getattr(module, "ENTRY", None)) is None:
            continue
        if entry.name != file.name.rpartition(".")[2]:
            raise ValueError(f"ENTRY of {file.name} must be named like its file, got {entry.name!r}")
        found += [entry, *getattr(module, "VARIANTS", ())]
    return tuple(sorted(found, key=lambda entry: ([DOORS.index(door) for door in entry.doors[:1]], entry.name)))


CATALOG = entries_in(schemes)


def catalog() -> tuple[Entry, ...]:
    """The entries of all schemes."""
    return CATALOG


def entries_of(names: str) -> tuple[Entry, ...]:
    """The entries of ``"rope"``, of a user's ``"my.py:MyScheme"``, or of a composition, ``"rope+alibi"``.

    Raises ValueError for an unknown or repeated name."""
    check_type("scheme", names, str)
    known = {entry.name: entry for entry in CATALOG}
    parts = names.split("+")
    for name in parts:
        if ":" not in name:
            check_name("scheme", name, list(known), f", {PATH_FORM}, or several joined by '+'")
    if len(set(parts)) < len(parts):
        raise ValueError(f"scheme must name each part once, got {names!r}")
    return tuple(entry_of(name) if ":" in name else known[name] for name in parts)


def scheme_from_names(names: str, shape: Shape) -> Scheme:
    """Builds ``"rope"`` or ``"rope+alibi"`` for a model of this shape. Raises ValueError like `entries_of`."""
    check_type("shape", shape, Shape)
    return reduce(add, (entry.build(shape) for entry in entries_of(names)))
