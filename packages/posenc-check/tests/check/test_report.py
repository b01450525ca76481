"""What a report says, as data, JSON, JUnit's XML and for a terminal: the same, and nothing that it obeys."""

import io
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console

import posenc
from posenc_check import Report, check, report, run
from posenc_check.checks import CHECKS
from tests.check.small_subjects import CLOCK, ONE_OF_EACH, RIGHT, run_alone

CAME = "a bell \x07, a half \ud83d, ]]> and é\n</pre>"
Data = dict[str, Any]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Report]:
    """A report of one check for each way to end."""
    monkeypatch.setattr(run, "CHECKS", ONE_OF_EACH)
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: CLOCK[0]))
    return lambda **settings: check(RIGHT, name="mine <&> [bold]", **settings)


@pytest.fixture
def data(made: Callable[..., Report]) -> Data:
    return report.as_data([made()])


def printed(subject: Data, places: dict[str, str] | None = None, quiet: bool = False) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(report.shown(subject, places or {}, quiet), highlight=False)
    return console.file.getvalue()  # type: ignore[attr-defined]


# -- data --------------------------------------------------------------------------------------------------------------


def test_the_data_says_everything(data: Data) -> None:
    (subject,) = data["subjects"]
    assert (data["version"], data["ok"], len(data["subjects"])) == (2, False, 1)
    assert data["made_with"]["posenc"] == posenc.__version__
    assert data["made_with"]["torch"] == str(torch.__version__)
    assert (subject["kind"], subject["build"]) == ("Rotary", "tests.check.small_subjects.nothing")
    assert subject["claims"] == {"options": {"base": 500.0}, "relative": True}
    assert subject["settings"] == {
        "seed": 0,
        "lengths": [1, 3, 8, 23],
        "longest": 1025,
        "seconds": 60.0,
        "dtype": "torch.float64",
        "checks": [1, 2, 3, 4],
    }
    assert [result["status"] for result in subject["results"]] == ["passed", "finding", "not applicable", "unfinished"]
    passed, found, refused, unfinished = subject["results"]
    assert passed["found"] == "3 cases; 1 of 2 trials not applicable"
    assert passed["trials"][1] == {
        "name": "<others>",
        "status": "not applicable",
        "cases": 0,
        "finding": None,
        "reason": "it is of <another> kind",
        "note": "",
    }
    assert found["found"] == f"a hostile one and 1 more: {CAME}"
    assert found["threads"][0] == "transformers#38224"
    assert refused["found"] == refused["reason"] == "it is of <another> kind"
    assert unfinished["found"] == "for long: the time was up after 1 cases"


def test_a_finding_has_its_smallest_input_and_its_script(data: Data) -> None:
    first, second = (trial["finding"] for trial in data["subjects"][0]["results"][1]["trials"][1:])
    assert (first["expected"], first["came"]) == ("<b>bold</b> & [red]markup[/red]", CAME)
    assert first["batch"] == {"ids": [[0, 0, 0]], "positions": [[0, 1, 2]]}
    assert first["values"] == {"least": 3.0}
    assert first["input"] == "ids=[[0, 0, 0]], positions=[[0, 1, 2]], least=3.0"
    assert (first["file"], second["file"]) == ("2-a-hostile-one.py", "2-another-hostile-one.py")
    code, said = run_alone(first["script"])
    assert (code, said) == (1, f"expected: {first['expected']}\ncame:     {CAME}\n")


# -- its forms ---------------------------------------------------------------------------------------------------------


def test_json_holds_the_data(data: Data) -> None:
    written = report.as_json(data)
    assert json.loads(written) == data
    written.encode("ascii")


def test_junit_has_a_case_for_each_check(data: Data) -> None:
    written = report.as_junit(data)
    (suite,) = ElementTree.fromstring(written.encode())
    assert suite.get("name") == "mine <&> [bold]"
    assert [suite.get(n) for n in ("tests", "failures", "errors", "skipped")] == ["4", "1", "1", "1"]
    passed, found, refused, unfinished = suite
    assert [case.get("name") for case in suite] == ["1. passes", "2. finds a lot", "3. does not apply", "4. waits"]
    assert len(passed) == 0
    assert [failure.tag for failure in found] == ["failure", "failure"]
    text = found[0].text or ""
    script = data["subjects"][0]["results"][1]["trials"][1]["finding"]["script"]
    assert text.endswith(script.replace("\x07", "\\x07"))
    for said in (
        "expected: <b>bold</b> & [red]markup[/red]",
        r"came: a bell \x07, a half \ud83d, ]]> and é",
        "least=3.0",
    ):
        assert said in text
    assert refused[0].attrib == {"message": "it is of <another> kind"}
    assert (refused[0].tag, unfinished[0].tag) == ("skipped", "error")
    assert unfinished[0].get("message") == "for long: the time was up after 1 cases"
    assert all(float(case.get("time", "-1")) >= 0 for case in suite)


def test_the_terminal_shows_all_of_it(data: Data) -> None:
    subject = data["subjects"][0]
    text = printed(subject, {"2-a-hostile-one.py": "out/scripts/2-a-hostile-one.py"})
    assert text.splitlines()[0].strip() == "mine <&> [bold]"
    for said in (
        *(
            "passes",
            "3 cases; 1 of 2 trials not applicable",
            "it is of <another> kind",
            "the time was up after 1 cases",
        ),
        *("<b>bold</b> & [red]markup[/red]", r"a bell \x07", "A <rule> & more.", "It <matters>.", "transformers#38224"),
        *("ids=[[0, 0, 0]], positions=[[0, 1, 2]], least=3.0", "out/scripts/2-a-hostile-one.py", "--out DIR writes it"),
        "mine <&> [bold]: 1 with findings, 1 unfinished, 1 passed, 1 not applicable",
    ):
        assert said in text
    assert "\x07" not in text
    assert text.count("Be <kind>.") == 1  # what to do about two findings
    assert max(map(len, text.splitlines())) <= 120


def test_trials_of_a_check_have_files_of_their_own() -> None:
    for entry in CHECKS:
        names = [report.slug(trial.name) for trial in entry.trials]
        assert len(set(names)) == len(names)
