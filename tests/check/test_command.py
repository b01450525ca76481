"""`posenc check` as one types it: which targets it takes, what it prints and writes, and how it ends."""

import errno
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from posenc.tools.check import Layer, Rotary, Subject, run
from posenc.tools.check.targets import subjects_of
from posenc.tools.cli import main
from tests.check.small import CLOCK, ONE_OF_EACH, PASSES, run_alone

PADDING = ["--checks", "7", "--lengths", "3"]
HERE = "tests.check.small"


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
    from posenc.tools.check import Rotary
    from tests.check.small import nothing, rotate

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
    (subject,) = subjects_of(f"mine:{name}", dim=16, causal=True, relative=False, max_positions=9).values()
    assert isinstance(subject, Layer)
    assert (subject.causal, subject.relative, subject.max_positions) == (True, False, 9)
    made = subject.make()
    x = torch.randn(2, 3, 16, dtype=torch.float64)
    torch.testing.assert_close(subject.call(made, x), made(x), rtol=0, atol=0)
    (unclaimed,) = subjects_of(f"mine:{name}", dim=16).values()
    assert (unclaimed.causal, unclaimed.relative, unclaimed.max_positions) == (False, None, None)


def test_a_model_of_transformers_is_known_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        "mine.py",
        """
        from torch import nn
        class PreTrainedModel(nn.Module): pass
        PreTrainedModel.__module__ = "transformers.modeling_utils"
        class Mine(PreTrainedModel): pass
        def build(): return Mine()
        """,
    )
    given: list[Any] = []

    def hugging_face(build: Callable[..., Any], **claims: Any) -> Subject:
        given.append((build, claims))
        return Rotary(build=build, call=build)

    monkeypatch.setattr("posenc.tools.check.hugging_face", hugging_face)
    assert list(subjects_of("mine:build", relative=True)) == ["mine:build"]
    assert given == [(sys.modules["mine"].build, {"relative": True})]
    with pytest.raises(ValueError, match="--dim is for a module that takes vectors; mine:build is a model of"):
        subjects_of("mine:build", dim=3)


