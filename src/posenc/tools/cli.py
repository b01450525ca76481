"""The command line: ``posenc choose``, ``compare``, ``extend``, ``laws``, ``plot``, ``explore``, ``bench``, ``check``,
``export``, ``kernel``, ``schemes``.

Commands import torch only when they run, so that ``posenc --help`` is fast. Exit codes: 0 done, 1 failed or
interrupted, with one line on stderr, 2 wrong usage."""

import argparse
import inspect
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import posenc
from posenc.arguments import check_name
from posenc.schemes.own import place_of
from posenc.tools import kernel
from posenc.tools.bench import command as bench
from posenc.tools.check import command as conformance
from posenc.tools.choose import command as choose
from posenc.tools.compare import command as lab
from posenc.tools.explore import command as explorer
from posenc.tools.export import command as export
from posenc.tools.extend import command as extend
from posenc.tools.kit.command import Parser, failed, stdout, words
from posenc.tools.laws import command as laws
from posenc.tools.plot import command as plot

if TYPE_CHECKING:
    from posenc.schemes.entry import Entry

_EXTRAS = {
    "sklearn": "images",
    **dict.fromkeys(("fastapi", "latex2mathml", "uvicorn"), "explore"),
    **dict.fromkeys(("fsspec", "ray", "submitit"), "grid"),
    **dict.fromkeys(("pyarrow", "tensorboard", "trackio", "wandb"), "export"),
}
"""The extra that installs a missing package; "lab" installs the others."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    parser, commands = _parsers()
    if not given:
        parser.print_help()
        return 0
    try:
        if not given[0].startswith("-"):
            check_name("command", given[0], list(commands.choices))
    except ValueError as error:
        return failed(f"{error} (see posenc --help)", code=2)
    arguments = parser.parse_args(given)
    try:
        return int(arguments.run(arguments))
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0], "lab")
        return failed(f"{error.name} is not installed: pip install 'posenc[{extra}]'")
    except (KeyboardInterrupt, ValueError, OSError, RuntimeError) as error:  # RuntimeError: torch's out of memory
        return failed(words(error))
    except Exception as error:
        if not place_of(error):  # not raised in the user's own scheme
            raise
        return failed(words(error))


def _parsers() -> tuple[Parser, "argparse._SubParsersAction[Parser]"]:
    parser = Parser(prog="posenc", description="Positional encodings for PyTorch attention.")
    parser.add_argument("--version", action="version", version=f"posenc {posenc.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for room in (choose, lab, extend, laws, plot, explorer, bench, conformance, export, kernel):
        room.add_parser(commands)
    schemes = commands.add_parser(
        "schemes",
        help="list the schemes",
        description="Lists every scheme of the catalog. With names, prints the signature, documentation, properties, "
        "users and an example of each.",
    )
    schemes.add_argument("schemes", nargs="*", metavar="SCHEME", help="a catalog name, a class name, or my.py:MyScheme")
    schemes.set_defaults(run=_schemes)
    return parser, commands


def _entries(names: str) -> "tuple[Entry, ...]":
    """The entries of catalog names or class names: ``rope`` or ``RoPE``. ValueError, with the closest, for
    another."""
    from posenc.schemes.catalog import catalog, entries_of

    named = {entry.title: entry.name for entry in catalog()}
    parts = [named.get(part, part) for part in names.split("+")]
    for part in parts:
        if ":" not in part:
            check_name("scheme", part, [*named.values(), *named], ", or my.py:MyScheme")
    return entries_of("+".join(parts))


_GATHERED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)  # of a class without an __init__


def _schemes(arguments: argparse.Namespace) -> int:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from posenc.schemes.catalog import catalog

    console = stdout()
    if not arguments.schemes:
        table = Table("name", "doors", "does", "cost", box=SIMPLE_HEAD)
        for entry in catalog():
            table.add_row(entry.name, " ".join(entry.doors), Text(entry.does), entry.cost)
        console.print(table)
        return 0
    try:
        entries = [entry for names in arguments.schemes for entry in _entries(names)]
    except ValueError as error:
        return failed(f"{error} (see posenc schemes)", code=2)
    for entry in entries:
        about = {
            "doors": ", ".join(entry.doors) or "none",
            "for": "decoders" if entry.for_decoders else "decoders and encoders",
            "claims": ", ".join(sorted(entry.laws)) or "nothing",
            "cost": entry.cost,
            "file": getattr(sys.modules.get(entry.scheme.__module__), "__file__", None),
            "paper": entry.paper,
            "url": entry.url,
            "users": entry.users,
            "rate": f"× {entry.rate:g}: {entry.why_rate}" if entry.why_rate else "",
            "example": entry.example.replace("\n", "\n" + " " * 8),
        }
        taken = inspect.signature(entry.scheme, eval_str=True).parameters.values()
        sizes = [str(parameter) for parameter in taken if parameter.kind not in _GATHERED]
        lines = [f"{entry.scheme.__name__}({', '.join(sizes)})", inspect.getdoc(entry.scheme) or ""]
        lines.append("\n".join(f"{name:8}{value}" for name, value in about.items() if value))
        console.print("\n\n".join(filter(None, lines)) + "\n", highlight=False, markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
