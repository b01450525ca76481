"""Writes a finding as a script, which holds the code that found it and so runs without this package.

First come the plain files of this package, which import nothing else of it: of each, what the trial and the subject
use, found by following names; of a check, what stands above its cases. The subject's own files are imported, except
those that import posenc_check: the script holds their text, and stands in for that package.
"""

import ast
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import copy
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap
from typing import Any

import torch

from posenc_check import HOMES
from posenc_check.repeat import hold, part_of, repeat, stand_in, stand_in_unless_here
from posenc_check.subjects import Batch, Subject
from posenc_check.trial import Case, Trial

MARK = "# A finding of posenc check, which this script repeats"  # the beginning of every script
CASES = "# -- cases ---"  # in a check, only the code above this line is plain
OWN = "posenc_check"
PLAIN = [f"{OWN}.{n}" for n in ("subjects", "outcome", "calls", "captured", "repeat", "transformers_calls")]
ORACLES = ("like", "match")  # fields that a script does not need, since it holds the numbers computed from them


def script(subject: Subject, trial: Trial, case: Case, heading: str, file: str = "finding.py") -> str:
    """A Python script that runs one trial on one case: it prints what was expected and what came, and exits with 1 if
    they differ. ``heading`` is a comment at its beginning, ``file`` its name.

    Raises ValueError as `check_sources` does.
    """
    claims, batch = given(subject), given(case.batch)
    claims = {name: value for name, value in claims.items() if name not in ORACLES}
    files = _Files()
    used: list[Any] = [*_parts([subject.build, subject.call, claims, case.values]), type(subject), Batch]
    used += [trial.function, repeat, stand_in, hold, part_of]
    for part in (*used, *type(subject).__mro__):
        files.add(part.__module__)

    def arguments(values: dict[str, Any]) -> list[str]:
        return [f"{key}={literal(value, key)}" for key, value in values.items()]

    values = arguments(dict(case.values))
    lines = [
        f"{MARK}.",
        *(f"# {line}".rstrip() for said in heading.splitlines() for line in wrap(said, 118)),
        "#",
        f"# To run it: python {file}",
        f"# It needs {', '.join(files.needs())}.",
        "# Exit codes: 1 while the finding is there, 0 when it is gone, 2 where it does not apply.",
        "",
        *files.lines({part.__name__ for part in used if _is_plain(part.__module__)}),
        "",
        f"subject = {_written(type(subject))}(",
        *(f"    {line}," for line in arguments({"build": subject.build, "call": subject.call, **claims})),
        ")",
        f"batch = Batch({', '.join(arguments(batch))})",
        f"raise SystemExit(repeat({', '.join([_written(trial.function), 'subject', 'batch', *values])}))",
    ]
    return "\n".join(lines) + "\n"


def check_sources(subject: Subject) -> None:
    """Raises ValueError unless a script can be made of the subject: of its class, functions and options."""
    for name, value in {"its class": type(subject), **vars(subject)}.items():
        if name not in ORACLES:
            literal(value, name)
    for part in (subject.build, subject.call):
        if part.__module__ == "__main__" and not _text("__main__"):
            raise ValueError(
                f"{part.__name__} must stand in a file that can be read, so that a script can repeat what is found; "
                f"got {part!r}"
            )


def literal(value: Any, name: str) -> str:
    """Source code for a value in a script; ValueError for what has none."""
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
        said = ", ".join(inside)
        return f"[{said}]" if isinstance(value, list) else f"({said}{',' * (len(inside) == 1)})"
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
    """A long run of consecutive whole numbers as ``*range(...)``; "" for anything else."""
    whole = len(values) > 8 and all(type(value) is int for value in values)
    run = [*range(values[0], values[0] + len(values))] if whole else []
    return f"*range({run[0]}, {run[-1] + 1})" if run and list(values) == run else ""


def _written(part: Any) -> str:
    """The expression for a function or class in a script."""
    module = part.__module__
    return part.__name__ if _is_plain(module) else f"part_of({_name(module)!r}, {part.__name__!r})"


def is_at_top_level(part: Any) -> bool:
    """Whether it is a function or class at the top level of a file, under its own name."""
    name = getattr(part, "__qualname__", "")
    module = sys.modules.get(getattr(part, "__module__", None) or "")
    return callable(part) and name.isidentifier() and module is not None and vars(module).get(name) is part


