"""Imports user code, named as ``module:name`` or ``path/to/file.py:name``, locates its errors, and loads a user's
scheme, ``my.py:MyScheme``, which can be used wherever a name of the catalog can.

The scheme claims no laws, and is built by calling the class with those of dim, num_heads, head_dim, max_positions and
grid that its ``__init__`` takes, unless the file has an ``ENTRY`` of that class.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from itertools import dropwhile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from posenc.arguments import check_name, shown

if TYPE_CHECKING:  # imported inside functions, so that this module works without torch
    from posenc.scheme import Scheme
    from posenc.schemes.entry import Entry, Shape

TARGET = "module:name or path/to/file.py:name"
PATH_FORM = "path/to/file.py:Name"
# Separates the schemes of several layers. Not the ~ of a home folder or of PROGRA~1.
LAYER_SEPARATOR = re.compile(r"(?<=[^+~])~(?!\d)")
SIZES = ("dim", "num_heads", "head_dim", "max_positions", "grid")

_FILES: dict[str, str] = {}  # paths of imported files, as in tracebacks, to those that the user wrote
_DIGESTS: dict[str, str] = {}  # of these files, as they were imported
_BY_PATH: dict[str, ModuleType] = {}  # files whose own name no module can have, or another module has


class TargetError(ValueError):
    """User code failed: the message has the error and its line, and ``shown`` is the traceback through that code."""

    def __init__(self, doing: str, error: BaseException) -> None:
        super().__init__(f"{doing} failed: {describe_error(error)}")
        # Without importlib's frames, and those of posenc that lead there; of installed packages, only the last frame.
        shown = traceback.TracebackException.from_exception(error, compact=True)
        library = ("<frozen", os.path.dirname(importlib.__file__))
        packages = (sys.modules.get(name) for name in ("posenc", "posenc_lab", "posenc_check"))
        ours = tuple(os.path.dirname(package.__file__ or "") for package in packages if package)
        theirs = [frame for frame in shown.stack if not frame.filename.startswith(library)]
        frames = list(dropwhile(lambda frame: frame.filename.startswith(ours), theirs))
        shown.stack[:] = [frame for frame in frames if "site-packages" not in frame.filename or frame is frames[-1]]
        self.shown = "".join(shown.format(chain=False))


def load_object(text: str, what: str) -> tuple[Any, ModuleType]:
    """The object that ``module:name`` or ``path/to/file.py:name`` names, and its module; ``what`` is the argument's
    name in errors.

    Raises ValueError if it does not exist, and `TargetError` if the module's code fails.
    """
    where, _, name = text.rpartition(":")
    if not where or not name.isidentifier():
        raise ValueError(f"{what} must be {TARGET}, got {text!r}")
    module = load_module(where, what)
    if not hasattr(module, name):
        public = [k for k, v in vars(module).items() if not (k.startswith("_") or isinstance(v, ModuleType))]
        raise ValueError(f"{where} has no {name!r}; it has {', '.join(public) or 'nothing'}")
    return getattr(module, name), module


def load_module(where: str, what: str) -> ModuleType:
    """The module of a name or a path, imported once. Raises as `load_object` does.

    A file of a package is imported as a part of it. Other files can import their neighbors, like a script.
    """
    path = Path(where)
    if path.suffix == ".py" or os.sep in where:
        if not path.is_file():
            raise ValueError(f"{what} must be {TARGET}, and there is no file {where!r}")
        return _file(path, where)
    if not _is_name(where):
        raise ValueError(f"{what} must be {TARGET}, and nothing can be imported from {where!r}")
    return _module(where, str(Path.cwd()), where)


def is_importable(module: ModuleType) -> bool:
    """Whether other code can import this module by its name."""
    return module not in _BY_PATH.values()


def error_location(error: BaseException) -> str:
    """The last line of a user's file in an error's traceback, ``my.py:12``; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename in _FILES:
        return f"{_FILES[error.filename]}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in _FILES]
    return f"{_FILES[frames[-1].filename]}:{frames[-1].lineno}" if frames else ""


def register_file(file: str, where: str) -> None:
    """Makes `error_location` find lines of this file too, and call it ``where``."""
    _FILES[file] = where


def describe_error(error: BaseException) -> str:
    """An error of user code in one line: where, its type, and its message."""
    return ": ".join(filter(None, (error_location(error), type(error).__name__, " ".join(str(error).split()))))


def _file(path: Path, where: str) -> ModuleType:
    file = path.resolve()
    key = str(file)
    if key in _BY_PATH:
        return _BY_PATH[key]
    register_file(key, where)
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
    return all(part.isidentifier() for part in name.split("."))


# --- schemes ----------------------------------------------------------------------------------------------------------


def entry_of(text: str) -> Entry:
    """The entry of ``my.py:MyScheme`` or ``my.py:ENTRY``, under that name. The file is executed once.

    Raises ValueError for a missing file or class and, with the file's line, if its code fails.
    """
    from posenc.scheme import Scheme
    from posenc.schemes.entry import Entry

    where, _, name = text.rpartition(":")
    module = _module_of(text)
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
    parts = (part for layer in LAYER_SEPARATOR.split(names) for part in layer.split("+"))
    modules = (_module_of(part) for part in parts if ":" in part)
    return "".join(_DIGESTS[str(Path(module.__file__ or "").resolve())] for module in modules)


def _module_of(text: str) -> ModuleType:
    where = text.rpartition(":")[0]
    if Path(where).suffix != ".py" or not Path(where).is_file():
        raise ValueError(f"scheme must be a name of the catalog or {PATH_FORM} of an existing file, got {text!r}")
    return load_module(where, "scheme")


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
