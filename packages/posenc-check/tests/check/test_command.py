"""`posenc check` as one types it: which targets it takes, what it prints and writes, and how it ends."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from posenc.command.cli import main
from posenc_check import Layer, Rotary, run
from posenc_check.targets import subjects_of
from tests.check.small_subjects import CLOCK, ONE_OF_EACH, PASSES, run_alone

PADDING = ["--checks", "7", "--lengths", "3"]
HERE = "tests.check.small_subjects"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder to work in, and no trace of what is imported from it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in (getattr(module, "__file__", None) or ""):
            del sys.modules[name]


@pytest.fixture
def one_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CHECKS", ONE_OF_EACH)
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: CLOCK[0]))


def write(name: str, text: str) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text), encoding="utf-8")
    importlib.invalidate_caches()


MODULES = """
    import torch
    from torch import nn
    from posenc_check import Rotary
    from tests.check.small_subjects import nothing, rotate

    class Net(nn.Module):
        def __init__(self, width=16):
            super().__init__()
            self.linear = nn.Linear(width, width)

        def forward(self, x):
            return self.linear(x).cumsum(1)

    class Narrow(Net): pass
    def net(): return Net(16)
    def one(): return Rotary(build=nothing, call=rotate)
    def two(): return [one(), one()]
    named = {"first": one(), "second": one()}
    empty = []
    built = Net()
    number = 3
    def wrong(): raise RuntimeError("no such\\nthing")
    def inner():
        def made(): return Net()
        return made
    local = inner()
