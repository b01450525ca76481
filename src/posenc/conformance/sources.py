"""The parts of source files that functions and classes need, put together as one file."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import nn

from posenc.conformance.scopes import FUNCTIONS, changed, looked_up, renamed, stored, text_annotations

PACKAGE = "posenc"
OWN = "posenc.conformance"  # what a script does without
MEMORY = "posenc.workbench.memory"  # plain too: what counts bytes stands there alone
KNOWN_DECORATORS = ("property", "cached_property", "staticmethod", "classmethod", "abstractmethod", "setter")
WIDTH = 120


def is_at_top_level(part: Any) -> bool:
    """Whether it is a function or class that a file has at its top level, by its own name."""
    name = getattr(part, "__qualname__", "")
    module = sys.modules.get(getattr(part, "__module__", None) or "")
    return callable(part) and name.isidentifier() and module is not None and vars(module).get(name) is part


class Sources:
    """Functions and classes with all they use: first they are added, then settled, then written.

    Raises ValueError where a file that must be copied cannot be read.
    """

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._kept: dict[int, _Kept] = {}  # by the id() of the statement
        self._meant: dict[tuple[str, str], list[_Target]] = {}  # what the names of files stand for
        self._needs: dict[str, dict[str, None]] = {}  # which copied files a file needs
        self._words: set[str] = set()  # whatever may be the name of a method or a field
        self._any_word = False  # whether a subject's methods may be named by a word that is made up on the way
        self._names: dict[_Target, str] = {}
        self._imported: list[_Target] = []
        self._inside: dict[str, None] = {}  # modules that functions import

    # -- gathering ----------------------------------------------------------------------------------------------------

    def add(self, part: Any) -> None:
        """A function or class at the top level of a file, a module, which is imported, or a word that may name one."""
        if isinstance(part, str):
            self._words.add(part)
            return
        target = _target(part)
        self._meant[target.module, target.alias] = [target]
        if target.copied:
            self._keep(target)

    def mentions(self, name: str) -> bool:
        """Whether what is copied may read a field, or call a method, of that name."""
        return name in self._words

    def _file(self, module: str) -> _File:
        if module not in self._files:
            file = self._files[module] = _File(sys.modules[module])
            for statement in [] if file.own else file.statements:
                if any(vars(file.module).get(name) is torch for name in changed(statement)):
                    self._keep_statement(file, statement)  # torch.set_default_dtype(…)
        return self._files[module]

    def _need(self, file: _File, name: str) -> None:
        """What a name at the top level of a file stands for."""
        key = (file.name, name)
        if key not in self._meant:
            self._meant[key] = targets = list(self._resolved(file, name))
            for target in targets:
                if target.copied:
                    self._needs.setdefault(file.name, {})[target.module] = None
                    self._keep(target)
                elif file.own and target.module.split(".")[0] == PACKAGE:
                    raise AssertionError(f"{file.name} is copied into scripts, so it cannot use {target.module}")

    def _resolved(self, file: _File, name: str) -> Iterator[_Target]:
        binding = file.binding(name)
        imports = [node for node in binding if isinstance(node, ast.Import | ast.ImportFrom)]
        if len(imports) < len(binding):
            yield _Target(file.name, name, name, copied=True)
            return
        for node in imports:
            for alias in node.names:
                if name == (alias.asname or alias.name.split(".")[0]):
                    yield from self._found(file, node, alias, name)
        for other in [] if binding else file.statements:
            if isinstance(other, ast.ImportFrom) and other.names[0].name == "*":
                origin = file.origin(other)
                if name in vars(sys.modules[origin]):
                    yield from self._found_in(origin, name, name)

    def _found(self, file: _File, node: ast.Import | ast.ImportFrom, alias: ast.alias, name: str) -> Iterator[_Target]:
        if isinstance(node, ast.ImportFrom):
            yield from self._found_in(file.origin(node), alias.name, name)
        elif alias.asname and "." in alias.name:
            origin, _, last = alias.name.rpartition(".")
            yield from self._found_in(origin, last, name)
        else:  # a module that is copied is not imported, but the package around it may be
            module = name if not alias.asname and _is_copied(alias.name) else alias.name
            if not _is_copied(module):
                yield _Target(module, None, name)

    def _found_in(self, origin: str, name: str, alias: str) -> Iterator[_Target]:
        value = getattr(sys.modules[origin], name, None)
        if isinstance(value, ModuleType):
            if not _is_copied(value.__name__):
                yield _Target(origin, name, alias)
        elif _is_copied(origin):
            yield from self._resolved(self._file(origin), name)
        else:
            yield _Target(origin, name, alias)

    def _keep(self, target: _Target) -> None:
        file = self._file(target.module)
        for node in file.about(target.alias):
            self._keep_statement(file, node)

    def _keep_statement(self, file: _File, node: ast.stmt) -> None:
        if id(node) in self._kept:
            return
        kept = self._kept[id(node)] = _Kept(file, node, _members(file, node))
        if isinstance(node, ast.ClassDef):
            body = [part for part in node.body if part not in kept.left]
            node = ast.ClassDef(node.name, node.bases, node.keywords, body, node.decorator_list)
        self._scan(kept, node)

    def _scan(self, kept: _Kept, node: ast.AST) -> None:
        """All that a piece of a file needs."""
        file, tops, found = kept.file, {id(name): name for name in looked_up(node)}, set()
        for part in ast.walk(node):
            if isinstance(part, ast.Attribute):
                self._words.add(part.attr)
                module, root = file.module_at(part.value), _root(part)
                if module is not None and _is_copied(module.__name__) and id(root) in tops:
                    found.add(id(root))
                    if file.module_at(part) is None:
                        kept.attributes[id(part)] = (module.__name__, part.attr)
                        self._needs.setdefault(file.name, {})[module.__name__] = None
                        self._need(self._file(module.__name__), part.attr)
            elif isinstance(part, ast.keyword) and part.arg:
                self._words.add(part.arg)
            elif isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isidentifier():
                self._words.add(part.value)
            elif isinstance(part, ast.Call) and _is_dynamic(part):
                self._any_word = True
            elif isinstance(part, ast.Import | ast.ImportFrom):
                kept.relative = kept.relative or getattr(part, "level", 0) > 0
                self._inside |= dict.fromkeys(_imported_inside(kept, part))
        for key, name in tops.items():
            if key not in found:
                self._need(file, name.id)
        for _, said in text_annotations(node):
            for name in looked_up(said):
                self._need(file, name.id)

    # -- settling -----------------------------------------------------------------------------------------------------

    def settle(self, reserved: Sequence[str]) -> Callable[[Any], str]:
        """Takes in the methods that may be called, and gives everything its name; none is one of ``reserved``.

        Gives the function that says what a function, class or module that was added is called.
        """
        waiting = True
        while waiting:
            waiting = False
            for kept in list(self._kept.values()):
                any_word = self._any_word and not kept.file.own
                for member in [part for part in kept.left if any_word or self.mentions(_bound(part))]:
                    kept.left.remove(member)
                    self._scan(kept, ast.ClassDef("", [], [], [member], []))
                    waiting = True
        taken: dict[str, object] = dict.fromkeys([*reserved, *dir(builtins)])
        for target in sorted(self._targets(), key=self._rank):
            name, same = target.alias, _identity(target)
            while name in taken and taken[name] != same:
                origin = "module" if target.name is None else target.module.split(".")[-1].strip("_")
                name = f"{name}_of_{origin}" if name == target.alias else f"{name}_"
            if not target.copied and (name not in taken or target.is_dotted):
                self._imported.append(target)
            taken[name], self._names[target] = same, name
        return lambda part: self._names[_target(part)]

    def _targets(self) -> set[_Target]:
        named = {target for targets in self._meant.values() for target in targets}
        bound = {(k.file.name, name) for k in self._kept.values() for name in stored([k.node])}
        return named | {_Target(module, name, name, copied=True) for module, name in bound}

    def _rank(self, target: _Target) -> tuple[Any, ...]:
        """Who keeps a name that two want: what cannot have another, then the subject's file, then this package."""
        return (
            not target.is_dotted,
            target.copied and target.module.startswith(OWN),
            not target.copied,
            *map(str, target),
        )

    def _other_names(self, file: _File) -> dict[str, str]:
        """The names of a file that are others in the script."""
        known = {name: targets[0] for (module, name), targets in self._meant.items() if module == file.name and targets}
        known |= {t.alias: t for t in self._names if t.copied and t.module == file.name}
        return {name: self._names[target] for name, target in known.items() if self._names[target] != name}

    # -- writing ------------------------------------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        """The file, and two empty lines."""
        yield from self._imports()
        gap = [""]  # after the imports, if no function or class comes next
        for file in self._ordered():
            names = self._other_names(file)
            for node in file.statements:
                if id(node) in self._kept:
                    block = isinstance(node, ast.ClassDef | FUNCTIONS)
                    yield from ["", ""] if block else gap
                    yield from self._written(self._kept[id(node)], names)
                    gap = ["", ""] if block else []
        yield from ["", ""]

    def _ordered(self) -> list[_File]:
        """Every file after those that it needs."""
        found: dict[str, None] = {}
        begun: set[str] = set()

        def visit(name: str) -> None:
            if name not in begun:
                begun.add(name)
                for other in self._needs.get(name, ()):
                    visit(other)
                found[name] = None

        for name in self._files:
            visit(name)
        return [self._files[name] for name in found]

    def _imports(self) -> Iterator[str]:
        futures = {
            alias.name
            for kept in self._kept.values()
            for node in kept.file.statements
            if isinstance(node, ast.ImportFrom) and node.module == "__future__"
            for alias in node.names
        }
        if futures:
            yield from [f"from __future__ import {', '.join(sorted(futures))}", ""]
        modules = [*(target.module for target in self._imported), *self._inside]
        places = {_place(module): module.split(".")[0] for module in modules}
        places = {place: module for place, module in places.items() if place}
        if places:
            yield "import sys"
            yield from [""]
            for place, module in places.items():
                yield f"sys.path.insert(0, {place!r})  # where {module} lies"
            yield ""
        groups: dict[int, list[_Target]] = {}
        for target in self._imported:
            if target.module != "__future__":
                groups.setdefault(_section(target.module), []).append(target)
        for number in sorted(groups):
            yield from [""] if number > min(groups) else []
            yield from _import_lines(groups[number], self._names)

    def _written(self, kept: _Kept, names: Mapping[str, str]) -> Iterator[str]:
        node = kept.node
        attributes = {key: self._names[self._meant[target][0]] for key, target in kept.attributes.items()}
        changes = attributes or (names and not names.keys().isdisjoint(_names_in(node)))
        if changes or kept.relative or kept.file.is_crowded(node):
            if isinstance(node, ast.ClassDef):
                node.body = [part for part in node.body if part not in kept.left] or [ast.Pass()]
            _drop_docstrings(node)
            for part in ast.walk(node):
                if isinstance(part, ast.ImportFrom):
                    part.module, part.level = kept.file.origin(part), 0
            yield from ast.unparse(renamed(node, names, attributes)).split("\n")
        else:
            yield from _copied_lines(kept)


