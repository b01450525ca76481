"""``posenc export``: writes the records of a command as a table for other programs."""

import argparse
from pathlib import Path

from posenc.command.options import refused


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "export",
        help="write records as a table",
        description="Writes the records of compare, extend or bench as one table with a row for each number. Records "
        "are only read.",
    )
    parser.set_defaults(run=run)
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORDS", help="folders of results, or of grids")
    parser.add_argument("--to", required=True, choices=("csv", "parquet"), help="as what")
    parser.add_argument("--out", type=Path, help="the file (default: in RECORDS)")


def run(arguments: argparse.Namespace) -> int:
    """Writes the table. Exit codes 0: done; 1: it cannot be written; 2: wrong usage, or no records."""
    from posenc_lab.export.table import load, rows, to_csv, to_parquet

    try:
        table = [row for source in arguments.records for row in rows(load(source))]
    except ValueError as error:
        return refused(error, "export")
    out = arguments.out or arguments.records[0] / f"records.{arguments.to}"
    (to_csv if arguments.to == "csv" else to_parquet)(table, out)
    print(f"{len(table)} rows: {out}")
    return 0
