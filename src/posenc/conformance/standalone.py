"""A finding as a script: the files that found it, one after the other, so that it runs without them.

Plain files of this package, which import nothing else of it, come first, without their imports of one another; of a
check, what stands above its cases. The subject's own files are imported; the script holds the text of those that import
posenc.conformance, in whose place the script itself is imported.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from posenc.conformance import _HOMES
from posenc.conformance.repeat import repeat
from posenc.conformance.subjects import Batch, Subject
from posenc.conformance.trial import Case, Trial

MARK = "# A finding of posenc check, which this script repeats"  # how every script begins
CASES = "# -- cases ---"  # what stands above it in a check is plain
OWN = "posenc.conformance"
PLAIN = [f"{OWN}.{name}" for name in ("subjects", "heads", "layers", "outcome", "measure", "calls", "repeat")]
PLAIN += [f"{OWN}.transformers_calls", "posenc.lab.memory"]


def script(subject: Subject, trial: Trial, case: Case, heading: str) -> str:
    """A Python script that runs one trial on one case: it prints what was expected and what came, and exits with 1
    where they differ. ``heading`` is what it says of itself at its beginning.

    Raises ValueError as `check_sources` does.
    """
    claims, batch = given(subject), given(case.batch)
    files = _Files()
    for part in (*_parts([subject.build, subject.call, claims, case.values]), *type(subject).__mro__, trial.function):
        files.add(part.__module__)
    files.add(repeat.__module__)

    def arguments(values: dict[str, Any]) -> list[str]:
        return [f"{key}={literal(value, key)}" for key, value in values.items()]

    values = arguments(dict(case.values))
    lines = [
        f"{MARK}.",
        *(f"# {line}".rstrip() for line in heading.splitlines()),
        f"# It needs {', '.join(files.needs())}.",
        *files.lines(),
        "",
        f"subject = {_written(type(subject))}(",
        *(f"    {line}," for line in arguments({"build": subject.build, "call": subject.call, **claims})),
        ")",
        f"batch = Batch({', '.join(arguments(batch))})",
        f"raise SystemExit(repeat({', '.join([_written(trial.function), 'subject', 'batch', *values])}))",
    ]
    return "\n".join(lines) + "\n"


def check_sources(subject: Subject) -> None:
    """ValueError unless a script can be made of the subject: its class, ``build`` and ``call`` are at the top level of
    files, and its options are values that can be written down."""
    for name, value in {"its class": type(subject), **vars(subject)}.items():
        literal(value, name)
    for part in (subject.build, subject.call):
        if part.__module__ == "__main__" and _text("__main__") is None:
            raise ValueError(
                f"{part.__name__} must stand in a file, so that a script can repeat what is found; there is none "
                f"that can be read"
            )


def literal(value: Any, name: str) -> str:
    """Source that makes the value again in a script.

    Raises ValueError for what is not made of numbers, text, dtypes, lists, dictionaries, and functions at the top level
    of a file.
    """
    if value is None or type(value) in (bool, int, str):
        return repr(value)
    if type(value) is float:
        return repr(value) if value - value == 0 else f'float("{value}")'
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    if type(value) is dict:
        return "{" + ", ".join(f"{literal(key, name)}: {literal(item, name)}" for key, item in value.items()) + "}"
    if type(value) in (list, tuple, torch.Size):
        inside = [_run(value)] if _run(value) else [literal(item, name) for item in value]
        return (
            f"[{', '.join(inside)}]" if isinstance(value, list) else f"({', '.join(inside)}{',' * (len(inside) == 1)})"
        )
    if callable(value) and not isinstance(value, Enum):
        if not is_at_top_level(value):
            raise ValueError(
                f"{name} must be a function or class at the top level of a file, so that a script can repeat what is "
                f"found; got {value!r}. What varies goes into options"
            )
        return _written(value)
    raise ValueError(
        f"{name} must be made of numbers, text, dtypes, lists and dictionaries, so that a script can repeat what is "
        f"found; got {value!r}"
    )


def _run(values: Any) -> str:
    """A run of whole numbers, written shortly."""
    if len(values) <= 8 or any(type(value) is not int for value in values):
        return ""
    run = range(values[0], values[0] + len(values))
    return f"*range({run.start}, {run.stop})" if list(values) == list(run) else ""


def _written(part: Any) -> str:
    """What a function or class is called in a script."""
    module = part.__module__
    return part.__name__ if _is_plain(module) else f"part_of({_name(module)!r}, {part.__name__!r})"


def is_at_top_level(part: Any) -> bool:
    """Whether it is a function or class that a file has at its top level, by its own name."""
    name = getattr(part, "__qualname__", "")
    module = sys.modules.get(getattr(part, "__module__", None) or "")
    return callable(part) and name.isidentifier() and module is not None and vars(module).get(name) is part


def given(value: Subject | Batch) -> dict[str, Any]:
    """The fields that are not what they would be by themselves, but for ``build`` and ``call``."""
    found = {}
    for item in fields(value):
        empty = item.default if item.default_factory is MISSING else item.default_factory()
        if item.name not in ("build", "call") and getattr(value, item.name) != empty:
            found[item.name] = getattr(value, item.name)
    return found


def _parts(value: Any) -> Iterator[Callable[..., Any]]:
    """The functions and classes in a value."""
    if isinstance(value, dict | list | tuple):
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _parts(item)
    elif callable(value):
        yield value


class _Files:
    """The files of a script, each after those that it imports."""

    def __init__(self) -> None:
        self._plain: dict[str, str] = {}  # their texts, by the names of their modules
        self._held: dict[str, str] = {}
        self._imported: dict[str, None] = {}
        self._own: dict[str, None] = {OWN: None}  # modules of this package that files import

    def add(self, module: str) -> None:
        """The file of a module, and those that it needs."""
        if module in self._plain or module in self._held or module in self._imported:
            return
        text = _text(module) or ""
        imports = list(_imported_by(module, text)) if OWN in text else []
        if not (_is_plain(module) or module == "__main__" or any(map(_is_own, imports))):
            self._imported[module] = None
            return
        texts = self._plain if _is_plain(module) else self._held
        texts[module] = ""  # begun: files may import one another
        for name in imports:
            if _is_own(name):
                self._own[name] = None
            if _is_plain(name) or not _is_own(name):
                self.add(name)
        del texts[module]
        texts[module] = text

    def needs(self) -> list[str]:
        """What must be installed or lie where it lies now, for the header of the script."""
        names = dict.fromkeys(name.split(".")[0] for name in ("torch", *self._imported))
        names = {name: None for name in names if name not in sys.stdlib_module_names}
        found = {name: _folder(name) for name in names if name in sys.modules}
        return [f"{name} from {folder}" if folder else name for name, folder in found.items()]

    def lines(self) -> Iterator[str]:
        """The texts."""
        folders = {_folder(name.split(".")[0]): None for name in self._imported}
        for module, text in self._plain.items():
            yield from ["", _heading(module), "", *_without_own_imports(text)]
        names = [name for name in {**self._own, **self._plain} if _is_own(name)]
        yield from ["", "# -- the subject ".ljust(120, "-"), "", f"stand_in({', '.join(map(repr, names))})"]
        yield from [f"sys.path.insert(0, {folder!r})" for folder in folders if folder]
        for module, text in self._held.items():
            folder = next(iter(getattr(sys.modules[module], "__path__", ())), "")
            quoted = text.replace("\\", "\\\\").replace("'''", "\\'\\'\\'")
            yield from [f"hold({_name(module)!r}, folder={folder!r}, text='''\\", *quoted.rstrip().split("\n"), "''')"]


def _is_own(module: str) -> bool:
    return module == OWN or module.startswith(f"{OWN}.")


def _is_plain(module: str) -> bool:
    return module in PLAIN or module.startswith(f"{OWN}.checks.")


def _text(module: str) -> str | None:
    """The text of a module's file; of a check, the plain part of it."""
    try:
        return inspect.getsource(sys.modules[module]).partition(CASES)[0] if module in sys.modules else None
    except (OSError, TypeError):
        return None


