"""``posenc compare``: compares positional encodings by training small models. torch is imported only when it runs."""

import argparse
from pathlib import Path

from posenc.tools.compare.config import CompareConfig
from posenc.tools.compare.tasks import TASKS, configured, from_toml
from posenc.tools.kit.command import add_options, given, refused, reported, words


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "compare",
        help="compare schemes: train a small model with each, test it on longer inputs",
        description="Trains the same small model with each scheme and tests it on longer inputs: on windows of a text "
        "(the default), on images of digits at other resolutions (--task digits), on the order and distance of words "
        "(--task classify), or on a puzzle. Writes records and a report. Run the same command again to resume. Lists "
        "are separated by commas or spaces.",
        epilog=f"Tasks: {', '.join(TASKS)}.",
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/compare"), help="folder of results (default: %(default)s)"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML file with values for the options below, which override it"
    )
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
    try:
        config = _configuration(arguments)
        from posenc.tools.compare.compare import (  # imports torch, which wrong arguments need not wait for
            check,
            compare,
        )

        check(config)
    except ValueError as error:
        return refused(error, "compare")

    from posenc.tools.compare import report  # a missing matplotlib must fail before hours of training
    from posenc.tools.compare.results import check as check_record

    return reported(
        lambda progress: compare(config, arguments.out, progress),
        arguments.out,
        check_record,
        report.write,
        lambda records, console: console.print(report.terminal_table(records)),
    )