def given(value: Subject | Batch) -> dict[str, Any]:
    """The fields that differ from their defaults, without ``build`` and ``call``."""
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
        self._begun: set[str] = set()  # files may import one another
        self._plain: dict[str, str] = {}  # their texts, by the names of their modules
        self._held: dict[str, str] = {}
        self._imported: dict[str, None] = {}
        self._stand_ins: dict[str, None] = {OWN: None}

    def add(self, module: str) -> None:
        """The file of a module, and those that it needs."""
        if module in self._begun:
            return
        self._begun.add(module)
        text = _text(module) if _is_plain(module) or _is_local(module) else ""
        imports = dict.fromkeys(_imported_by(module, text))
        if _is_plain(module):  # other imports from posenc are for its cases, which are left out
            imports = {name: None for name in imports if _is_plain(name) or not _is_posenc(name)}
        for name in imports:
            if _is_plain(name) or not _is_own(name):
                self.add(name)
        if _is_plain(module):
            self._plain[module] = text
        elif module == "__main__" or any(_is_own(name) or name in self._held for name in imports):
            self._held[module] = text
            self._stand_ins.update((name, None) for name in imports if _is_own(name))
        else:
            self._imported[module] = None

    def needs(self) -> list[str]:
        """The packages that must be installed, or be in the folders where they are now."""
        names = dict.fromkeys(name.split(".")[0] for name in ("torch", *self._imported))
        found = [name for name in names if _spec(name) is not None]
        return [f"{name} from {_folder(name)}" if _folder(name) else name for name in found]

    def lines(self, roots: set[str]) -> Iterator[str]:
        """The lines of all files: of plain ones what the roots need, and the code that makes modules of the others."""
        roots = roots.union(*(_own_names(text) for text in self._held.values()))
        posenc = [name for name in self._imported if _is_posenc(name)]
        roots |= {stand_in_unless_here.__name__} if posenc else set()
        for module, text in needed(self._plain, roots).items():
            yield from [_line(f"{module.replace('.', '/')}.py"), "", text, "", ""]
        yield from [_line("the subject"), "", f"stand_in({', '.join(map(repr, self._stand_ins))})"]
        folders = dict.fromkeys(_folder(name.split(".")[0]) for name in self._imported)
        yield from [f"sys.path.insert(0, {folder!r})" for folder in folders if folder]
        if posenc:
            yield f"stand_in_unless_here({', '.join(map(repr, posenc))})"
        for module, text in self._held.items():
            folder = next(iter(getattr(sys.modules[module], "__path__", ())), "")
            start = f"hold({_name(module)!r}, {f'folder={folder!r}, ' * bool(folder)}text='''\\"
            yield from [start, *text.rstrip().replace("\\", "\\\\").replace("'''", "\\'\\'\\'").split("\n"), "''')"]


def _is_own(module: str) -> bool:
    return module == OWN or module.startswith(f"{OWN}.")


def _is_posenc(module: str) -> bool:
    return module.split(".")[0] in ("posenc", OWN)


def _is_plain(module: str) -> bool:
    return module in PLAIN or module.startswith(f"{OWN}.checks.")


def _is_local(module: str) -> bool:
    """Whether it is neither installed nor of this package."""
    package = module.split(".")[0]
    return package == "__main__" or (not _is_posenc(module) and _folder(package) != "")


def _text(module: str) -> str:
    """The text of a module's file, "" if it cannot be read; of a check, the plain part."""
    try:
        text = inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):
        return ""
    return text.partition(CASES)[0] if _is_plain(module) else text


def _name(module: str) -> str:
    """The name of a module in a script; ``__main__`` takes the name of its file, as the script is ``__main__``."""
    return Path(getattr(sys.modules[module], "__file__", "")).stem if module == "__main__" else module


def _imported_by(module: str, text: str) -> Iterator[str]:
    """The modules that a text imports; for public names of this package, the modules that define them."""
    package = getattr(sys.modules.get(module), "__package__", None) or ""
    for node in _imports_in(text):
        if isinstance(node, ast.Import):
            yield from (name for alias in node.names for name in (alias.name.split(".")[0], alias.name))
        else:
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            yield origin
            for alias in node.names:
                inner = f"{origin}.{HOMES.get(alias.name, alias.name) if origin == OWN else alias.name}"
                if inner in sys.modules:
                    yield inner