@pytest.mark.parametrize("target", ["folder/package/mine.py:one", "./folder/package/mine.py:one"])
def test_a_file_is_imported_as_a_part_of_its_package(target: str) -> None:
    write("folder/package/__init__.py", "")
    write("folder/package/other.py", "from tests.check.small import RIGHT\n")
    write("folder/package/mine.py", "from .other import RIGHT as one\n")
    assert list(subjects_of(target)) == [target]
    assert "package.mine" in sys.modules


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give a TARGET to check, or --explain (see"),
        (["--explain", "7,99"], "checks must be of "),
        (["mine"], "TARGET must be module:name or path/to/file.py:name, or a scheme: scheme must be one of "),
        (["mine:"], "TARGET must be module:name or path/to/file.py:name, got 'mine:'"),
        (["mine:a.b"], "TARGET must be module:name or path/to/file.py:name, got 'mine:a.b'"),
        (["other.py:one"], "and there is no file 'other.py'"),
        (["my-file.py:one"], "my-file.py must have a name that scripts can import"),
        (["json.py:one"], "json.py must have a name that scripts can import, and no other module has: rename it"),
        (["no_such_module:one"], "there is no module 'no_such_module', here or installed"),
        (["mine.deeper:one"], "there is no module 'mine.deeper', here or installed"),
        (["mine:tow"], "mine has no 'tow'; it has Rotary, nothing, rotate, Net"),
        (["mine:number"], "mine:number must be a subject, several of them, or a function or class that gives one or"),
        (["mine:number"], ", got an int (see"),
        (["mine:empty"], "mine:empty must be a subject, several of them, or a function or class"),
        (["mine:built"], "got a Net, which is built already: name what builds it"),
        (["mine:local", "--dim", "16"], "mine:local must be a function or class that a file has at its top level"),
        (["mine:net"], "--dim N must say how wide the vectors are that mine:net takes, (rows, tokens, N)"),
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
        (["mine:one", "--json", "."], "--json must be a file, got '.'"),
        (
            ["mine:one", "--json", "mine.py/a"],
            "--json must be a path that can be written, got 'mine.py/a': mine.py/a: ",
        ),
        (["mine:one", "--json", "n" * 250], "nnn: File name too long (see"),
        (
            ["mine:one", "--json", "a", "--junit", "./b/../a"],
            "--json and --junit must be different files, got 'b/../a'",
        ),
        (["mine:one", "--out", "o", "--junit", "o/report.json"], "--junit and --out must be different files, got 'o/"),
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
        (["--explain", "x"], "argument --explain: must be numbers and ranges such as 1,7-9, got 'x'"),
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


def test_numbers_and_ranges() -> None:
    from posenc.tools.check.command import _numbers

    assert _numbers("12,7-9,8") == [7, 8, 9, 12]


# -- what fails in the target's own code -------------------------------------------------------------------------------


def test_an_error_while_importing_shows_where_it_was_made(capsys: pytest.CaptureFixture[str]) -> None:
    write("helper.py", "import json\ndef half(): return json.loads('{')\n")
    write("mine.py", "import helper\n\none = helper.half()\n")
    assert main(["check", "mine:one"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("Traceback (most recent call last):\n")
    assert 'mine.py", line 3, in <module>' in error
    assert 'helper.py", line 1, in half' in error or 'helper.py", line 2, in half' in error
    assert "importlib" not in error
    assert "conformance" not in error
    assert error.splitlines()[-1].startswith("posenc: error: importing mine failed: JSONDecodeError: ")


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
        ("def one(a): pass\n", "mine.py:one() failed: TypeError: one() missing 1 required positional argument: 'a'"),
    ],
)
def test_what_the_target_says_is_the_last_line(text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    write("mine.py", text)
    assert main(["check", "mine.py:one"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"posenc: error: {message}")


def test_a_target_that_closes_its_streams_does_not_close_the_reports(capsys: pytest.CaptureFixture[str]) -> None:
    closes = "import sys\nsys.stdout = sys.stderr = None\n"
    write("mine.py", closes + "from tests.check.small import RIGHT\n")
    assert main(["check", "mine:RIGHT", *PADDING]) == 0
    shown = capsys.readouterr()
    assert "mine:RIGHT: 1 passed" in shown.out
    write("wrong.py", closes + "raise RuntimeError('no')\n")
    assert main(["check", "wrong:RIGHT", *PADDING]) == 2
    assert capsys.readouterr().err.endswith("posenc: error: importing wrong failed: RuntimeError: no\n")


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
    files = ["--json", "files/a.json", "--junit", "files/a.xml"]
    assert main(["check", f"{HERE}:WRONG", *PADDING, "--out", "out", "--dtype", "float32", *files]) == 1
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
    for name, alone in (("report.json", "a.json"), ("report.xml", "a.xml")):
        assert (out / name).read_text(encoding="utf-8") == (tmp_path / "files" / alone).read_text(encoding="utf-8")
    assert main(["check", f"{HERE}:RIGHT", *PADDING, "--out", "out"]) == 0
    assert [path.name for path in (out / "scripts").iterdir()] == ["7-of-ones-own.py"]


def test_quietly_it_prints_findings_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{HERE}:RIGHT", *PADDING, "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["check", f"{HERE}:WRONG", *PADDING, "--quiet", "--out", "out"]) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{HERE}:WRONG: 7. padding\n")
    assert shown.err == ""


def test_several_subjects_are_checked_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    write("mine.py", "from tests.check.small import RIGHT, WRONG\nboth = (RIGHT, WRONG)\n")
    assert main(["check", "mine:both", *PADDING, "--out", "out"]) == 1
    shown = capsys.readouterr().out
    assert shown.index("mine:both[0]: 1 passed") < shown.index("mine:both[1]: 1 with findings")
    assert [path.name for path in Path("out/scripts").iterdir()] == ["2-mine-both-1"]


def test_one_that_does_not_run_is_said_before_any_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    write(
        "mine.py",
        """
        from posenc.tools.check import Rotary
        from tests.check.small import RIGHT, nothing
        def call(base, x): raise RuntimeError("no kernel")
        both = (RIGHT, Rotary(build=nothing, call=call))
        """,
    )
    assert main(["check", "mine:both", *PADDING]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert "mine:both[1]: the subject does not run: RuntimeError: no kernel" in shown.err


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
    assert json.loads(Path("out/report.json").read_text())["subjects"][0]["not_run"] == [2, 3, 4]


def test_the_same_report_may_be_asked_for_twice_at_one_place() -> None:
    assert main(["check", f"{HERE}:RIGHT", *PADDING, "--out", "out", "--json", "out/report.json"]) == 0
    assert json.loads(Path("out/report.json").read_text())["ok"]


def test_what_can_be_written_is_written_before_a_failure_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def refusing(source: Any, target: Any) -> None:
        if Path(target).suffix in (".json", ".py"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refusing)
    assert main(["check", f"{HERE}:RIGHT", *PADDING, "--json", "a.json", "--junit", "a.xml"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "posenc: error: a.json: No space left on device"
    assert {path.name for path in Path().glob("a.*")} == {"a.xml"}
    assert main(["check", f"{HERE}:WRONG", *PADDING, "--out", "out"]) == 1
    shown = capsys.readouterr()
    last = shown.err.splitlines()[-1]
    assert last.startswith("posenc: error: out/scripts/7-")
    assert last.endswith("; out/report.json: No space left on device")
    assert "The report" not in shown.out
    assert {path.name for path in Path("out").iterdir() if path.is_file()} == {"report.xml"}


def test_a_script_of_an_earlier_run_that_cannot_be_removed_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = "out/scripts/7-stale.py"
    write(stale, "# A finding of posenc check, which this script repeats without posenc.\n")

    def refusing(path: Path, missing_ok: bool = False) -> None:
        if path == Path(stale):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        os.unlink(path)

    monkeypatch.setattr(Path, "unlink", refusing)
    assert main(["check", f"{HERE}:RIGHT", *PADDING, "--out", "out"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"posenc: error: {stale}: Permission denied"
    assert {path.name for path in Path("out").glob("report.*")} == {"report.json", "report.xml"}
