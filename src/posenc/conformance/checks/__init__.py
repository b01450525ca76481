"""The checks, one a file, in the order of their numbers."""

from importlib import import_module
from pkgutil import iter_modules

from posenc.conformance.trial import Check

_files = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
CHECKS: tuple[Check, ...] = tuple(sorted((file.CHECK for file in _files), key=lambda check: check.number))
