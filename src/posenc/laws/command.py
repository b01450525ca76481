"""``posenc laws``: what every scheme's mathematics promises, measured and printed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to those of the command line. torch is imported when it runs, not before."""
    laws = commands.add_parser(
        "laws",
        help="what each scheme's mathematics promises, measured",
        description="Measures every law on every scheme and prints the tables. The exit code is 1 where a scheme does "
        "not have a law that the catalog claims for it, or has one that it does not claim.",
    )
    laws.set_defaults(run=run)
    laws.add_argument(
        "--schemes",
        nargs="+",
        default=[],
        metavar="SCHEME",
        help="names of schemes, or of several joined by '+', separated by commas or spaces (default: all)",
    )
    laws.add_argument("--json", type=Path, metavar="FILE", help="write the findings there as JSON")
    laws.add_argument("--html", type=Path, metavar="FILE", help="write the findings there as a page")


def run(arguments: argparse.Namespace) -> int:
    """Measures, prints and writes. 0: all as the catalog claims; 1: it is not; 2: wrong use."""
    from rich.console import Console

    from posenc.laws.table import as_html, as_json, audit_all, text_tables
    from posenc.schemes.catalog import entries_of

    names = [name for word in arguments.schemes for name in word.split(",") if name]
    try:
        if arguments.schemes and not names:
            raise ValueError(f"--schemes must name at least one scheme, got {' '.join(arguments.schemes)!r}")
        for name in names:
            entries_of(name)
    except ValueError as error:
        print(f"posenc: error: {error} (see posenc laws --help)", file=sys.stderr)
        return 2
    audits = audit_all(names)
    # In a file nothing says how wide it will be shown.
    console = Console(width=None if sys.stdout.isatty() else 120)
    for table in text_tables(audits):
        console.print(table)
    console.print("Yes, no or not applicable, and the number behind it. --html FILE says in words what was measured.")
    for path, written in ((arguments.json, as_json), (arguments.html, as_html)):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(written(audits), encoding="utf-8")
    for one in audits:
        for law in one.disagreements:
            claimed = one.claims is not None and law in one.claims
            what = "claims it" if claimed else "does not claim it"
            print(f"posenc: {one.name}: the catalog {what}, but {law}: {one.findings[law].words}", file=sys.stderr)
    return 1 if any(one.disagreements for one in audits) else 0
