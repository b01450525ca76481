"""The field report: nothing is left out of it, every mistake has a short script, and a finding counts where its own
script repeats it."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from field.faults import FAULTS, SCRIPTS, anchor, put
from field.kinds import Note
from field.notes import NOTES
from field.page import FILES, PAGE, write
from field.report import ROOT, confirmed
from field.scripts import Outcome, run
from tests.rows import in_one_test

FOUND = 'print("expected: 1")\nprint("came:     2, off by 1")\nraise SystemExit(1)\n'


def test_every_package_is_pinned() -> None:
    lines = (ROOT / "field" / "requirements.txt").read_text().splitlines()
    pinned = {line.partition("==")[0] for line in lines if "==" in line}
    assert {*FILES.values()} - {"torch"} <= pinned


@in_one_test((note,) for note in NOTES)
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
    monkeypatch.setattr("field.page.PAGE", tmp_path / "page.md")
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
    assert "--checks 19`, or [attn-gym-alibi-slopes.py](reproductions/attn-gym-alibi-slopes.py)\n" in findings
    assert "--checks 19`\n" in rest  # what is not confirmed has no script


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
    first = put(page, {there.script: Outcome(True, "the expected", "what came")})
    second = put(first, {gone.script: Outcome(False, "1", "1"), unknown.script: Outcome(None, "", "", "no such file")})
    assert f"### {there.title}\n" in first
    assert "- expected: the expected\n- came: what came\n" in first
    assert there.title not in second
    assert re.search(rf"\nGone in transformers .*:\n\n- {gone.title}, \[{gone.script}\]", second)
    link = f"[{unknown.script}](reproductions/{unknown.script})"
    assert f"\nNot run:\n\n- {unknown.title}, {link}: no such file\n" in second
    assert "### " not in second
    assert all(text.startswith("# Title\n\n## Findings\n\n") for text in (first, second))
    assert all(text.endswith("\n\n## Not run\n\n- one\n") for text in (first, second))


def test_every_script_is_of_an_entry_and_every_entry_of_the_page_links_to_its_own() -> None:
    names = {path.name for path in SCRIPTS.iterdir()}
    assert names == {entry.script for entry in (*FAULTS, *NOTES) if entry.script}
    assert names == {Path(path).name for path, _ in _links(PAGE) if SCRIPTS.name in path}


@in_one_test(sorted(SCRIPTS.iterdir()))
def test_scripts_are_short_and_need_no_posenc(script: Path) -> None:
    lines = script.read_text().splitlines()
    assert len(lines) <= 30
    assert not any(re.match(r"\s*(from|import) (posenc|field)\b", line) for line in lines)


@pytest.mark.parametrize("page", [PAGE, ROOT.parent / "docs" / "huggingface.md"], ids=lambda page: page.name)
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


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("transformers-*.py")), ids=lambda script: script.stem)
def test_a_fault_of_transformers_is_there(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 1
    assert "came:" in capsys.readouterr().out
