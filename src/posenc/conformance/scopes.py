"""Which names a piece of Python code takes from the top level of its file, and which it gives to it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def stored(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that code binds where it stands: not those inside the functions, classes and comprehensions in it."""
    for node in _here(nodes):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.split(".")[0]
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        elif isinstance(node, COMPREHENSIONS):  # := reaches out of it
            yield from (n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
        elif isinstance(node, ast.ClassDef | ast.ExceptHandler | ast.MatchAs | ast.MatchStar | FUNCTIONS) and node.name:
            yield node.name


def changed(statement: ast.stmt) -> Iterator[str]:
    """The names whose values a statement changes without binding them: ``table[k] = v``, ``table.update(…)``."""
    for node in _here([statement]):
        root: ast.AST | None = None
        if isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            root = node
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = node.value.func
            by_name = isinstance(called, ast.Name) and called.id in ("setattr", "delattr")
            root = node.value.args[0] if by_name and node.value.args else called
            if isinstance(called, ast.Name) and not by_name:
                continue
        while isinstance(root, ast.Attribute | ast.Subscript | ast.Call):
            root = root.func if isinstance(root, ast.Call) else root.value
        if isinstance(root, ast.Name):
            yield root.id


def looked_up(node: ast.AST, local: frozenset[str] = frozenset()) -> Iterator[ast.Name]:
    """The names in the code that mean those of the top level, where ``local`` are the names around it that do not.

    A name that a class binds in its body counts as of the top level where the body reads it: it may be.
    """
    if isinstance(node, ast.Name):
        if node.id not in local:
            yield node
    elif isinstance(node, ast.Lambda | FUNCTIONS):
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        parameters = {n.arg for n in ast.walk(node.args) if isinstance(n, ast.arg)}
        top = {name for n in _here(body) if isinstance(n, ast.Global) for name in n.names}
        inside = local | (parameters | set(stored(body))) - top
        for child in ast.iter_child_nodes(node):
            yield from looked_up(child, inside if child in body else local)
    elif isinstance(node, COMPREHENSIONS):
        inside = local | set(stored(part.target for part in node.generators))
        for child in ast.iter_child_nodes(node):
            yield from looked_up(child, inside)
    else:
        for child in ast.iter_child_nodes(node):
            for name in looked_up(child, local):
                if not isinstance(node, ast.ClassDef) or isinstance(name.ctx, ast.Load):
                    yield name


def text_annotations(node: ast.AST) -> Iterator[tuple[ast.Constant, ast.expr]]:
    """The annotations, or parts of them, that stand in quotes, and what they say."""
    for part in ast.walk(node):
        for annotation in (getattr(part, "annotation", None), getattr(part, "returns", None)):
            for text in ast.walk(annotation) if isinstance(annotation, ast.AST) else ():
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    try:
                        yield text, ast.parse(text.value, mode="eval").body
                    except SyntaxError:  # the shapes of jaxtyping
                        continue


def renamed(statement: ast.stmt, names: Mapping[str, str], attributes: Mapping[int, str]) -> ast.stmt:
    """The statement at the top level with other ``names``, and names in place of the ``attributes`` of these id()."""
    for text, said in text_annotations(statement):
        text.value = ast.unparse(_Renaming(said, names, {}).visit(said))
    for node in _here([statement]):
        if isinstance(node, ast.ClassDef | FUNCTIONS):
            node.name = names.get(node.name, node.name)
        elif isinstance(node, ast.alias) and (bound := node.asname or node.name.split(".")[0]) in names:
            node.asname = names[bound]
    for part in ast.walk(statement):
        if isinstance(part, ast.Global):
            part.names = [names.get(name, name) for name in part.names]
    return ast.fix_missing_locations(_Renaming(statement, names, attributes).visit(statement))


class _Renaming(ast.NodeTransformer):
    def __init__(self, node: ast.AST, names: Mapping[str, str], attributes: Mapping[int, str]) -> None:
        self._names = {id(name): names[name.id] for name in looked_up(node) if name.id in names}
        self._attributes = attributes

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._names.get(id(node), node.id), node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if id(node) in self._attributes:
            return ast.Name(self._attributes[id(node)], node.ctx)
        return self.generic_visit(node)


def _here(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes and all in them, but for what is inside functions, classes and comprehensions."""
    for node in nodes:
        yield node
        if not isinstance(node, ast.Lambda | ast.ClassDef | FUNCTIONS | COMPREHENSIONS):
            yield from _here(ast.iter_child_nodes(node))
