"""Reproduces a finding in a script. Plain PyTorch: scripts hold a copy."""

import importlib
import linecache
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

from posenc_check.outcome import Outcome, Outcomes, outcome_of
from posenc_check.subjects import Batch, NotApplicableError, Subject


class StandIn(ModuleType):
    """A module in place of posenc_check: it has the names of this script; any other name is a mock."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return globals().get(name) or MagicMock(name=name)


def stand_in(*names: str) -> None:
    """Registers stand-ins for modules of these names, so that they can be imported."""
    sys.modules.update({name: StandIn(name) for name in names})


def stand_in_unless_here(*names: str) -> None:
    """Registers stand-ins for modules that are not installed: a subject may name an unused scheme of theirs."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            stand_in(name)


def hold(name: str, text: str, folder: str = "") -> None:
    """Makes the module of that name from the text of its file; ``folder``: where it lies, if it is a package."""
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = file = f"{name.replace('.', '/')}{'/__init__' * bool(folder)}.py"
    module.__package__ = name if folder else name.rpartition(".")[0]
    if folder:
        module.__path__ = [folder]
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # for tracebacks
    exec(compile(text, file, "exec"), vars(module))


def part_of(module: str, name: str) -> Any:
    """A function or class of a module."""
    return getattr(importlib.import_module(module), name)


def repeat(trial: Callable[..., Outcome | Outcomes], subject: Subject, batch: Batch, **values: Any) -> int:
    """Prints what was expected and what came. 1: they differ; 0: they do not; 2: the trial does not apply here."""
    try:
        outcome = outcome_of(trial, subject, batch, **values)
    except NotApplicableError as error:
        print("not applicable:", error)
        return 2
    print("expected:", outcome.expected)
    print("came:    ", outcome.actual)
    return 0 if outcome.ok else 1