def _name(module: str) -> str:
    """What a module is called in a script, which is ``__main__`` itself."""
    return Path(sys.modules[module].__file__ or "").stem if module == "__main__" else module


def _imported_by(module: str, text: str) -> Iterator[str]:
    """The modules that a text imports; for the public names of this package, those that they live in."""
    spec = getattr(sys.modules[module], "__spec__", None)
    package = "" if spec is None else spec.parent
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (name for alias in node.names for name in (alias.name.split(".")[0], alias.name))
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            yield origin
            for alias in node.names:
                inner = f"{origin}.{_HOMES.get(alias.name, alias.name) if origin == OWN else alias.name}"
                if inner in sys.modules:
                    yield inner


def _folder(package: str) -> str:
    """The folder that a package is imported from, unless it is installed."""
    module = sys.modules.get(package)
    path = next(iter(getattr(module, "__path__", ())), None) or getattr(module, "__file__", None)
    if path is None or package in sys.stdlib_module_names:
        return ""
    folder = Path(path).absolute().parent
    return "" if {"site-packages", "dist-packages"} & set(folder.parts) else str(folder)


def _heading(module: str) -> str:
    return f"# -- {module.replace('.', '/')}.py ".ljust(120, "-")


def _without_own_imports(text: str) -> list[str]:
    text = text.strip()
    gone: set[int] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("posenc."):
            gone |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return [line for number, line in enumerate(text.split("\n"), 1) if number not in gone]