# -- files and what is in them ----------------------------------------------------------------------------------------


class _Target(NamedTuple):
    """What a name stands for: something that is copied, or imported ``from module import name as alias``."""

    module: str
    name: str | None  # None: the module itself
    alias: str
    copied: bool = False

    @property
    def is_dotted(self) -> bool:
        """``import a.b``, which binds a and can bind nothing else."""
        return self.name is None and "." in self.module and self.alias == self.module.split(".")[0]


class _File:
    """A source file that is copied, cut into the statements at its top level."""

    def __init__(self, module: ModuleType) -> None:
        try:
            text = inspect.getsource(module)
        except (OSError, TypeError):
            raise ValueError(
                f"{module.__name__} has no file that can be read, so that no script can repeat what is found"
            ) from None
        self.module, self.name = module, module.__name__
        self.own = self.name.startswith(OWN)
        self.lines = text.split("\n")  # as Python counts them: splitlines() also splits at form feeds
        self.statements = [node for node in ast.parse(text).body if not _tests(node, "__name__")]
        if self.own:  # what the package's own file imports late, for type checkers
            parts = ([node] if not _tests(node, "TYPE_CHECKING") else node.body for node in self.statements)
            self.statements = [node for part in parts for node in part]
        self._bound = [set(stored([node])) for node in self.statements]
        self._changed = [set(changed(node)) for node in self.statements]

    def binding(self, name: str) -> list[ast.stmt]:
        """The statements that bind a name."""
        return [node for node, names in zip(self.statements, self._bound, strict=True) if name in names]

    def about(self, name: str) -> list[ast.stmt]:
        """The statements that bind a name or change its value."""
        pairs = zip(self._bound, self._changed, strict=True)
        return [node for node, (bound, also) in zip(self.statements, pairs, strict=True) if name in bound | also]

    def is_crowded(self, node: ast.stmt) -> bool:
        """Whether a statement shares a line with another."""
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        return any(other.lineno in lines or other.end_lineno in lines for other in self.statements if other is not node)

    def origin(self, node: ast.ImportFrom) -> str:
        """The module that something is imported from."""
        return _origin(self.module, node)

    def module_at(self, node: ast.AST) -> ModuleType | None:
        """The module that an expression such as ``a.b`` is, if it is one."""
        found: Any = None
        if isinstance(node, ast.Name):
            found = vars(self.module).get(node.id)
        elif isinstance(node, ast.Attribute) and (of := self.module_at(node.value)) is not None:
            found = getattr(of, node.attr, None)
        return found if isinstance(found, ModuleType) else None


