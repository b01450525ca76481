"""The parser, errors and exit codes that all subcommands share."""

import argparse
import shutil
import sys
import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NoReturn

from posenc.schemes.user_code import TargetError, describe_error, error_location


class Parser(argparse.ArgumentParser):
    """A parser without abbreviated options, whose errors are one line. Subcommands use it too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        """Exits with code 2."""
        self.exit(2, f"posenc: error: {message} (see {self.prog} --help)\n")


def words(error: BaseException) -> str:
    """An error in one line: for a file error, the file and the reason; for an error raised in the user's own scheme,
    its location and type."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if error_location(error):
        return describe_error(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def failed(line: str, code: int = 1) -> int:
    """Prints the error and returns the exit code."""
    print(f"posenc: error: {' '.join(line.split())}", file=sys.stderr)
    return code


def refused(error: ValueError, command: str) -> int:
    """Prints an error of wrong usage, with the traceback if the user's own code failed, and returns exit code 2."""
    if isinstance(error, TargetError):
        sys.stderr.write(error.shown)
        return failed(str(error), code=2)
    return failed(f"{error} (see posenc {command} --help)", code=2)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of text, as wide as the terminal or 120 columns in a file: the widest columns are wrapped."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    room = (shutil.get_terminal_size().columns if sys.stdout.isatty() else 120) - 2 * (len(widths) - 1)
    while sum(widths) > room and max(widths) > 20:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for row in (head, ["-" * width for width in widths], *rows):
        cells = [textwrap.wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            lines.append("  ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip())
    return "\n".join(lines)
