"""Shared options, errors and exit codes of the commands. torch and rich are imported only when they are used."""

import argparse
import io
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

from posenc.command.options import failed, refused, words
from posenc.schemes.user_code import error_location
from posenc_lab.kit.configuration import Configuration

if TYPE_CHECKING:
    from rich.console import Console

    from posenc.command.progress import Progress
    from posenc_lab.kit.records import Record


class List(argparse.Action):
    """Joins the lists of several arguments into one, which must not be empty."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        items = [item for several in values for item in several]
        if not items and not any(several is NONE for several in values):
            raise argparse.ArgumentError(self, "must name at least one, got none")
        setattr(namespace, self.dest, items)


NONE: list[Any] = []  # the value of "none", where numbers are expected


def names(text: str) -> list[str]:
    """The items of a comma-separated list."""
    return [name for name in text.split(",") if name]


def whole_numbers(text: str, kind: type = int, expected: str = "whole numbers") -> list[Any]:
    """The items as integers, or as numbers of this kind; the word none for no items."""
    try:
        return NONE if text == "none" else list(map(kind, names(text)))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {expected}, got {text!r}") from None


decimals = partial(whole_numbers, kind=float, expected="numbers")


# The option --schemes of commands without a configuration.
SCHEMES: dict[str, Any] = {
    "nargs": "+",
    "type": names,
    "action": List,
    "metavar": "SCHEME",
    "help": "catalog names, combined by +, or my.py:MyScheme; separated by commas or spaces",
}


def _word(text: str) -> list[str]:
    if not text:  # pathlib reads it as the current folder
        raise argparse.ArgumentTypeError("must name a file, a folder or a glob, got ''")
    return [text]


def add_options(parser: argparse._ActionsContainer, kind: type[Configuration]) -> None:
    """Adds an option for each field of a configuration that has a help text."""
    for item in fields(kind):
        if not item.metadata["help"]:
            continue
        of: Any = item.type
        options: dict[str, Any] = {"dest": item.name, "default": argparse.SUPPRESS, "help": item.metadata["help"]}
        if item.default not in ((), None, ""):
            value = ",".join(map(str, item.default)) if isinstance(item.default, tuple) else item.default
            options["help"] += f" (default: {value})"
        if of is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif get_origin(of) is tuple:
            parts: Any = {int: whole_numbers, float: decimals}.get(
                get_args(of)[0], names if item.metadata["commas"] else _word
            )
            one = item.name.upper().replace("IES", "Y").rstrip("S")
            options |= {"nargs": "+", "metavar": one, "type": parts, "action": List}
        else:
            of = (get_args(of) or (of,))[0]
            options |= {"type": of, "metavar": "N" if of is not str else item.name.upper()}
        parser.add_argument("--" + item.name.replace("_", "-"), **options)


def given(arguments: argparse.Namespace, kind: type[Configuration]) -> dict[str, Any]:
    """The values on the command line for the fields of a configuration."""
    return {item.name: getattr(arguments, item.name) for item in fields(kind) if hasattr(arguments, item.name)}


def command_of(words: Sequence[str], values: Mapping[str, Any], kind: type[Configuration]) -> str:
    """The command line that gives these values of a configuration, as far as it has options for them."""
    found, declared = [*words], {item.name: item for item in fields(kind) if item.metadata["help"]}
    for name, value in values.items():
        if name not in declared:
            continue
        option, item = "--" + name.replace("_", "-"), declared[name]
        if isinstance(value, bool):
            found.append(option if value else option.replace("--", "--no-", 1))
        elif isinstance(value, list | tuple):
            # A file name may contain a comma, so texts are separated by spaces.
            items = [",".join(map(str, value))] if item.metadata["commas"] else [str(each) for each in value]
            none = [option, "none"] if item.default else []  # an empty list must override a default
            found += [option, *items] if value else none
        elif value not in (None, ""):
            found += [option, str(value)]
    return shlex.join(found)


def reported(
    measure: Callable[["Progress"], list["Record"]],
    out: Path,
    check: Callable[["Record"], None],
    write: Callable[[list["Record"], Path], Path],
    show: Callable[[list["Record"], "Console"], object],
    command: str,
) -> int:
    """Measures, writes a report of the records into ``out``, also if measuring stopped early, and shows them. Returns
    the exit code: 2 for a ValueError before the first measurement, of which nothing is reported, since the records in
    ``out`` may belong to another run. Of several processes, the first one does all but the measuring."""

    from posenc.command.progress import Progress, for_stream
    from posenc_lab.kit import processes
    from posenc_lab.kit.records import read

    with processes.joined():
        if processes.rank():
            try:
                measure(Progress())
            except KeyboardInterrupt:  # which the first process reports
                return 1
            return 0
        progress, stopped = for_stream(sys.stderr), ""
        try:
            records = measure(progress)
        except (KeyboardInterrupt, Exception) as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            expected = interrupted or isinstance(error, ValueError | OSError | RuntimeError) or error_location(error)
            if isinstance(error, ValueError) and not progress.begun:
                return refused(error, command)
            if not expected or not (interrupted or progress.begun):
                raise
            records = read(out, check)
            stopped = f"{words(error)}: {len(records)} records are kept in {out}; the same command resumes"
        if records:
            try:
                path = write(records, out)
            except (KeyboardInterrupt, OSError) as error:
                why = f"no report could be written: {words(error)}"
                kept = f"{len(records)} records are kept in {out}; the same command writes it"
                return failed(f"{stopped}; {why}" if stopped else f"{why}; {kept}")  # first what stopped it
            console = stdout()
            show(records, console)
            console.print(f"{'A partial' if stopped else 'The'} report: {path}", highlight=False, soft_wrap=True)
        return failed(stopped) if stopped else 0


def stdout() -> "Console":
    """The console that tables are printed to, with escapes for what it cannot show, such as half of a character."""
    from rich.console import Console

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    return Console(width=None if sys.stdout.isatty() else 120)  # a file has no width
