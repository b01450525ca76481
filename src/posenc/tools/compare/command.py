"""``posenc compare``: which positional encoding to use. torch is imported when it runs, not before."""

import argparse
from pathlib import Path

from posenc.tools.compare.config import CompareConfig
from posenc.tools.compare.tasks import TASKS, configured
from posenc.tools.kit.command import add_options, failed, given, measured, stdout, words


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "compare",
        help="train short, test long: which positional encoding to use",
        description="Trains the same small model with every scheme and writes records and a report: on short windows "
        "of a text, tested on longer ones; on images of digits, tested on other grids (--task digits); or on the order "
        "and the distance of words, tested at other lengths (--task classify). Run again to resume. Lists take commas "
        "or spaces.",
        epilog=f"Tasks: {', '.join(TASKS)}.",
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/compare"), help="folder of results (default: %(default)s)"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML file with values for the options below; the command line wins"
    )
    add_options(parser, CompareConfig)


def _configuration(arguments: argparse.Namespace) -> CompareConfig:
    """What the file says, with what the command line says put over it."""
    from posenc.tools.compare.saved import from_toml

    values = given(arguments, CompareConfig)
    if arguments.config is None:
        return configured(values)
    try:
        return from_toml(arguments.config, **values)
    except OSError as error:
        raise ValueError(f"--config must be a file that can be read, got {words(error)}") from None


def run(arguments: argparse.Namespace) -> int:
    """Compares, prints and writes. 0: done; 1: interrupted or failed, with what there is written; 2: wrong use."""
    try:
        config = _configuration(arguments)
        from posenc.tools.compare.compare import check, compare  # not before: a wrong number need not wait for torch

        check(config)
    except ValueError as error:
        return failed(f"{error} (see posenc compare --help)", code=2)

    from posenc.tools.compare import report  # before hours of training: drawing must be possible
    from posenc.tools.compare.results import check as check_record

    out = arguments.out
    records, stopped = measured(lambda progress: compare(config, out, progress), out, check_record)
    if records:
        try:
            path = report.write(records, out)
        except (KeyboardInterrupt, OSError) as error:
            why = "interrupted" if isinstance(error, KeyboardInterrupt) else words(error)
            if stopped:
                return failed(f"{stopped}; no report could be written: {why}")  # first what stopped it
            kept = f"{len(records)} records are kept in {out}; the same command writes it"
            return failed(f"no report could be written: {why}; {kept}")
        stdout().print(report.terminal_table(records))
        stdout().print(f"{'A partial' if stopped else 'The'} report: {path}", highlight=False, soft_wrap=True)
    return failed(stopped) if stopped else 0
