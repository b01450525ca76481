"""Collects the checks, in the order of their numbers: those that the files of this folder define."""

from importlib import import_module
from pkgutil import iter_modules

from posenc_check.trial import Check

_FILES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
_FOUND = [value for file in _FILES for value in vars(file).values() if isinstance(value, Check)]
CHECKS = tuple(sorted(_FOUND, key=lambda check: check.number))
