"""The field report: nothing is left out of it, and a finding counts where its own script repeats it."""

import re
from pathlib import Path
from typing import Any

import pytest

from field import report
from field.faults import FAULTS, anchor, put
from field.kinds import Note
from field.notes import NOTES
from field.report import FILES, PAGE, ROOT, SCRIPTS, about, confirmed, write
from field.scripts import Outcome, run

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


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        (FOUND, Outcome(True, "1", "2, off by 1")),
        (FOUND.replace("SystemExit(1)", "SystemExit(0)"), Outcome(False, "1", "2, off by 1")),
        ("raise ValueError('no')\n", Outcome(None, "", "", "ValueError: no")),
        (FOUND.replace("SystemExit(1)", "SystemExit(3)"), Outcome(None, "", "", "it says nothing")),
    ],
    ids=["there", "gone", "fails", "another status"],
)
def test_a_script_says_if_the_fault_is_there(script: str, outcome: Outcome, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(script)
    assert run(path) == outcome


def test_the_section_of_faults_takes_the_place_of_the_one_before() -> None:
    there, gone, unknown, *_ = FAULTS
    page = "# Title\n\n## Findings\n\n## Not run\n\n- one\n"
    first = put(page, {there: Outcome(True, "the expected", "what came")}, "scripts")
    second = put(first, {gone: Outcome(False, "1", "1"), unknown: Outcome(None, "", "", "no such file")}, "scripts")
    assert f"### {there.title}\n" in first
    assert "- expected: the expected\n- came: what came\n" in first
    assert there.title not in second
    assert re.search(rf"\nGone in transformers .*:\n\n- {gone.title}, \[{gone.script}\]", second)
    assert f"\nNot run:\n\n- {unknown.title}, [{unknown.script}](scripts/{unknown.script}): no such file\n" in second
    assert "### " not in second
    assert all(text.startswith("# Title\n\n## Findings\n\n") for text in (first, second))
    assert all(text.endswith("\n\n## Not run\n\n- one\n") for text in (first, second))


def test_what_a_check_finds_too_has_one_section_and_counts_once() -> None:
    known, other, *_ = FAULTS
    table = "| subject | 1 |\n|---|:-:|\n| **one 1.0** | |\n| a | **✗** |\n| b | ✓ |\n\n"
    page = f"In all: \n\n{table}## Findings\n\n### {known.title}\n\n**Mistake**, one 1.0. So.\n\n## Not run\n\n- one\n"
    whole = put(page, {known: Outcome(True, "1", "2"), other: Outcome(True, "1", "2")}, "scripts")
    assert whole.startswith(
        "In all: 2 subjects of 1 packages; 2 mistakes, 0 limitations, 0 by design, 0 housekeeping.\n"
    )
    assert re.findall("^### (.*)$", whole, re.MULTILINE) == [known.title, other.title]
    assert f"\n- [{known.title}](#{anchor(known.title)}), [{known.script}](scripts/{known.script})\n" in whole
    assert put(whole, {known: Outcome(True, "1", "2"), other: Outcome(True, "1", "2")}, "scripts") == whole


def test_scripts_of_faults_are_kept_when_those_of_findings_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(report, "SCRIPTS", tmp_path)
    for name in (FAULTS[0].script, "attn-gym-9.py"):
        (tmp_path / name).touch()
    write([])
    assert [path.name for path in tmp_path.glob("*.py")] == [FAULTS[0].script]


def test_the_page_has_every_script_and_every_fault_has_one() -> None:
    names = {path.name for path in SCRIPTS.iterdir()}
    assert names == {Path(path).name for path, _ in _links(PAGE) if path.startswith(f"{SCRIPTS.name}/")}
    assert {fault.script for fault in FAULTS} <= names


@pytest.mark.parametrize("page", [PAGE, PAGE.with_name("huggingface.md")], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for path, heading in _links(page):
        leads = page.parent / path if path else page
        assert leads.exists(), path
        assert not heading or heading in _anchors(leads), heading


def _links(page: Path) -> list[tuple[str, str]]:
    """The file and the heading of each link."""
    return re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text())


def _anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links, on GitHub."""
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)}
