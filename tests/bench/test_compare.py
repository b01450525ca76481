from pathlib import Path
from typing import Any

import pytest

from posenc.tools.bench.cells import SIGN, Table
from posenc.tools.bench.compare import compare, environments
from posenc.tools.cli import main
from posenc.tools.kit.records import Records
from tests.bench import made_up
from tests.bench.made_up import taking


def group(
    ratio: tuple[float, float, float], scheme: str = "alibi", length: int = 512, auto: str = "native", **facts: Any
) -> dict[str, Any]:
    """One in which auto's backend takes this ratio of a plain millisecond, and another backend is left out."""
    results = {"plain": taking(1e-3, 1, 1, 1), auto: taking(ratio[0] * 1e-3, *ratio), "flex": {"left_out": "no GPU"}}
    return made_up.record("price forward", scheme, length, results, auto=auto, **facts)


def changed(part: str, name: str, value: Any) -> dict[str, Any]:
    record = group((1.0, 0.9, 1.1))
    return {**record, part: {**record[part], name: value}}


def rows(table: Table, scheme: str) -> list[tuple[str, ...]]:
    return [tuple(row) for row in table.rows if row[0] == scheme]


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ((2.0, 1.9, 2.1), (1.0, 0.9, 1.1), ("0.50 (0.43 to 0.58)", "faster")),
        ((1.0, 0.9, 1.1), (2.0, 1.9, 2.1), ("2.00 (1.73 to 2.33)", "slower")),
        ((1.0, 0.9, 1.1), (1.2, 1.05, 1.4), ("1.20 (0.95 to 1.56)", "within noise")),
        ((1.0, 0.9, 1.1), (1.3, 1.1, 1.5), ("1.30 (1.00 to 1.67)", "within noise")),  # they touch
        ((1.0, 0.5, 2.0), (1.0, 0.9, 1.1), ("1.00 (0.45 to 2.20)", "within noise")),  # one holds the other
    ],
)
def test_a_change_is_one_where_the_intervals_do_not_overlap(
    before: tuple[float, float, float], after: tuple[float, float, float], change: tuple[str, str]
) -> None:
    (table,) = compare([group(before)], [group(after)])
    ((_, what, length, *_, said, word),) = rows(table, "alibi")
    assert (what, length) == ("native", "512")
    assert (said, word) == change
    assert (word == "within noise") == (before[1] <= after[2] and after[1] <= before[2])


def test_what_auto_takes_is_compared_whatever_it_takes() -> None:
    (table,) = compare([group((2.0, 1.9, 2.1), auto="chunked")], [group((1.0, 0.9, 1.1), auto="native")])
    assert table.title == "Price forward"
    assert rows(table, "alibi") == [
        ("alibi", "chunked → native", "512", "2.00 ± 0.10", "1.00 ± 0.10", "0.50 (0.43 to 0.58)", "faster")
    ]
    assert rows(table, "") == [("", "plain, ms", "512", "1", "1", "", "")]


def test_what_is_left_out_of_one_has_no_change_and_says_why() -> None:
    gone = group((1.0, 0.9, 1.1))
    gone["results"]["native"] = {"left_out": "nobody built it"}
    (table,) = compare([group((1.0, 0.9, 1.1))], [gone])
    assert rows(table, "alibi") == [("alibi", "native", "512", "1.00 ± 0.10", "– (1)", "", "")]
    assert table.notes == ["nobody built it"]


def test_a_busy_machine_is_marked() -> None:
    (table,) = compare([group((1.0, 0.9, 1.1)) | {"others": 1.5}], [group((1.0, 0.9, 1.1))])
    ((*_, before, after, _, _),) = rows(table, "alibi")
    assert before == f"1.00 ± 0.10 {SIGN}"
    assert SIGN not in after


def test_every_section_but_the_limit_is_compared_with_itself() -> None:
    found = compare(made_up.everything(), made_up.everything())
    kinds = dict.fromkeys(record["kind"] for record in made_up.everything())
    assert [table.title.lower() for table in found] == [kind for kind in kinds if kind != "limit"]
    assert {row[-1] for table in found for row in table.rows if row[0]} == {"within noise"}


