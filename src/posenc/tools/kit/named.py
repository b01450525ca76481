"""Imports user code that a command line names: ``module:name`` or ``path/to/file.py:name``."""

import importlib
import os
import sys
import traceback
from itertools import dropwhile
from pathlib import Path
from types import ModuleType
from typing import Any

import posenc

FORM = "module:name or path/to/file.py:name"


class TargetError(ValueError):
    """User code failed: the message has the error, and ``shown`` is the traceback through that code."""

    def __init__(self, doing: str, error: BaseException) -> None:
        said = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(":")
        super().__init__(f"{doing} failed: {said}")
        # Without importlib's frames, and those of posenc that lead there; of installed packages, only the last frame.
        shown = traceback.TracebackException.from_exception(error, compact=True)
        library, ours = ("<frozen", os.path.dirname(importlib.__file__)), os.path.dirname(posenc.__file__)
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
    module = _module(where, what)
    if not hasattr(module, name):
        public = [k for k, v in vars(module).items() if not (k.startswith("_") or isinstance(v, ModuleType))]
        raise ValueError(f"{where} has no {name!r}; it has {', '.join(public) or 'nothing'}")
    return getattr(module, name), module


def _module(where: str, what: str) -> ModuleType:
    path = Path(where)
    if path.suffix == ".py" or os.sep in where:
        if not path.is_file():
            raise ValueError(f"{what} must be {FORM}, and there is no file {where!r}")
        folder, name = path.resolve().parent, path.stem
        while (folder / "__init__.py").is_file():  # past all packages that it is in
            folder, name = folder.parent, f"{folder.name}.{name}"
        name = name.removesuffix(".__init__")
    else:
        folder, name = Path.cwd(), where
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"{what} must be {FORM}, and nothing can be imported from {where!r}")
    sys.path[:] = [str(folder), *(entry for entry in sys.path if entry != str(folder))]
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and (name + ".").startswith(error.name + "."):
            raise ValueError(f"there is no module {error.name!r}, here or installed") from None
        raise TargetError(f"importing {where}", error) from error
    if path.suffix == ".py" and not (module.__file__ and path.samefile(module.__file__)):
        other = module.__file__ or "a part of Python"
        raise ValueError(f"{where} cannot be imported: the module {name!r} is {other}. Rename the file")
    return module