"""


# -- targets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("one", ["mine:one"]),
        ("two", ["mine:two[0]", "mine:two[1]"]),
        ("named", ["mine:named[first]", "mine:named[second]"]),
    ],
)
def test_a_target_is_a_subject_or_gives_some(name: str, found: list[str]) -> None:
    write("mine.py", MODULES)
    subjects = subjects_of(f"mine:{name}")
    assert list(subjects) == found
    assert all(isinstance(subject, Rotary) for subject in subjects.values())


@pytest.mark.parametrize("name", ["net", "Net"])
def test_a_module_is_a_layer_with_the_claims_that_are_given(name: str) -> None:
    write("mine.py", MODULES)
    (subject,) = subjects_of(f"mine:{name}", dim=16, causal=True, max_positions=9).values()
    assert isinstance(subject, Layer)
    assert (subject.causal, subject.max_positions) == (True, 9)
    made = subject.make()
    x = torch.randn(2, 3, 16, dtype=torch.float64)
    torch.testing.assert_close(subject.call(made, x), made(x), rtol=0, atol=0)
    (unclaimed,) = subjects_of(f"mine:{name}", dim=16).values()
    assert (unclaimed.causal, unclaimed.max_positions) == (False, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mine"], "TARGET must be module:name or path/to/file.py:name, got 'mine'"),
        (["mine:"], "TARGET must be module:name or path/to/file.py:name, got 'mine:'"),
        (["mine:a.b"], "TARGET must be module:name or path/to/file.py:name, got 'mine:a.b'"),
        (["other.py:one"], "and there is no file 'other.py'"),
        (["my-file.py:one"], "my-file.py must have a name that scripts can import"),
        (["json.py:one"], "json.py must have a name that scripts can import, and no other module has: rename it"),
        (["no_such_module:one"], "there is no module 'no_such_module', here or installed"),
        (["mine.deeper:one"], "there is no module 'mine.deeper', here or installed"),
        (["mine:tow"], "mine has no 'tow'; it has Rotary, nothing, rotate, Net"),
        (["mine:number"], "mine:number must be a subject, several of them, or a function or class that gives one or"),
        (["mine:number"], ", got int (see"),
        (["mine:empty"], "mine:empty must be a subject, several of them, or a function or class"),
        (["mine:built"], "got Net, which is built already: name what builds it"),
        (["mine:local", "--dim", "16"], "mine:local must be a function or class that a file has at its top level"),
        (["mine:net"], "--dim N must say how wide the vectors are that mine:net takes, (rows, tokens, N)"),
        (["mine:net", "--dim", "16", "--relative"], "are for what is given positions; mine:net is given vectors alone"),
        (["mine:net", "--dim", "5"], "the subject does not run: RuntimeError"),
        (["mine:one", "--dim", "5"], "--dim is for a module; mine:one is a subject, which claims for itself"),
        (["mine:one", "--causal"], "--causal is for a module; mine:one is a subject"),
        (["mine:one", "--absolute"], "--absolute is for a module; mine:one is a subject"),
        (["mine:one", "--max-positions", "5"], "--max-positions is for a module; mine:one is a subject"),
        (["mine:one", "--checks", "7,99"], "checks must be of "),
        (["mine:one", "--lengths", "9", "--longest", "3"], "lengths must be from 1 to longest = 3, got [9]"),
        (["mine:one", "--seconds", "0"], "seconds must be above 0, got 0.0"),
        (["mine:one", "--device", "abacus"], "the subject does not run: RuntimeError"),
        (["mine:one", "--out", "mine.py"], "--out must be a folder, got 'mine.py'"),
        (["mine:one", "--out", "mine.py/o"], "--out must be a path that can be written, got 'mine.py/o': mine.py/o/"),
    ],
)
def test_wrong_use_says_so_in_one_line_and_is_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write("mine.py", MODULES)
    write("my-file.py", "one = 1")
    write("json.py", "one = 1")
    assert main(["check", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("posenc: error: ")
    assert message in shown.err
    assert shown.err.endswith(" (see posenc check --help)\n")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: TARGET"),
        (["a:b", "--checks", "7,x"], "argument --checks: must be numbers and ranges such as 1,7-9, got '7,x'"),
        (["a:b", "--checks", "9-7"], "argument --checks: must be numbers and ranges such as 1,7-9, got '9-7'"),
        (["a:b", "--checks", ""], "argument --checks: must be numbers and ranges such as 1,7-9, got ''"),
        (["a:b", "--relative", "--absolute"], "argument --absolute: not allowed with argument --relative"),
        (["a:b", "--dtype", "bfloat16"], "argument --dtype: invalid choice: 'bfloat16'"),
    ],
)
def test_what_cannot_be_read_is_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["check", *words])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


# -- what fails in the target's own code -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "import no_such_thing_at_all\n",
            "importing mine.py failed: mine.py:1: ModuleNotFoundError: No module named 'no_such_",
        ),
        ("one = (\n", "importing mine.py failed: mine.py:1: SyntaxError: '(' was never closed (mine.py, line 1)"),
        ("raise SystemExit(3)\n", "importing mine.py failed: mine.py:1: SystemExit: 3"),
        (
            "def one(): raise RuntimeError('no such\\nthing')\n",
            "mine.py:one() failed: mine.py:1: RuntimeError: no such thing",
        ),
        ("def one(a): pass\n", "mine.py:one must take no arguments, or be a subject's call: it takes a"),
    ],
)
def test_what_the_target_says_is_the_last_line(text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    write("mine.py", text)
    assert main(["check", "mine.py:one"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"posenc: error: {message}")


# -- what comes of it --------------------------------------------------------------------------------------------------


def test_what_is_right_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{HERE}:RIGHT", *PADDING]) == 0
    shown = capsys.readouterr()
    assert "padding" in shown.out
    assert f"{HERE}:RIGHT: 1 passed" in shown.out
    assert f"{HERE}:RIGHT: 7. padding" in shown.err


def test_what_is_wrong_is_1_and_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("out/scripts/7-stale.py", "# A finding of posenc check, which this script repeats without posenc.\n")
    write("out/scripts/7-of-ones-own.py", "print(1)\n")
    assert main(["check", f"{HERE}:WRONG", *PADDING, "--out", "out", "--dtype", "float32"]) == 1
    shown = capsys.readouterr().out
    for said in (
        "finding",
        "expected",
        "came",
        "smallest input",
        "ids=[[",
        "unsloth#3699",
        "The report: out/report.json",
    ):
        assert said in shown
    out = tmp_path / "out"
    assert {path.name for path in out.iterdir()} == {"report.json", "report.xml", "scripts"}
    data = json.loads((out / "report.json").read_text())
    assert not data["ok"]
    assert data["subjects"][0]["settings"]["dtype"] == "torch.float32"
    assert data["subjects"][0]["settings"]["lengths"] == [3]
    found = [t["finding"] for t in data["subjects"][0]["results"][0]["trials"] if t["finding"]]
    names = {path.name for path in (out / "scripts").iterdir()}
    assert names == {"7-of-ones-own.py", *(finding["file"] for finding in found)}
    for finding in found:
        assert f"out/scripts/{finding['file']}" in shown
        code, said = run_alone((out / "scripts" / finding["file"]).read_text(encoding="utf-8"))
        assert code == 1
        assert finding["came"] in said
    suite = ElementTree.parse(out / "report.xml").getroot()[0]
    assert suite.get("failures") == "1"
    assert main(["check", f"{HERE}:RIGHT", *PADDING, "--out", "out"]) == 0
    assert [path.name for path in (out / "scripts").iterdir()] == ["7-of-ones-own.py"]


@pytest.mark.usefixtures("one_of_each")
@pytest.mark.parametrize(("checks", "code"), [("1", 0), ("1,3", 0), ("2", 1), ("4", 1), ("1-4", 1), ("3", 2)])
def test_how_it_ends(checks: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{HERE}:RIGHT", "--checks", checks]) == code
    shown = capsys.readouterr()
    assert "it is of <another> kind" in shown.out or "3" not in checks
    last = shown.err.splitlines()[-1]
    nothing = f"posenc: error: nothing was checked: no check applies to {HERE}:RIGHT"
    assert (last == nothing) == (code == 2)


@pytest.mark.usefixtures("one_of_each")
def test_interrupted_it_prints_what_was_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = run._result

    def interrupt(entry: Any, *rest: Any) -> Any:
        if entry is not PASSES:
            raise KeyboardInterrupt
        return ended(entry, *rest)

    monkeypatch.setattr(run, "_result", interrupt)
    assert main(["check", f"{HERE}:RIGHT", "--out", "out"]) == 1
    shown = capsys.readouterr()
    assert f"{HERE}:RIGHT: 1 passed, 3 not run" in shown.out
    assert shown.err.splitlines()[-1] == "posenc: error: interrupted: this is what was found so far"
    data = json.loads(Path("out/report.json").read_text())
    assert (data["ok"], data["subjects"][0]["not_run"]) == (False, [2, 3, 4])
    suite = ElementTree.parse("out/report.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("errors")) == ("4", "3")