def test_the_environments_stand_side_by_side_with_what_is_in_one_alone() -> None:
    before = [group((1.0, 0.9, 1.1)), group((1.0, 0.9, 1.1), scheme="nope")]
    after = [group((1.0, 0.9, 1.1), length=length) for length in (512, 1024, 2048)]
    for record in after:
        record["versions"] = {"torch": "2.14.0", "numpy": "2.5"}
    told = {name: values for name, *values in environments(before, after).rows}
    assert told["torch"] == ["2.13.0", "2.14.0"]
    assert told["numpy"] == ["", "2.5"]
    assert told["processor"] == ["a made-up one", "a made-up one"]
    assert told["groups"] == ["2, 1 of them here alone", "3, 2 of them here alone"]


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (changed("machine", "processor", "another"), "processor 'a made-up one' before and 'another' after"),
        (changed("machine", "threads", 1), "threads 2 before and 1 after"),
        (changed("settings", "dtype", "bfloat16"), "dtype 'float32' before and 'bfloat16' after"),
        (changed("settings", "heads", 4), "heads 8 before and 4 after"),
    ],
)
def test_another_machine_and_other_calls_are_refused(after: dict[str, Any], message: str) -> None:
    said = f"^--compare must name two records of one machine and the same calls, got {message}$"
    with pytest.raises(ValueError, match=said):
        compare([group((1.0, 0.9, 1.1))], [after])


@pytest.mark.parametrize(
    "after",
    [changed("machine", "system", "Linux 7.0"), changed("settings", "rounds", 9), changed("versions", "x", "1")],
)
def test_another_system_and_more_rounds_are_not(after: dict[str, Any]) -> None:
    assert len(compare([group((1.0, 0.9, 1.1))], [after])) == 1


def test_records_with_nothing_in_common_are_refused() -> None:
    said = "^--compare must name two records with a measurement in common, got none that is in both$"
    with pytest.raises(ValueError, match=said):
        compare([group((1.0, 0.9, 1.1))], [group((1.0, 0.9, 1.1), length=1024)])


# -- the command ------------------------------------------------------------------------------------------------------


def kept(folder: Path, *found: dict[str, Any]) -> str:
    with Records(folder) as records:
        for record in found:
            records.append({**record, "fingerprint": "made up"})
    return str(folder)


def test_the_command_prints_both_environments_and_the_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = kept(tmp_path / "a", group((1.0, 0.9, 1.1)))
    after = kept(tmp_path / "b", group((2.0, 1.9, 2.1)) | {"versions": {"torch": "2.14.0"}})
    assert main(["bench", "--compare", before, after]) == 0
    shown = capsys.readouterr().out
    assert shown.index("2.13.0") < shown.index("2.14.0") < shown.index("Price forward") < shown.index("slower")


def test_the_command_shows_two_machines_and_compares_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = kept(tmp_path / "a", group((1.0, 0.9, 1.1)))
    after = kept(tmp_path / "b", changed("machine", "processor", "another"))
    assert main(["bench", "--compare", before, after]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(
        "posenc: error: --compare must name two records of one machine and the same calls, got "
    )
    assert "another" in shown.out
    assert "Price forward" not in shown.out


def test_a_folder_without_records_of_a_benchmark_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = kept(tmp_path / "a", group((1.0, 0.9, 1.1)))
    gone, others = tmp_path / "gone", kept(tmp_path / "b", {"kind": "sliding", "scheme": "rope"})
    assert main(["bench", "--compare", before, str(gone)]) == 2
    said = f"--compare must name folders with records of posenc bench, got {gone}, which has none"
    assert capsys.readouterr().err == f"posenc: error: {said}\n"
    assert not gone.exists()
    assert main(["bench", "--compare", before, others]) == 2
    assert "records.jsonl, line 1, is not a record (length is missing)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "got"),
    [
        (["--quick"], "--quick"),
        (["--out", "a", "--lengths", "64"], "--lengths, --out"),
        (["--dtype", "float32"], "--dtype"),
    ],
)
def test_a_comparison_measures_nothing(words: list[str], got: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--compare", "a", "b", *words]) == 2
    said = f"posenc: error: --compare must stand alone, got {got} (see posenc bench --help)\n"
    assert capsys.readouterr().err == said
