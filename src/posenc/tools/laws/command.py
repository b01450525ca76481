"""``posenc laws``: what every scheme's mathematics promises, measured. torch is imported when it runs, not before."""

import argparse
import sys
from pathlib import Path

from posenc.tools.kit.command import SCHEMES, failed, stdout


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    laws = commands.add_parser(
        "laws",
        help="what each scheme's mathematics promises, measured",
        description="Measures every law on every scheme and prints the tables. The exit code is 1 where a scheme does "
        "not have a law that the catalog claims for it, or has one that it does not claim.",
    )
    laws.set_defaults(run=run)
    laws.add_argument("--schemes", default=[], **SCHEMES)
    laws.add_argument("--json", type=Path, metavar="FILE", help="write the findings there as JSON")
    laws.add_argument("--html", type=Path, metavar="FILE", help="write the findings there as a page")


def run(arguments: argparse.Namespace) -> int:
    """Measures, prints and writes. 0: all as the catalog claims; 1: it is not; 2: wrong use."""
    from posenc.schemes.catalog import entries_of
    from posenc.tools.kit.files import write_whole
    from posenc.tools.laws.table import as_json, audit_all, text_tables

    try:
        for name in arguments.schemes:
            entries_of(name)
    except ValueError as error:
        return failed(f"{error} (see posenc laws --help)", code=2)
    if arguments.html is not None:  # before all is measured: drawing must be possible
        from posenc.tools.laws.page import as_html
    audits = audit_all(arguments.schemes)
    console = stdout()
    for table in text_tables(audits):
        console.print(table)
    console.print("Yes, no or not applicable, and the number behind it. --html FILE says in words what was measured.")
    if arguments.json is not None:
        write_whole(arguments.json, as_json(audits).encode())
    if arguments.html is not None:
        write_whole(arguments.html, as_html(audits).encode())
    for one in audits:
        for law in one.disagreements:
            what = "claims it" if law in (one.claims or ()) else "does not claim it"
            print(f"posenc: {one.name}: the catalog {what}, but {law}: {one.findings[law].words}", file=sys.stderr)
    return 1 if any(one.disagreements for one in audits) else 0
