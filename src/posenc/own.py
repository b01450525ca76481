"""Imports user code that is named as ``module:name`` or ``path/to/file.py:name``, and locates its errors.

This module works without torch.
"""

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from itertools import dropwhile
from pathlib import Path
from types import ModuleType
from typing import Any

FORM = "module:name or path/to/file.py:name"

_FILES: dict[str, str] = {}  # paths of imported files, as in tracebacks, to those that the user wrote
_DIGESTS: dict[str, str] = {}  # of these files, as they were imported
_BY_PATH: dict[str, ModuleType] = {}  # files whose own name no module can have, or another module has


class TargetError(ValueError):
    """User code failed: the message has the error and its line, and ``shown`` is the traceback through that code."""

    def __init__(self, doing: str, error: BaseException) -> None:
        super().__init__(f"{doing} failed: {said(error)}")
        # Without importlib's frames, and those of posenc that lead there; of installed packages, only the last frame.
        shown = traceback.TracebackException.from_exception(error, compact=True)
        library, ours = ("<frozen", os.path.dirname(importlib.__file__)), os.path.dirname(__file__)
        theirs = [frame for frame in shown.stack if not frame.filename.startswith(library)]
        frames = list(dropwhile(lambda frame: frame.filename.startswith(ours), theirs))
        shown.stack[:] = [frame for frame in frames if "site-packages" not in frame.filename or frame is frames[-1]]
        self.shown = "".join(shown.format(chain=False))


def named(text: str, what: str) -> tuple[Any, ModuleType]:
    """The object that ``module:name`` or ``path/to/file.py:name`` names, and its module; ``what`` is the argument's
    name in errors.

    Raises ValueError if it does not exist, and `TargetError` if the module's code fails.
    """
    where, _, name = text.rpartition(":")
    if not where or not name.isidentifier():
        raise ValueError(f"{what} must be {FORM}, got {text!r}")
    module = imported(where, what)
    if not hasattr(module, name):
        public = [k for k, v in vars(module).items() if not (k.startswith("_") or isinstance(v, ModuleType))]
        raise ValueError(f"{where} has no {name!r}; it has {', '.join(public) or 'nothing'}")
    return getattr(module, name), module


def imported(where: str, what: str) -> ModuleType:
    """The module of a name or a path, imported once. Raises as `named` does.

    A file of a package is imported as a part of it. Other files can import their neighbors, like a script.
    """
    path = Path(where)
    if path.suffix == ".py" or os.sep in where:
        if not path.is_file():
            raise ValueError(f"{what} must be {FORM}, and there is no file {where!r}")
        return _file(path, where)
    if not _is_name(where):
        raise ValueError(f"{what} must be {FORM}, and nothing can be imported from {where!r}")
    return _module(where, str(Path.cwd()), where)


def is_importable(module: ModuleType) -> bool:
    """Whether other code can import this module by its name."""
    return module not in _BY_PATH.values()


def digest_of(module: ModuleType) -> str:
    """A digest of the file of a module that was imported by its path, as it was then."""
    return _DIGESTS[str(Path(module.__file__ or "").resolve())]


def place_of(error: BaseException) -> str:
    """The last line of a user's file in an error's traceback, ``my.py:12``; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename in _FILES:
        return f"{_FILES[error.filename]}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in _FILES]
    return f"{_FILES[frames[-1].filename]}:{frames[-1].lineno}" if frames else ""


def place_in(file: str, where: str) -> None:
    """Makes `place_of` find lines of this file too, and call it ``where``."""
    _FILES[file] = where


def said(error: BaseException) -> str:
    """An error of user code in one line: where, its type, and its message."""
    return ": ".join(filter(None, (place_of(error), type(error).__name__, " ".join(str(error).split()))))


def _file(path: Path, where: str) -> ModuleType:
    file = path.resolve()
    key = str(file)
    if key in _BY_PATH:
        return _BY_PATH[key]
    place_in(key, where)
    _DIGESTS.setdefault(key, hashlib.sha256(file.read_bytes()).hexdigest()[:16])
    folder, name = file.parent, file.stem
    while (folder / "__init__.py").is_file():  # past all packages that it is in
        folder, name = folder.parent, f"{folder.name}.{name}"
    name = name.removesuffix(".__init__")
    if _is_name(name):
        module = _module(name, str(folder), where)
        if module.__file__ and Path(module.__file__).resolve() == file:
            return module
    sys.path[:] = [str(file.parent), *(entry for entry in sys.path if entry != str(file.parent))]
    # A unique name, in sys.modules so that pickle can import it.
    unique = f"{file.stem.replace('.', '_')}_{hashlib.sha256(key.encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(unique, key)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[unique]
        raise TargetError(f"importing {where}", error) from error
    _BY_PATH[key] = module
    return module


def _module(name: str, folder: str, where: str) -> ModuleType:
    """A module by its name, looked for in ``folder`` first."""
    sys.path[:] = [folder, *(entry for entry in sys.path if entry != folder)]
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and (name + ".").startswith(error.name + "."):
            raise ValueError(f"there is no module {error.name!r}, here or installed") from None
        raise TargetError(f"importing {where}", error) from error


def _is_name(name: str) -> bool:
    """Whether an import statement can have it."""
    return all(part.isidentifier() for part in name.split("."))
