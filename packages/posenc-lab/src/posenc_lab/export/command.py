"""``posenc export``: writes the records of a command for other programs."""

import argparse
from importlib.util import find_spec
from pathlib import Path

from posenc.command.options import refused, words
from posenc_lab.kit.storage import is_address

NAMES = ("csv", "parquet", "tensorboard", "trackio", "wandb")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "export",
        help="write records as a table or for a tracker",
        description="Writes the records of compare, extend or bench as one table with a row for each number (CSV, "
        "Parquet), or as runs with curves (TensorBoard, trackio, Weights & Biases). Records are only read.",
    )
    parser.set_defaults(run=run)
    parser.add_argument("records", nargs="+", metavar="RECORDS", help="folders of results, or of grids; or addresses")
    parser.add_argument("--to", required=True, choices=NAMES, help="where to")
    parser.add_argument("--out", type=Path, help="the file, or for a tracker a new folder (default: in RECORDS)")


def run(arguments: argparse.Namespace) -> int:
    """Writes the table. Exit codes 0: done; 1: it cannot be written; 2: wrong usage, or no records."""
    from posenc_lab.export.table import load, rows
    from posenc_lab.export.writers import DESTINATIONS

    destination, first = DESTINATIONS[arguments.to], arguments.records[0]
    try:
        if arguments.out is None and is_address(first):
            raise ValueError(f"--out must be given if RECORDS is an address, got {first}")
        out: Path = arguments.out or Path(first) / (
            f"records{destination.suffix}" if destination.suffix else arguments.to
        )
        table = [row for source in arguments.records for row in rows(load(source))]
        if not destination.suffix and out.is_dir() and any(out.iterdir()):
            raise ValueError(f"--out must be a new or an empty folder, got {out}")
        if destination.library and find_spec(destination.library) is None:  # before a folder is made
            raise ModuleNotFoundError(f"No module named {destination.library!r}", name=destination.library)
        if not destination.suffix:
            _make(out)
    except ValueError as error:
        return refused(error, "export")
    destination.write(table, out)
    print(f"{len(table)} rows: {out}")
    return 0


def _make(out: Path) -> None:
    """Makes a folder, to which trackers would add everything once more if it had contents."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out must be a folder that can be made, got {words(error)}") from None
