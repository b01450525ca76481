"""Extracts the parts of files that a script needs, by following names.

A file is cut at its top level. A function, class or constant stays if its name is among the roots, or in something that
stays. Of docstrings, those of files go, and those of classes keep their first paragraph.
"""

import ast
from collections.abc import Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class _Part:
    """A statement at the top level of a file, with its lines and those of the comments above it."""

    node: ast.stmt
    lines: list[str]
    makes: frozenset[str]
    uses: frozenset[str]


def needed(texts: Mapping[str, str], roots: Collection[str]) -> dict[str, str]:
    """The parts of each file that are reached from the names of the roots, in their order; files without such parts are
    left out. No two files may define the same name, and their imports of one another are dropped."""
    files = {name: _parts(text) for name, text in texts.items()}
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
def _parts(text: str) -> list[_Part]:
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
    """The import with only those names that are used and not yet imported; nothing from posenc, whose files are
    here."""
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
