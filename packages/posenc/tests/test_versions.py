"""What older versions of PyTorch cannot compile or register is not in the code, which the version here would not show.
`make check-oldest` runs the oldest."""

import ast
from pathlib import Path

import pytest
import torch
from torch import Tensor

import posenc
from posenc import compat
from posenc.encoding.rotation import Unread
from posenc.rotation.phases import MapSequence

SOURCES = Path(posenc.__file__).parent
NOT_TRACED = {"tools", "huggingface", "build.py", "claims.py", "compat.py"}
UNTRACED_CALLS = ("torch.sym_min", "torch.sym_max", "torch.amp.is_autocast_available")


def untraced(node: ast.AST) -> bool:
    """Whether dynamo, in some version from torch 2.9 on, cannot trace this or traces it wrongly."""
    if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(how) for how in node.decorator_list):
        defaults = [line.value for line in node.body if isinstance(line, ast.AnnAssign)]
        return any(isinstance(x, ast.Call) and ast.unparse(x.func) != "field" for x in defaults)  # 2.10, 2.11
    return isinstance(node, ast.Call) and ast.unparse(node.func) in UNTRACED_CALLS  # 2.9 to 2.11


def where_untraced(source: str) -> list[str]:
    return [f"{node.lineno}: {ast.unparse(node)}" for node in ast.walk(ast.parse(source)) if untraced(node)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("source", ["@dataclass(frozen=True)\nclass A:\n    b: B = B()", "torch.sym_min(a, b)"])
def test_it_is_found_where_it_is(source: str) -> None:
    assert len(where_untraced(source)) == 1


def test_no_file_has_what_an_older_compiler_cannot_trace() -> None:
    files = [path for path in SOURCES.rglob("*.py") if not NOT_TRACED & set(path.relative_to(SOURCES).parts)]
    assert len(files) > 100
    found = {str(path.relative_to(SOURCES)): where_untraced(path.read_text(encoding="utf-8")) for path in files}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize("kind", [MapSequence, Unread])
def test_maps_are_not_hashed_by_what_they_hold(kind: type) -> None:
    """Before torch 2.12, dynamo hashes what is called, of which a graph's own objects hold nothing yet."""
    assert kind.__hash__ is object.__hash__


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
    layer = torch.nn.Linear(2, 2)
    assert not compat.is_hooked(layer)
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert compat.is_hooked(layer)
    finally:
        handle.remove()
