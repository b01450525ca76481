"""``posenc laws``: measures the mathematical properties of schemes. torch is imported only when it runs."""

import argparse
import sys
from pathlib import Path

from posenc.command.options import failed, refused
from posenc_lab.kit.command import SCHEMES, stdout


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    laws = commands.add_parser(
        "laws",
        help="measure the mathematical properties (laws) of each scheme",
        description="Measures every law on every scheme and prints the tables. The exit code is 1 if a measured law "
        "disagrees with the catalog.",
    )
    laws.set_defaults(run=run)
    laws.add_argument("--schemes", default=[], **SCHEMES)
    laws.add_argument("--json", type=Path, metavar="FILE", help="write the results to a JSON file")


def run(arguments: argparse.Namespace) -> int:
    """Measures the laws. Exit codes 0: all agree with the catalog; 1: some disagree, or a term is not what
    its `Distance` declares; 2: wrong usage."""
    from posenc.command.files import write_whole
    from posenc.encoding.claims import ClaimError
    from posenc.schemes.catalog import entries_of
    from posenc_lab.laws.table import as_json, audit_all, text_tables

    try:
        for name in arguments.schemes:
            entries_of(name)
    except ValueError as error:
        return refused(error, "laws")
    try:
        audits = audit_all(arguments.schemes)
    except ClaimError as error:
        return failed(str(error))
    console = stdout()
    for table in text_tables(audits):
        console.print(table)
    console.print("Each cell: yes, no or not applicable, with the measured number. --json FILE has what was measured.")
    if arguments.json is not None:
        write_whole(arguments.json, as_json(audits).encode())
    for one in audits:
        for law in one.disagreements:
            what = "claims it" if law in (one.claims or ()) else "does not claim it"
            print(f"posenc: {one.name}: the catalog {what}, but {law}: {one.findings[law].words}", file=sys.stderr)
    return 1 if any(one.disagreements for one in audits) else 0
