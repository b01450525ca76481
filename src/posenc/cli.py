"""The command line: ``posenc compare``, ``laws``, ``plot``, ``bench``, ``check``, ``schemes``.

torch is imported by the commands that need it, so that ``posenc --help`` answers at once. Exit codes: 0 done, 1 failed
or interrupted, with one line on stderr, 2 wrong use.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

import posenc
from posenc.bench import command as bench
from posenc.conformance import command as conformance
from posenc.figures import command as plot
from posenc.laws import command as laws

if TYPE_CHECKING:
    from rich.console import Console

    from posenc.lab.config import CompareConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and gives the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return _failed("interrupted")
    except ModuleNotFoundError as error:
        extra = "images" if (error.name or "").startswith("sklearn") else "lab"
        return _failed(f"{error.name} is not installed: pip install 'posenc[{extra}]'")
    except (ValueError, OSError, RuntimeError) as error:  # RuntimeError: what torch says of a full GPU
        return _failed(_words(error))


def _words(error: BaseException) -> str:
    """What an error says, in one line; of a file, its name and what is wrong with it."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def _failed(line: str, code: int = 1) -> int:
    print(f"posenc: error: {line}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="posenc", description="Positional encodings for PyTorch attention.")
    parser.add_argument("--version", action="version", version=f"posenc {posenc.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    compare = commands.add_parser(
        "compare",
        help="train short, test long: which positional encoding to use",
        description="Trains the same small model with every scheme and writes records and a report: on short windows "
        "of a text, tested on longer ones; on images of digits, tested on other grids (--task digits); or on the order "
        "and the distance of words, tested at other lengths (--task classify). Run again to resume. Lists take commas "
        "or spaces.",
    )
    compare.set_defaults(run=_compare)
    compare.add_argument(
        "--out", type=Path, default=Path("runs/compare"), help="folder of results (default: %(default)s)"
    )
    compare.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML file with values for the options below; the command line wins"
    )
    _add_options(compare)

    laws.add_parser(commands)
    plot.add_parser(commands)
    bench.add_parser(commands)
    conformance.add_parser(commands)

    schemes = commands.add_parser("schemes", help="list the schemes", description="Lists every scheme of the catalog.")
    schemes.set_defaults(run=_schemes)
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    """One option for each field of the configuration, which has their defaults and help."""
    from posenc.lab.config import CompareConfig

    for item in fields(CompareConfig):
        kind: Any = item.type
        options: dict[str, Any] = {"dest": item.name, "default": argparse.SUPPRESS, "help": item.metadata["help"]}
        if item.default not in ((), None):
            shown = ",".join(map(str, item.default)) if isinstance(item.default, tuple) else item.default
            options["help"] += f" (default: {shown})"
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif get_origin(kind) is tuple:
            options |= {"nargs": "+", "metavar": item.name.upper().rstrip("S")}
            options["type"] = _path if item.name == "text" else _whole_numbers if get_args(kind)[0] is int else _names
        else:
            options |= {
                "type": (get_args(kind) or (kind,))[0],
                "metavar": "N" if kind is not str else item.name.upper(),
            }
        parser.add_argument("--" + item.name.replace("_", "-"), **options)


def _path(text: str) -> list[str]:
    if not text:  # the folder one is in, to pathlib
        raise argparse.ArgumentTypeError("must name a file, a folder or a glob, got ''")
    return [text]  # a comma may be part of a file's name


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in _names(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers, got {text!r}") from None


def _configuration(arguments: argparse.Namespace) -> "CompareConfig":
    """What the file says, with what the command line says put over it."""
    from posenc.lab.config import CompareConfig

    given = {name: value for name, value in vars(arguments).items() if name not in ("run", "out", "config")}
    for name, value in given.items():
        if isinstance(value, list):  # a list for each word of the command line
            given[name] = [item for items in value for item in items]
    if arguments.config is None:
        return CompareConfig.from_mapping(given)
    try:
        return CompareConfig.from_toml(arguments.config, **given)
    except OSError as error:
        raise ValueError(f"--config must be a file that can be read, got {_words(error)}") from None


def _compare(arguments: argparse.Namespace) -> int:
    try:
        config = _configuration(arguments)
        from posenc.lab.compare import check, compare  # not before: a wrong number need not wait for torch

        check(config)
    except ValueError as error:
        return _failed(f"{error} (see posenc compare --help)", code=2)

    from rich.console import Console

    from posenc.figures import report  # before hours of training: drawing must be possible
    from posenc.lab.progress import for_console
    from posenc.lab.records import read

    stopped = ""
    progress = for_console(Console(stderr=True))
    try:
        records = compare(config, arguments.out, progress)
    except (KeyboardInterrupt, ValueError, OSError, RuntimeError) as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        if not (interrupted or progress.begun):  # refused: what lies in the folder is not this comparison's
            raise
        records = read(arguments.out)
        stopped = "interrupted" if interrupted else _words(error) or type(error).__name__
        stopped += f": {len(records)} records are kept in {arguments.out}; the same command resumes"
    if records:
        try:
            path = report.write(records, arguments.out)
        except (KeyboardInterrupt, OSError) as error:
            why = "interrupted" if isinstance(error, KeyboardInterrupt) else _words(error)
            if stopped:
                return _failed(f"{stopped}; no report could be written: {why}")  # first what stopped it
            kept = f"{len(records)} records are kept in {arguments.out}; the same command writes it"
            return _failed(f"no report could be written: {why}; {kept}")
        _stdout().print(report.terminal_table(records))
        _stdout().print(f"{'A partial' if stopped else 'The'} report: {path}", highlight=False, soft_wrap=True)
    return _failed(stopped) if stopped else 0


def _schemes(arguments: argparse.Namespace) -> int:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from posenc.schemes.catalog import catalog

    table = Table("name", "doors", "claims", "cost", "paper", box=SIMPLE_HEAD)
    for entry in catalog():
        table.add_row(entry.name, " ".join(entry.doors), ", ".join(sorted(entry.laws)), entry.cost, entry.paper)
    _stdout().print(table)
    return 0


def _stdout() -> "Console":
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120)  # in a file nothing says how wide it will be shown
