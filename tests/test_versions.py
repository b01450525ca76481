"""What older versions of PyTorch cannot compile or register is not in the code, which the version here would not show.
`make oldest` runs the oldest."""

import ast
from pathlib import Path
from types import GenericAlias
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._library import infer_schema

import posenc
from posenc import compat
from posenc.backends.native import operator as native
from posenc.encoding.rotation import Unread
from posenc.rotation.maps import InTurn

SOURCES = Path(posenc.__file__).parent
NOT_TRACED = {"tools", "huggingface", "build.py", "claims.py", "compat.py"}
UNTRACED_CALLS = ("torch.sym_min", "torch.sym_max", "torch.amp.is_autocast_available")


def untraced(node: ast.AST) -> bool:
    """Whether dynamo, in some version from torch 2.6 on, cannot trace this or traces it wrongly."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "dataclasses" and any(name.name == "replace" for name in node.names)  # 2.6
    if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(how) for how in node.decorator_list):
        defaults = [line.value for line in node.body if isinstance(line, ast.AnnAssign)]
        return any(isinstance(x, ast.Call) and ast.unparse(x.func) != "field" for x in defaults)  # 2.6, 2.10, 2.11
    if isinstance(node, ast.FunctionDef):
        given = {each.arg for each in node.args.args}
        return any(  # 2.8: what the caller gave is not changed
            isinstance(line, ast.AugAssign) and isinstance(line.op, ast.BitOr) and ast.unparse(line.target) in given
            for line in ast.walk(node)
        )
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    return (
        (called == "isinstance" and isinstance(node.args[1], ast.BinOp))  # 2.6 to 2.8: A | B
        or (called == "next" and len(node.args) == 2)  # 2.6 to 2.8
        or called in UNTRACED_CALLS  # 2.6 to 2.11
    )


def where_untraced(source: str) -> list[str]:
    return [f"{node.lineno}: {ast.unparse(node)}" for node in ast.walk(ast.parse(source)) if untraced(node)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "source",
    [
        "from dataclasses import dataclass, replace",
        "@dataclass(frozen=True)\nclass A:\n    b: B = B()",
        "isinstance(x, int | float)",
        "next((x for x in xs), None)",
        "torch.sym_min(a, b)",
        "def add(lines):\n    lines |= {}",
    ],
)
def test_it_is_found_where_it_is(source: str) -> None:
    assert len(where_untraced(source)) == 1


def test_no_file_has_what_an_older_compiler_cannot_trace() -> None:
    files = [path for path in SOURCES.rglob("*.py") if not NOT_TRACED & set(path.relative_to(SOURCES).parts)]
    assert len(files) > 100
    found = {str(path.relative_to(SOURCES)): where_untraced(path.read_text(encoding="utf-8")) for path in files}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize("kind", [InTurn, Unread])
def test_maps_are_not_hashed_by_what_they_hold(kind: type) -> None:
    """Before torch 2.12, dynamo hashes what is called, of which a graph's own objects hold nothing yet."""
    assert kind.__hash__ is object.__hash__


def test_operators_name_types_that_torch_2_6_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows those of `typing`, and not ``list`` and `collections.abc.Sequence`."""

    def known(kinds: dict[Any, str]) -> dict[Any, str]:
        return {kind: name for kind, name in kinds.items() if not isinstance(kind, GenericAlias)}

    for name in ("SUPPORTED_PARAM_TYPES", "SUPPORTED_RETURN_TYPES"):
        monkeypatch.setattr(infer_schema, name, known(getattr(infer_schema, name)))
    for function in (native._native, native._native_backward):
        assert "Tensor[]" in infer_schema.infer_schema(function, mutates_args=())


@pytest.mark.more
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_whether_autocast_is_on_is_the_same_in_a_graph(device: str) -> None:
    x, found = torch.empty(2, device=device), []

    def run(x: Tensor) -> Tensor:
        found.append(compat.is_autocast(x))
        return x + compat.is_autocast(x)

    for is_on in (False, True):
        with torch.autocast("cpu", enabled=is_on):
            torch.compile(run, fullgraph=True, backend="eager")(x)
            assert found[-1] is compat.is_autocast(x) is (is_on and device == "cpu")


def test_hooks_of_all_modules_are_seen() -> None:
    """Whose number the module of PyTorch tells only from torch 2.8 on."""
    layer = torch.nn.Linear(2, 2)
    assert not compat.is_hooked(layer)
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert compat.is_hooked(layer)
    finally:
        handle.remove()