@dataclass
class _Kept:
    """A statement that is copied; of a class, what nothing uses so far is left out."""

    file: _File
    node: ast.stmt
    left: list[ast.stmt]
    relative: bool = False  # whether there is an import in it that counts from where its file lies
    attributes: dict[int, tuple[str, str]] = field(default_factory=dict)  # ids of nodes: names of copied files


def _identity(target: _Target) -> object:
    """The same for two imports that give one thing, as ``import a.b`` and ``import a.c`` do: both bind a."""
    if target.copied:
        return target
    if target.name is None:
        return target.alias if target.alias == target.module.split(".")[0] else target
    value = getattr(sys.modules[target.module], target.name)
    return id(getattr(value, "__origin__", value))  # typing.Callable is that of collections.abc


def _target(part: Any) -> _Target:
    if isinstance(part, ModuleType):
        return _Target(part.__name__, None, part.__name__)
    return _Target(part.__module__, part.__qualname__, part.__qualname__, _is_copied(part.__module__))


def _members(file: _File, node: ast.stmt) -> list[ast.stmt]:
    """What the body of a class can do without, as long as nothing names it.

    Of a subject's own class these are private methods and, in a module, all: an object of another class may be handed
    to code that is not copied and calls what it likes. What overrides something of such code stays.
    """
    kind = vars(file.module).get(getattr(node, "name", ""))
    if not isinstance(node, ast.ClassDef) or not isinstance(kind, type):
        return []
    outside = [base for base in kind.__mro__[1:] if not _is_copied(base.__module__)]
    found: list[ast.stmt] = []
    for part in node.body:
        name = _bound(part)
        overrides = any(name in vars(base) for base in outside)
        if isinstance(part, FUNCTIONS):
            known = all(_last_word(decorator) in KNOWN_DECORATORS for decorator in part.decorator_list)
            uncalled = file.own or name.startswith("_") or issubclass(kind, nn.Module)
            if known and uncalled and not overrides and not (name.startswith("__") and name.endswith("__")):
                found.append(part)
        elif isinstance(part, ast.AnnAssign) and file.own and _is_by_keyword(node):
            found.append(part)
    return found


