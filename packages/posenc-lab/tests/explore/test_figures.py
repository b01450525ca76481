"""Each figure: the Python that stands under it computes the numbers that it shows."""

import ast
import re
from typing import Any

import pytest
import torch

import posenc
from posenc.schemes.catalog import CATALOG
from posenc.schemes.entry import Entry
from posenc_lab.explore.numbers import JAVASCRIPT
from posenc_lab.kit.titles import TITLES
from tests.explore.browser import FIGURES
from tests.explore.node import STATIC, Node

# A tensor of the reader's, in what a figure gives to copy: "# x: (batch, tokens, dim), here (2, 33, 16)".
TENSORS = re.compile(r"^# (?P<names>[\w, ]+): \([\w, ]+\), here \((?P<shape>[\d, ]+)\)$", re.MULTILINE)
NOT_COPIED = {"seen", "length-curves", "laws", "models"}  # they show a command, or models that are not the reader's
COPIED = [name for name in FIGURES if (STATIC / "figures" / f"{name}.js").exists() and name not in NOT_COPIED]

# What posenc measured itself, records of the user's, and words: nothing that a line of Python could compute again.
WITHOUT_NUMBERS = {"seen", "length-curves", "laws", "which", "decide"}


SEEN = [{"name": "A", "what": "bias", "shape": [n, 2, 2], "values": [0.5] * 4 * n, "command": ""} for n in (4, 1)]


@pytest.fixture(scope="module")
def figures(javascript: Node, plain: dict[str, Any]) -> Node:
    javascript("content", **plain, seen=SEEN)
    return javascript


def run(line: str) -> Any:
    """The value of the last expression of some Python."""
    tree = ast.parse(line)
    *before, last = tree.body
    assert isinstance(last, ast.Expr), f"the last line must be an expression: {line}"
    names: dict[str, Any] = {"posenc": posenc, "torch": torch}
    exec(compile(ast.Module(before, []), "<figure>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<figure>", "eval"), names)


def copied(code: str) -> None:
    """Runs what a figure gives to copy, with tensors of the shapes that its comments say. AssertionError unless its
    result, ``out`` or ``x``, is a new tensor of the shape of what went in."""
    before = {}
    for given in TENSORS.finditer(code):
        shape = [int(size) for size in given["shape"].split(",")]
        make = torch.zeros if "whole numbers" in given["names"] else torch.randn
        dtype = torch.long if "whole numbers" in given["names"] else torch.float
        before |= {name: make(shape, dtype=dtype) for name in given["names"].split(", ") if " " not in name}
    after: dict[str, Any] = {"posenc": posenc, "torch": torch, **before}
    exec(code, after)
    name, like = ("out", "q") if "q" in before else ("x", "x")
    assert name in after, f"nothing comes out: {code}"
    assert after[name] is not before.get(name)
    assert after[name].shape == before[like].shape
    assert after[name].isfinite().all()


@pytest.mark.parametrize("figure", COPIED)
def test_what_one_copies_runs(figure: str, figures: Node) -> None:
    for state in ("defaults", "another"):
        copied(figures("figure", name=figure, state=state)["use"])


@pytest.mark.parametrize("state", ["defaults", "another"])
@pytest.mark.parametrize("figure", [name for name in FIGURES if name not in WITHOUT_NUMBERS])
def test_the_line_computes_what_is_shown(figure: str, state: str, figures: Node) -> None:
    """Within 1e-5 of the largest number: a line may run in float32, whose steps are 1e-7 of it, and sums of some ten
    such errors."""
    found = figures("figure", name=figure, state=state)
    assert found["another"], f"{figure} must have another state to try"
    assert found["compared"] is not None, f"{figure} must say which of its numbers its line computes"
    assert found["compared"].numel() > 1
    agrees(found)


def agrees(found: Any) -> None:
    """AssertionError where the line of a figure computes other numbers than it shows."""
    computed = torch.as_tensor(run(found["line"])).detach().double()
    shown = found["compared"]
    assert computed.shape == shown.shape
    assert torch.equal(computed.isfinite(), shown.isfinite())
    most = shown[shown.isfinite()].abs().max().item() if shown.isfinite().any() else 1.0
    finite = shown.isfinite()
    torch.testing.assert_close(computed[finite], shown[finite], rtol=0, atol=1e-5 * max(most, 1e-30))


@pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.name)
def test_any_scheme_has_a_picture(entry: Entry, figures: Node) -> None:
    found = figures("figure", name="scheme", state={"scheme": entry.name})
    assert found["says"].startswith(TITLES[entry.name])
    assert f"posenc.{entry.scheme.__name__}(" in found["use"]
    copied(found["use"])
    changed = [figures("figure", name="scheme", state={"scheme": entry.name}, change=x) for x in found["choices"]]
    for one in (found, *changed):
        if entry.name in JAVASCRIPT:
            agrees(one)
        else:
            assert one["line"] == f"# posenc plot overview --schemes {entry.name}"
