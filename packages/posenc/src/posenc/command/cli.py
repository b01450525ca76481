"""The command line: ``posenc schemes``, ``posenc read`` and ``posenc kernel``, and what the installed packages add.

A package adds a subcommand by an entry point of the group ``posenc.commands``. Its value is a module with a function
``add_parser(commands)``, which sets ``run`` as a default of its parser: a function from the arguments to an exit code.
Commands import torch only when they run, so that ``posenc --help`` is fast. Exit codes: 0 done, 1 failed or
interrupted, with one line on stderr, 2 wrong usage."""

import argparse
import inspect
import io
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

import posenc
from posenc.arguments import check_name
from posenc.command import kernel, read
from posenc.command.options import Parser, failed, table, words
from posenc.schemes.user_code import error_location

if TYPE_CHECKING:
    from posenc.schemes.entry import Entry

GROUP = "posenc.commands"

_PACKAGES = {
    **dict.fromkeys(("bench", "choose", "compare", "explore", "export", "extend", "laws", "plot"), "posenc-lab"),
    "check": "posenc-check",
}
"""The package of each subcommand that is not the library's own."""

_EXTRAS = {
    **dict.fromkeys(("fastapi", "latex2mathml", "uvicorn"), "posenc-lab[explore]"),
    **dict.fromkeys(("ray", "submitit"), "posenc-lab[grid]"),
    "pyarrow": "posenc-lab[export]",
    **dict.fromkeys(("accelerate", "gguf"), "posenc-lab[extend]"),
    "transformers": "posenc[huggingface]",
}
"""What installs a missing package; the package of the command installs the others."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    parser, commands = _parsers()
    if not given:
        parser.print_help()
        return 0
    try:
        if not given[0].startswith("-") and given[0] not in commands.choices:
            if given[0] in _PACKAGES:
                package = _PACKAGES[given[0]]
                where = f"in a clone of posenc, pip install ./packages/{package}"
                return failed(f"posenc {given[0]} needs {package}, which is not installed: {where}", code=2)
            check_name("command", given[0], sorted({*commands.choices, *_PACKAGES}))
    except ValueError as error:
        return failed(f"{error} (see posenc --help)", code=2)
    arguments = parser.parse_args(given)
    try:
        return int(arguments.run(arguments))
    except ModuleNotFoundError as error:
        own = dict.fromkeys(("kernel", "read", "schemes"), "posenc")
        needed = _EXTRAS.get((error.name or "").partition(".")[0], (_PACKAGES | own).get(given[0], ""))
        where = f": in a clone of posenc, pip install './packages/{needed}'" if needed else ""
        return failed(f"{error.name} is not installed{where}")
    except (KeyboardInterrupt, ValueError, OSError, RuntimeError) as error:  # RuntimeError: torch's out of memory
        return failed(words(error))
    except Exception as error:
        if not error_location(error):  # not raised in the user's own scheme
            raise
        return failed(words(error))


def _parsers() -> tuple[Parser, "argparse._SubParsersAction[Parser]"]:
    parser = Parser(prog="posenc", description="Positional encodings for PyTorch attention.")
    parser.add_argument("--version", action="version", version=f"posenc {posenc.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            entry.load().add_parser(commands)
        except ImportError as error:  # of another version, or half installed: the other commands go on
            failed(f"the command {entry.name} cannot be loaded: {error}")
    kernel.add_parser(commands)  # type: ignore[arg-type]
    read.add_parser(commands)  # type: ignore[arg-type]
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
    from posenc.schemes.catalog import catalog

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what its encoding lacks is escaped
    if not arguments.schemes:
        rows = [(entry.name, " ".join(entry.doors), entry.does, entry.cost) for entry in catalog()]
        print(table(("name", "doors", "does", "cost"), rows))
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
        print("\n\n".join(filter(None, lines)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