def _names_in(node: ast.stmt) -> Iterator[str]:
    """The names of the top level that a statement has in it."""
    yield from stored([node])
    for part in [node, *(said for _, said in text_annotations(node))]:
        yield from (name.id for name in looked_up(part))


def _bound(part: ast.stmt) -> str:
    return next(stored([part]), "")


def _last_word(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_by_keyword(node: ast.ClassDef) -> bool:
    """Whether it is a dataclass that is made with keywords alone, so that a field can be left out."""
    return any(word.arg == "kw_only" for d in node.decorator_list if isinstance(d, ast.Call) for word in d.keywords)


def _is_dynamic(call: ast.Call) -> bool:
    """Whether it may ask for anything by name."""
    named = isinstance(call.func, ast.Name) and call.func.id in ("getattr", "hasattr")
    return named and len(call.args) > 1 and not isinstance(call.args[1], ast.Constant)


def _tests(node: ast.stmt, name: str) -> TypeGuard[ast.If]:
    """Whether it is an if that asks for a name."""
    return isinstance(node, ast.If) and any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node.test))


def _root(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def _imported_inside(kept: _Kept, node: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules that a statement within another imports; ValueError if a function imports what is copied."""
    names = [kept.file.origin(node)] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    copied = [name for name in names if _is_copied(name)]
    if copied and isinstance(kept.node, ast.ClassDef | FUNCTIONS):
        raise ValueError(
            f"{kept.file.name}.{_bound(kept.node)} imports {copied[0]}, which a script does without: import it at the "
            f"top of the file"
        )
    return [name for name in names if name not in copied]


# -- modules ----------------------------------------------------------------------------------------------------------


def _is_copied(name: str) -> bool:
    """Whether a module cannot be imported without this package, or not at all."""
    if name in ("__main__", OWN, MEMORY) or name.startswith(OWN + "."):
        return True
    begun: set[str] = set()
    waiting = [name, *_packages(name)]
    while waiting:
        module = sys.modules.get(waiting.pop())
        if module is None or module.__name__ in begun or module.__name__.split(".")[0] == PACKAGE:
            continue
        begun.add(module.__name__)
        imported = _imported_by(module)
        if any(other == OWN or other.startswith(OWN + ".") for other in imported):
            return True
        waiting += [other for other in imported if _place(other)]
    return False


@functools.cache
def _imported_by(module: ModuleType) -> tuple[str, ...]:
    """The modules that a file imports, anywhere in it, and the packages they are in."""
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        return ()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(module, node)
            found += [origin, *(f"{origin}.{alias.name}" for alias in node.names)]
    return tuple(dict.fromkeys(part for name in found for part in [name, *_packages(name)] if part in sys.modules))


def _packages(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def _origin(module: ModuleType, node: ast.ImportFrom) -> str:
    package = module.__package__ or (module.__spec__.parent if module.__spec__ else "")  # lazy packages lack the first
    return importlib.util.resolve_name("." * node.level + (node.module or ""), package)


def _place(name: str) -> str:
    """The folder that a module is found in, unless it is installed."""
    module = sys.modules.get(name.split(".")[0])
    return "" if module is None else _folder(module)


@functools.cache
def _folder(module: ModuleType) -> str:
    path = next(iter(getattr(module, "__path__", ())), None) or getattr(module, "__file__", None)
    if path is None or module.__name__ in sys.stdlib_module_names:
        return ""
    folder = Path(path).absolute().parent
    return "" if {"site-packages", "dist-packages"} & set(folder.parts) else str(folder)


def _section(module: str) -> int:
    """Python's own imports stand first, then what is installed, then the rest."""
    return 0 if module.split(".")[0] in sys.stdlib_module_names else 2 if _place(module) else 1


def _import_lines(targets: Iterable[_Target], names: Mapping[_Target, str]) -> Iterator[str]:
    whole: set[str] = set()
    parts: dict[str, set[str]] = {}
    for target in targets:
        name = names[target]
        if target.name is None:
            whole.add(f"import {target.module}" + ("" if name == target.module.split(".")[0] else f" as {name}"))
        else:
            parts.setdefault(target.module, set()).add(target.name + ("" if name == target.name else f" as {name}"))
    yield from sorted(whole)
    for module, members in sorted(parts.items()):
        inside = sorted(members, key=lambda member: (not member.isupper(), not member[0].isupper(), member))
        line = f"from {module} import {', '.join(inside)}"
        if len(line) <= WIDTH:
            yield line
        else:
            yield from [f"from {module} import (", *(f"    {member}," for member in inside), ")"]


# -- text -------------------------------------------------------------------------------------------------------------


def _copied_lines(kept: _Kept) -> list[str]:
    """The statement as it stands in its file, without what is left out and without docstrings."""
    lines, node = kept.file.lines, kept.node
    gone: set[int] = set()
    for part in ast.walk(node):
        if not isinstance(part, ast.ClassDef | FUNCTIONS):
            continue
        left = kept.left if part is node else []
        live = [n for n in part.body if n not in left]
        if len(live) > 1 and _docstring(part):
            live = live[1:]
            gone |= set(range(part.body[0].lineno, (part.body[0].end_lineno or 0) + 1))
        before = part.lineno
        for member in part.body:
            if member in left:  # with the comments above it
                gone |= set(range(_first(member), (member.end_lineno or 0) + 1))
                gone |= {n for n in range(before + 1, _first(member)) if lines[n - 1].strip()[:1] in ("", "#")}
            before = member.end_lineno or before
        if live:
            gone |= {n for n in range(part.lineno, _first(live[0])) if not lines[n - 1].strip()}
    kept_lines = [lines[n - 1] for n in range(_first(node), (node.end_lineno or 0) + 1) if n not in gone]
    nothing = isinstance(node, ast.ClassDef) and all(part in kept.left for part in node.body)
    return [*kept_lines, "    pass"] if nothing else kept_lines


def _first(node: ast.stmt) -> int:
    """The line on which a statement begins, or its first decorator."""
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])


def _docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef | FUNCTIONS) and ast.get_docstring(node, clean=False) is not None


def _drop_docstrings(node: ast.stmt) -> None:
    for part in ast.walk(node):
        if isinstance(part, ast.ClassDef | FUNCTIONS) and _docstring(part) and len(part.body) > 1:
            del part.body[0]
