"""``posenc compare``: compares positional encodings by training small models. torch is imported only when it runs."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from posenc.command.options import failed, refused, words
from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.tasks import TASKS, configured, from_toml
from posenc_lab.kit.command import add_options, given, reported, stdout

if TYPE_CHECKING:
    from posenc_lab.compare.grid import Grid
    from posenc_lab.executors.executor import Executor


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "compare",
        help="compare schemes: train a small model with each, test it on longer inputs",
        description="Trains the same small model with each scheme and tests it on longer inputs: on windows of a text "
        "(the default), on text in which far tokens decide, or on a puzzle. Writes records and a report. Run the same "
        "command again to resume. Lists are separated by commas or spaces.",
        epilog=f"Tasks: {', '.join(TASKS)}.",
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/compare"),
        help="folder of results (default: %(default)s)",
    )
    files = parser.add_mutually_exclusive_group()
    files.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML file with values for the options below, which override it"
    )
    files.add_argument(
        "--grid", type=Path, metavar="FILE", help="the same, with a table [grid]: one comparison for each combination"
    )
    parser.add_argument("--on", metavar="WHERE", help="where a grid runs: local, slurm, ray, ray://HOST:PORT")
    parser.add_argument("--processes", type=int, metavar="N", help="comparisons of a grid at once (default: all cores)")
    add_options(parser, CompareConfig)


def _configuration(arguments: argparse.Namespace) -> CompareConfig:
    """The values of the file, overridden by those of the command line."""
    values = given(arguments, CompareConfig)
    if arguments.config is None:
        return configured(values)
    try:
        return from_toml(arguments.config, **values)
    except OSError as error:
        raise ValueError(f"--config must be a file that can be read, got {words(error)}") from None


def run(arguments: argparse.Namespace) -> int:
    """Runs the comparison. Exit codes 0: done; 1: interrupted or failed, after a partial report; 2: wrong usage."""
    if arguments.grid is not None:
        return _run_grid(arguments)
    try:
        for name in ("on", "processes"):
            if (value := getattr(arguments, name)) is not None:
                raise ValueError(f"--{name} must be given with --grid, got {value!r} without")
        config = _configuration(arguments)
        from posenc_lab.compare.compare import check, compare  # torch, which wrong arguments need not wait for

        check(config)
    except ValueError as error:
        return refused(error, "compare")

    from posenc_lab.compare import report  # a missing matplotlib must fail before hours of training
    from posenc_lab.compare.summary import check as check_record

    return reported(
        lambda progress: compare(config, arguments.out, progress),
        arguments.out,
        check_record,
        report.write,
        lambda records, console: console.print(report.terminal_table(records)),
        "compare",
    )


def _run_grid(arguments: argparse.Namespace) -> int:
    try:
        if arguments.processes is not None and arguments.processes < 1:
            raise ValueError(f"--processes must be at least 1, got {arguments.processes}")
        from posenc_lab.compare.compare import check
        from posenc_lab.compare.grid import grid_of
        from posenc_lab.executors import executor_of

        try:
            grid = grid_of(arguments.grid, arguments.out, **given(arguments, CompareConfig))
        except OSError as error:
            raise ValueError(f"--grid must be a file that can be read, got {words(error)}") from None
        for cell in grid.cells:
            check(cell.config)
        runs = executor_of(arguments.on or "local", arguments.processes, arguments.out / "slurm", grid.clusters)
    except ValueError as error:
        return refused(error, "compare")
    return _reported_grid(grid, runs, arguments.out)


def _reported_grid(grid: "Grid", runs: "Executor", out: Path) -> int:
    """Runs a grid and reports what there is, also if it was stopped."""

    from posenc.command.progress import for_stream
    from posenc_lab.compare import report
    from posenc_lab.compare.grid import run_grid

    stopped = ""
    try:
        failures = run_grid(grid, runs, for_stream(sys.stderr))
        if failures:
            stopped = f"{len(failures)} of {len(grid.cells)} cells are not finished: see above"
    except KeyboardInterrupt:
        stopped = "interrupted"
    found = {cell: records for cell in grid.cells if (records := cell.records())}
    if found:
        console = stdout()
        path = report.write_grid(grid, found, out)
        console.print(report.terminal_table_of_grid(grid, found))
        console.print(f"{'A partial' if stopped else 'The'} report: {path}", highlight=False, soft_wrap=True)
    return failed(f"{stopped}; the same command resumes") if stopped else 0
