"""What `posenc export` writes, read back."""

import csv
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from posenc.command.cli import main
from posenc_lab.export.table import FIRST, columns, load, rows
from tests.bench import synthetic_records as of_bench
from tests.compare import synthetic_records

ABOUT = {"fingerprint": "f", "time": "2026-11-26T00:00:00+00:00", "configuration": {"steps": 6, "seeds": [0, 1]}}


def record(kind: str, **results: Any) -> dict[str, Any]:
    return {"kind": kind, "scheme": "rope", "seed": 3, **results, **ABOUT}


def kept(folder: Path, *records: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "records.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    return folder


def metrics(*records: dict[str, Any]) -> list[tuple[Any, ...]]:
    table = rows(("runs", each) for each in records)
    return [(row["metric"], row["step"], row["value"], row["values"]) for row in table]


def test_every_form_of_a_result_becomes_rows() -> None:
    assert metrics(record("training", seconds=1.5, tuned=True, multiplier=None, curve=[[12, 6.5], [24, 5.0]])) == [
        ("seconds", None, 1.5, 1),
        ("tuned", None, 1.0, 1),
        ("multiplier", None, None, 1),
        ("curve", 12, 6.5, 1),
        ("curve", 24, 5.0, 1),
    ]
    assert metrics(record("windows", length=64, bits=[1.0, 2.0, 6.0], tokens=9)) == [
        ("bits", None, 3.0, 3),
        ("tokens", None, 9.0, 1),
    ]
    assert metrics(record("windows", bits=[1.0, None])) == [("bits", None, None, 2)]  # not the mean of the others
    assert metrics(record("by_position", edges=[0, 1, 4], bits=[3.0, 2.0], stderr=[0.1, None])) == [
        ("bits", 0, 3.0, 1),
        ("bits", 1, 2.0, 1),
        ("stderr", 0, 0.1, 1),
        ("stderr", 1, None, 1),
    ]


def test_competitors_of_a_benchmark_have_rows_of_their_own() -> None:
    results = {"plain": {"seconds": [0.1, 0.3], "ratio": [1.0, 0.9, 1.2]}, "flex": {"left_out": "too slow"}}
    made = {**record("price", results=results, rounds=2, baseline="plain"), "kernel": {"float": "v4"}}
    found = list(rows([("runs", made)]))
    assert [(row["competitor"], row["metric"], row["step"], row["value"]) for row in found] == [
        ("plain", "seconds", 0, 0.1),
        ("plain", "seconds", 1, 0.3),
        ("plain", "ratio", None, 1.0),
        ("plain", "ratio_low", None, 0.9),
        ("plain", "ratio_high", None, 1.2),
        ("flex", None, None, None),
    ]
    assert found[-1]["left_out"] == "too slow"
    assert all((row["rounds"], row["baseline"], row["kernel.float"]) == (2, "plain", "v4") for row in found)


def test_columns_have_one_type() -> None:
    table = [{"a": 1, "b": 1, "c": True, "d": "x"}, {"a": 2.5, "b": "two", "c": None}]
    found = columns([{**dict.fromkeys(FIRST), **row} for row in table])
    assert list(found)[: len(FIRST)] == list(FIRST)
    assert (found["a"], found["b"], found["c"], found["d"]) == ([1.0, 2.5], ["1", "two"], [True, None], ["x", None])


def test_records_are_found_in_folders_and_grids(tmp_path: Path) -> None:
    one, two = record("training", seconds=1.0), record("training", seconds=2.0)
    first, second = kept(tmp_path / "cells" / "a", one), kept(tmp_path / "cells" / "b", two)
    assert load(tmp_path) == [(str(first), one), (str(second), two)]
    assert load(first) == [(str(first), one)]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Records of a comparison of two schemes with two seeds, of which one loss was not finite, and a benchmark."""
    records = synthetic_records.records(("nope", "rope"), (0, 1))
    broken = next(each for each in records if each["kind"] == "windows")
    broken["bits"][0] = None
    prices = [{"fingerprint": "b", **each} for each in of_bench.prices()]
    kept(tmp_path / "made" / "cells" / "bench", *prices)
    return kept(tmp_path / "made", *records)


def exported(made: Path, to: str, library: str = "") -> Path:
    """Where the command wrote the records; skips where the library is not installed."""
    if library:
        pytest.importorskip(library, reason=f"{library} is not installed")
    out = made.parent / "out"
    assert main(["export", str(made), "--to", to, "--out", str(out)]) == 0
    return out


def table_of(made: Path) -> list[dict[str, Any]]:
    return list(rows(load(made)))


def test_csv_holds_the_table(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, table = exported(made, "csv"), table_of(made)
    assert capsys.readouterr().out == f"{len(table)} rows: {out}\n"
    with out.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == list(columns(table))
    assert len(found) == len(table)
    for mine, row in zip(found, table, strict=True):
        assert mine["value"] == ("" if row["value"] is None else str(float(row["value"])))
        assert (mine["kind"], mine["scheme"], mine["metric"]) == (row["kind"], row["scheme"], row["metric"] or "")
    assert main(["export", str(made), "--to", "csv"]) == 0
    assert (made / "records.csv").read_bytes() == out.read_bytes()


def test_parquet_holds_the_table(made: Path) -> None:
    out = exported(made, "parquet", "pyarrow")
    found = importlib.import_module("pyarrow.parquet").read_table(out)
    assert found.to_pydict() == columns(table_of(made))


def test_a_missing_library_is_named_with_its_extra(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["export", str(made), "--to", "parquet", "--out", str(made.parent / "out")]) == 1
    said = "pyarrow is not installed: in a clone of posenc, pip install './packages/posenc-lab[export]'"
    assert capsys.readouterr().err == f"posenc: error: {said}\n"
    assert not (made.parent / "out").exists()


def test_wrong_usage_is_refused(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", f"{made}/x", "--to", "csv"]) == 2
    assert capsys.readouterr().err == (
        "posenc: error: RECORDS must be a folder with records.jsonl, or one of a grid, got "
        f"'{made}/x', which has no records (see posenc export --help)\n"
    )
