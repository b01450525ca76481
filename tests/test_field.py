"""The field report: nothing is left out of it, and a finding counts where its own script repeats it."""

from pathlib import Path
from typing import Any

import pytest

from field import report
from field.notes import NOTES, Note
from field.report import FILES, ROOT, about, confirmed, write

FOUND = 'print("expected: 1")\nprint("came:     2, off by 1")\nraise SystemExit(1)\n'


def test_every_file_of_subjects_is_run() -> None:
    assert set(FILES) == {path.stem for path in (ROOT / "field" / "subjects").glob("of_*.py")}


def test_every_package_is_pinned() -> None:
    lines = (ROOT / "field" / "requirements.txt").read_text().splitlines()
    pinned = {line.partition("==")[0] for line in lines if "==" in line}
    assert {*FILES.values()} - {"torch"} <= pinned


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.title)
def test_notes_are_about_subjects_that_are_there(note: Note) -> None:
    files = [file for file in FILES if file.startswith(note.file)]
    text = "".join((ROOT / "field" / "subjects" / f"{file}.py").read_text() for file in files)
    assert files
    assert all(f"\n{name} = " in text for name in note.names)


@pytest.mark.parametrize(
    ("script", "came", "expected"),
    [
        (FOUND, "2, off by 1", True),
        (FOUND, "3, off by 2", False),
        (FOUND.replace("SystemExit(1)", "SystemExit(0)"), "2, off by 1", False),
        ("import posenc\n" + FOUND, "2, off by 1", False),
        ("raise ValueError\n", "2, off by 1", False),
    ],
    ids=["repeated", "something else", "nothing found", "needs posenc", "fails"],
)
def test_a_finding_counts_if_its_script_repeats_it_without_posenc(script: str, came: str, expected: bool) -> None:
    assert confirmed(script, came) is expected


def _record(**finding: Any) -> dict[str, Any]:
    trial = {"name": "slopes", "status": "finding", "finding": {"script": FOUND, **finding}}
    results = [{"number": 19, "name": "bounds", "status": "finding", "reason": "", "trials": [trial]}]
    return {"file": "of_attn_gym", "name": "alibi", "title": "generate_alibi_bias", "results": results}


def test_the_page_tells_what_is_confirmed_from_what_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(report, "SCRIPTS", tmp_path / "scripts")
    sure = _record(expected="an error", came="an answer", input="heads=3", batch={}, confirmed=True)
    unsure = _record(expected="an error", came="who knows", input="heads=5", batch={}, confirmed=False)
    write([sure, unsure, {"file": "of_equinox", "title": "of_equinox", "failed": "No module named 'jax'"}])
    findings, _, rest = (tmp_path / "page.md").read_text().partition("## Not confirmed")
    assert findings.count("| **✗** |") == findings.count("| ? |") == 1
    assert "`an answer`" in findings
    assert "attention-gym: ALiBi slopes" in findings
    assert "who knows" not in findings
    assert "who knows" in rest
    assert "No module named 'jax'" in rest
    assert [path.read_text() for path in (tmp_path / "scripts").iterdir()] == [FOUND]


def test_the_first_note_that_fits_is_taken() -> None:
    finding = {"record": {"file": "of_torchtune", "name": "rotary"}, "number": 19, "trial": "positions past the end"}
    fitting = [note.title for note in NOTES if about(note, finding)]
    assert fitting[0] == "torchtune: position -1 is answered"
    assert len(fitting) > 1
