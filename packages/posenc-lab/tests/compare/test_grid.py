"""Grids: which cells a file has, that each is measured once whoever runs it, and what is told of all."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import posenc_lab.executors
from posenc.command.cli import main
from posenc.command.progress import Progress
from posenc_lab.compare import report
from posenc_lab.compare.compare import compare
from posenc_lab.compare.grid import CELL_IN_USE, Grid, described, finished, grid_of, run_cell, run_grid
from posenc_lab.executors.executor import Ended, Job, Run
from posenc_lab.kit.records import Records
from tests.compare.tiny_comparison import small_config, untimed, write_text

SMALL = {
    name: value
    for name, value in small_config(Path("t"), timed=False).to_dict().items()
    if name in ("train_length", "steps", "layers", "dim", "heads", "batch_size", "windows", "timed")
}


@pytest.fixture
def text(tmp_path: Path) -> str:
    return str(write_text(tmp_path / "text.txt"))


def file_of(folder: Path, varied: dict[str, Any] | str, **shared: Any) -> Path:
    lines = [f"{name} = {json.dumps(value)}" for name, value in shared.items()]
    varied = varied if isinstance(varied, str) else "\n".join(f"{n} = {json.dumps(v)}" for n, v in varied.items())
    path = folder / "grid.toml"
    path.write_text("\n".join([*lines, "[grid]", varied]))
    return path


def small_grid(folder: Path, text: str, **varied: Any) -> Grid:
    shared = {name: value for name, value in {**SMALL, "text": [text]}.items() if name not in varied}
    return grid_of(file_of(folder, varied, **shared), folder / "out")


def here(run: Run[Job], jobs: Sequence[Job]) -> Ended[Job]:
    """An executor without processes."""
    for job in jobs:
        yield job, run(job)


def test_cells_are_all_combinations_in_order(tmp_path: Path, text: str) -> None:
    grid = small_grid(tmp_path, text, seeds=[0, 1], schemes=["nope", "rope+alibi"], test_lengths=[[16], [16, 32]])
    found = [(c.config.seeds, c.config.schemes, c.config.test_lengths) for c in grid.cells]
    pairs = [((seed,), (scheme,)) for seed in (0, 1) for scheme in ("nope", "rope+alibi")]
    assert found == [(*pair, lengths) for pair in pairs for lengths in ((16,), (16, 32))]
    assert len({cell.name for cell in grid.cells}) == 8
    assert described(grid.cells[3], grid.varied) == "seeds 0, rope+alibi, test_lengths 16 32"
    # A name does not depend on the order in a file, nor on what else is in the grid.
    other = small_grid(tmp_path, text, schemes=["rope+alibi"], seeds=[1], test_lengths=[[16, 32]])
    assert other.cells == grid.cells[-1:]
    assert other.cells[0].name == grid.cells[-1].name


REFUSED = {
    r"must have a table \[grid\] with lists of values, got \{\}": "",
    r"an option of \[grid\] must be one of .*, got 'scheme' \(did you mean 'schemes'\?\)": {"scheme": ["nope"]},
    r"steps of \[grid\] must be a list of values, one for each cell, got 3": {"steps": 3},
    r"\[grid\] must have at most 10000 combinations of values, got 10100": {
        "steps": [*range(101)],
        "heads": [*range(100)],
    },
    r"dim must be given once, got it in \[grid\] and for all cells": {"dim": [16]},
    r"tune would tune each scheme once for every seed in \[grid\]: give seeds for all": {"seeds": [1], "tune": [True]},
    r"train_length must be .* 4, got 2": {"train_length": [2]},
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_wrong_grid_is_refused(message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file_of(tmp_path, REFUSED[message], dim=32)
    with pytest.raises(ValueError, match=message):
        grid_of(path, Path("out"))
    assert main(["compare", "--grid", str(path)]) == 2
    assert capsys.readouterr().err.endswith("(see posenc compare --help)\n")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--on", "ray"], "--on must be given with --grid, got 'ray' without"),
        (["--processes", "2"], "--processes must be given with --grid, got 2 without"),
        (["--grid", "none.toml"], "--grid must be a file that can be read, got none.toml: No such file or directory"),
        (["--grid", "grid.toml", "--processes", "0"], "--processes must be at least 1, got 0"),
        (["--grid", "grid.toml", "--on", "sge"], "on must be local, slurm, ray or ray://HOST:PORT, got 'sge'"),
    ],
)
def test_wrong_usage_is_refused(
    given: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file_of(tmp_path, {"schemes": ["nope"]}, **SMALL)
    assert main(["compare", *given]) == 2
    assert capsys.readouterr().err == f"posenc: error: {message} (see posenc compare --help)\n"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Grid]:
    """A grid of two schemes that was run."""
    folder = tmp_path_factory.mktemp("grid")
    text = str(write_text(folder / "text.txt"))
    grid = small_grid(folder, text, schemes=["nope", "alibi"])
    assert run_grid(grid, here, Progress()) == {}
    return folder, grid


def test_a_grid_measures_what_one_comparison_does(measured: tuple[Path, Grid], tmp_path: Path) -> None:
    folder, grid = measured
    config = small_config(folder / "text.txt", schemes=("nope", "alibi"), timed=False)
    of_cells = [record for cell in grid.cells for record in cell.records()]
    whole = compare(config, tmp_path / "whole")

    def without_configuration(records: list[Any]) -> list[Any]:
        return [{name: value for name, value in r.items() if name != "configuration"} for r in untimed(records)]

    assert without_configuration(of_cells) == without_configuration(whole)
    table = report.terminal_table_of_grid(grid, {cell: cell.records() for cell in grid.cells})
    assert [str(each) for each in table.columns[0].cells] == ["NoPE", "ALiBi"]


def test_finished_needs_every_record(measured: tuple[Path, Grid]) -> None:
    _, grid = measured
    cell = grid.cells[0]
    records = cell.records()
    assert finished(cell.config, records)
    assert not any(finished(cell.config, records[:n] + records[n + 1 :]) for n in range(len(records)))
    tuned = small_config(Path("t"), schemes=("nope",), timed=False, tune=True, tune_rates=(0.1,), tune_multipliers=())
    assert not finished(tuned, records)
    assert finished(tuned, [*records, {**records[0], "kind": "trial", "trial": 0}])


def test_a_cell_that_another_process_runs_is_left_to_it(tmp_path: Path, text: str) -> None:
    grid = small_grid(tmp_path, text, schemes=["nope"])
    (cell,) = grid.cells
    with Records(cell.folder):
        assert run_cell(cell) == CELL_IN_USE
        assert run_grid(grid, here, Progress()) == {cell: CELL_IN_USE}
    assert cell.records() == []


def test_other_grids_are_a_table(measured: tuple[Path, Grid], tmp_path: Path) -> None:
    folder, _ = measured
    grid = small_grid(folder, str(folder / "text.txt"), steps=[6, 12], schemes=["nope", "alibi"], seeds=[0, 1])
    found = {cell: records for cell in grid.cells if (records := cell.records())}
    # As if seed 1 of one scheme had been measured, and a cell of twelve steps.
    one, twelve = grid.cells[1], grid.cells[4]
    found[one] = [{**r, "seed": 1, "configuration": one.config.to_dict()} for r in found[grid.cells[0]]]
    found[twelve] = [{**r, "fingerprint": "other"} for r in found[grid.cells[0]]]
    table = report.grid_table(grid, found)
    assert [column.text for column in table.columns][:4] == ["steps", "scheme", "score", "seeds"]
    rows = [[cell.text for cell in row] for row in table.cells]
    assert [row[:4] for row in rows] == [
        ["6", "NoPE", "bits per byte", "2"],
        ["6", "ALiBi", "bits per byte", "1"],
        ["12", "NoPE", "bits per byte", "1"],
    ]
    (sliding,) = (r for r in found[twelve] if (r["kind"], r.get("length")) == ("sliding", 16))
    assert rows[2][4].startswith(f"{sum(sliding['bits']) / len(sliding['bits']):.3f}±")
    path = report.write_grid(grid, found, tmp_path)
    assert "4 of 8 cells have no records yet." in path.read_text()


def test_the_command_runs_a_grid_and_reports_it(
    measured: tuple[Path, Grid], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an executor whose second cell fails, and then again: what is there stays."""
    folder, _ = measured
    shared = {name: value for name, value in SMALL.items() if name != "steps"}
    path = file_of(folder, {"steps": [6, 7], "schemes": ["alibi"]}, text=[str(folder / "text.txt")], **shared)
    tried: list[Any] = []

    def failing(run: Run[Job], jobs: Sequence[Job]) -> Ended[Job]:
        tried.append([cell.config.steps for cell in jobs])  # type: ignore[attr-defined]
        for job in jobs:
            yield job, "no memory"

    given: list[Any] = []
    monkeypatch.setattr(posenc_lab.executors, "executor_of", lambda *arguments: given.append(arguments) or failing)
    out = str(folder / "out")
    assert main(["compare", "--grid", str(path), "--out", out, "--on", "slurm", "--processes", "3"]) == 1
    assert given == [("slurm", 3, Path(out) / "slurm", {"slurm": {}, "ray": {}})]
    assert tried == [[7]]
    shown = capsys.readouterr()
    assert "steps 7, alibi: no memory" in shown.err
    assert shown.err.endswith("posenc: error: 1 of 2 cells are not finished: see above; the same command resumes\n")
    assert f"A partial report: {out}/report.html" in shown.out
