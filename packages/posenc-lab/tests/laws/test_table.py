"""The tables: text, JSON, HTML, and the command that writes them."""

import argparse
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import posenc
from posenc_lab.explore import data
from posenc_lab.laws import table as tables
from posenc_lab.laws.command import add_parser
from posenc_lab.laws.laws import LAWS, QUESTIONS
from posenc_lab.laws.table import TABLES, Audit, as_json, text_tables
from tests.laws.audits import audit_of

FEW = ("learned", "rope", "alibi", "shaw", "relative_2d")  # an audit takes long


def audits() -> tuple[Audit, ...]:
    return tuple(map(audit_of, FEW))


def printed(found: tuple[Audit, ...] = ()) -> str:
    console = Console(file=io.StringIO(), width=120)
    for table in text_tables(found or audits()):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_text_fits_a_terminal_and_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every scheme, with the cells that the explorer keeps."""
    kept = data.laws()
    monkeypatch.setattr(tables, "cell", lambda law, said: said["cell"])
    text = printed(tuple(Audit(name, (), None, laws) for name, laws in kept.items()))
    assert "…" not in text
    assert all(text.count(name) >= len(TABLES) for name in kept)
    assert max(map(len, text.splitlines())) <= 120


def test_the_text_says_where_a_scheme_ends_and_how_far_a_phrase_moves() -> None:
    rows = {line.split()[0]: line for line in printed().splitlines() if line.split()}  # the last table's rows win
    first = printed().split("Where tokens are")[0]
    learned, shaw = (next(line for line in first.splitlines() if name in line) for name in ("learned", "shaw"))
    assert "no 1023" in learned
    assert "yes positions" in learned
    assert "no from 17" in shaw
    assert "yes 100%" in rows["alibi"]


def test_json_holds_every_finding_and_is_json() -> None:
    document = json.loads(as_json(audits()), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert [scheme["name"] for scheme in document["schemes"]] == list(FEW)
    assert document["laws"].keys() == LAWS.keys()
    assert document["questions"].keys() == QUESTIONS.keys()
    assert all(document["laws"].values())
    entries = {entry.name: entry for entry in posenc.catalog()}
    for scheme in document["schemes"]:
        assert {law for law, finding in scheme["laws"].items() if finding["holds"]} == set(scheme["claims"])
        assert set(scheme["claims"]) == entries[scheme["name"]].laws
        assert scheme["questions"]["hinders"]["words"].startswith(("yes: ", "no: "))
        assert scheme["laws"]["unique"].keys() == {"holds", "value", "threshold", "words", "numbers"}


def test_a_false_claim_and_an_untold_law_are_disagreements() -> None:
    one = audit_of("nope")
    assert one.claims is not None
    wrong = replace(one, claims=one.claims ^ {"unique", "relative"})
    assert set(wrong.disagreements) == {"unique", "relative"}


# --- posenc laws ----------------------------------------------------------------------------------------------------


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["laws", *words])
    return int(arguments.run(arguments))


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    json_file = tmp_path / "new" / "laws.json"
    words = ("--schemes", "nope,alibi", "segment", "--json", str(json_file))
    assert command(*words) == 0
    out, err = capsys.readouterr()
    assert all(name in out for name in ("nope", "alibi", "segment"))
    assert "rope" not in out
    assert err == ""
    assert [scheme["name"] for scheme in json.loads(json_file.read_text())["schemes"]] == ["nope", "alibi", "segment"]


def test_the_command_fails_where_the_catalog_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = audit_of("nope")
    assert one.claims is not None
    wrong = replace(one, claims=one.claims ^ {"unique", "relative"})
    monkeypatch.setattr(tables, "audit_all", lambda names: (wrong,))
    assert command("--schemes", "nope") == 1
    err = capsys.readouterr().err
    assert "posenc: nope: the catalog claims it, but unique: it opens no door" in err
    assert "posenc: nope: the catalog does not claim it, but relative: " in err