@cache  # the scripts of all findings hold the same files
def _imports_in(text: str) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]


def _spec(package: str) -> ModuleSpec | None:
    """The spec of a package; None if it is not found, is of the standard library, or has no file."""
    try:
        return None if package in sys.stdlib_module_names else find_spec(package)
    except ValueError:  # it is imported, but without a spec
        return None


def _folder(package: str) -> str:
    """The folder from which a package is imported; "" if it is installed, as posenc is taken to be."""
    spec = None if package in ("posenc", OWN) else _spec(package)
    path = "" if spec is None else next(iter(spec.submodule_search_locations or ()), spec.origin or "")
    folder = Path(path).absolute().parent
    return "" if not path or {"site-packages", "dist-packages"} & set(folder.parts) else str(folder)


def _line(title: str) -> str:
    return f"# -- {title} ".ljust(120, "-")


def _own_names(text: str) -> set[str]:
    """The names that a file may use of this package: those that it imports, and all attributes."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            found |= {*names, *HOMES} if "*" in names else names
    return found


@dataclass(frozen=True)
class _Part:
    """A statement at the top level of a file, with its lines and those of the comments above it."""

    node: ast.stmt
    lines: list[str]
    makes: frozenset[str]
    uses: frozenset[str]


def needed(texts: Mapping[str, str], roots: Collection[str]) -> dict[str, str]:
    """The parts of each file that are reached from the names of the roots; no two files may define the same name."""
    files = {name: _shorten_parts(text) for name, text in texts.items()}
    every = [part for parts in files.values() for part in parts]
    reached, wanted = set[str](), set(roots)
    while wanted - reached:
        reached |= wanted
        wanted = {name for part in every if part.makes & reached and not _imports(part) for name in part.uses}
    found, imported = {}, set[str]()  # imported by an earlier file
    for name, parts in files.items():
        kept = [part for part in parts if part.makes & reached and not _imports(part)]
        used = frozenset[str]().union(*(part.uses for part in kept))
        imports = [line for part in parts if _imports(part) for line in _import(part.node, used, imported)]
        if kept:
            found[name] = "\n".join([*imports, *(line for part in kept for line in _shortened(part))]).strip()
    return found


@cache  # the scripts of all findings are cut from the same files
def _shorten_parts(text: str) -> list[_Part]:
    lines, end, parts = text.split("\n"), 0, list[_Part]()
    for node in ast.parse(text).body:
        start, end = end, node.end_lineno or 0
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):  # the docstring
            parts.append(_Part(node, lines[start:end], frozenset(_made(node)), frozenset(_used(node))))
    return parts


def _imports(part: _Part) -> bool:
    return isinstance(part.node, ast.Import | ast.ImportFrom)


def _made(node: ast.stmt) -> Iterator[str]:
    """The names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    for inner in ast.walk(node) if isinstance(node, ast.Assign | ast.AnnAssign) else ():
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id


def _used(node: ast.AST) -> Iterator[str]:
    """The names in a statement, also those in quoted annotations."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str) and inner.value.isidentifier():
            yield inner.value


def _import(node: ast.stmt, used: Collection[str], imported: set[str]) -> list[str]:
    """The import with only those names that are used and not yet imported, and nothing from posenc."""
    assert isinstance(node, ast.Import | ast.ImportFrom)
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("posenc"):
        return []
    names = [(alias, alias.asname or alias.name.split(".")[0]) for alias in node.names]
    node = copy(node)
    node.names = [alias for alias, name in names if name in used and name not in imported]
    imported.update(name for _, name in names if name in used)
    return [ast.unparse(node)] if node.names else []


def _shortened(part: _Part) -> list[str]:
    """The lines of a statement; of the docstring of a class, only the first paragraph."""
    first = part.node.body[0] if isinstance(part.node, ast.ClassDef) else None
    if first is None or not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
        return part.lines
    above = (part.node.end_lineno or 0) - len(part.lines)  # lines before the first of these
    start, end = first.lineno - 1 - above, (first.end_lineno or 0) - above
    said = part.lines[start:end]
    if "" not in said:
        return part.lines
    first_paragraph = said[: said.index("")]
    return [*part.lines[:start], *first_paragraph[:-1], first_paragraph[-1] + '"""', *part.lines[end:]]
