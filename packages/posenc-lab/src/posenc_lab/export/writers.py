"""Writes a table to each destination, through its own library. Libraries are imported only when they are used."""

import csv
import io
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from posenc.command.files import write_whole
from posenc_lab.export.table import FIRST, Row, columns

PROJECT = "posenc"  # the name under which trackers list the runs


@dataclass
class Run:
    """What trackers call a run: everything measured of one scheme with one seed. ``config`` has the other columns, and
    ``series`` the points (step, value) of each metric; what has no step is at its length, or else at 0."""

    name: str
    config: Row
    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


def runs_of(table: Sequence[Row]) -> list[Run]:
    """The runs of a table. A value that was not finite is NaN."""
    found: dict[tuple[Any, ...], Run] = {}
    named: dict[str, int] = {}
    for row in table:
        of = tuple(row.get(name) for name in ("folder", "fingerprint", "scheme", "seed", "trial", "competitor"))
        if of not in found:
            trial = None if row["trial"] is None else f"trial{row['trial']}"
            name = "-".join(
                str(part) for part in (row["scheme"], row["seed"], trial, row["competitor"]) if part is not None
            )
            named[name] = named.get(name, 0) + 1
            found[of] = Run(name if named[name] == 1 else f"{name} ({named[name]})", {})
        run = found[of]
        run.config |= {name: value for name, value in row.items() if name not in FIRST[1:] and value is not None}
        if row["metric"] is None:
            continue
        step, length = row["step"], row["length"]
        at = [str(length)] if length is not None and step is not None else []
        name = "/".join([row["kind"], *at, row["metric"]])
        point = float(next(each for each in (step, length, 0) if each is not None))
        run.series.setdefault(name, []).append((point, math.nan if row["value"] is None else row["value"]))
    for run in found.values():
        for points in run.series.values():
            points.sort(key=lambda point: point[0])
    return list(found.values())


def to_csv(table: Sequence[Row], out: Path) -> None:
    """A CSV file with a line of names. What is missing is empty."""
    found = columns(table)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(found)
    writer.writerows(zip(*found.values(), strict=True))
    write_whole(out, text.getvalue().encode())


def to_parquet(table: Sequence[Row], out: Path) -> None:
    """A Parquet file; what is missing is null."""
    import pyarrow
    import pyarrow.parquet

    data = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns(table)), data)
    write_whole(out, data.getvalue())


def to_tensorboard(table: Sequence[Row], out: Path) -> None:
    """A folder of events for each run, with the configuration as a text."""
    import tensorboard  # noqa: F401 - torch's error does not name what is missing
    from torch.utils.tensorboard import SummaryWriter

    for run in runs_of(table):
        with SummaryWriter(str(out / quote(run.name, safe=" +()@~"))) as writer:
            writer.add_text("configuration", f"```json\n{json.dumps(run.config, indent=1)}\n```")
            for name, points in run.series.items():
                for step, value in points:
                    writer.add_scalar(name, value, round(step))


def to_wandb(table: Sequence[Row], out: Path) -> None:
    """Runs of Weights & Biases, offline: ``wandb sync`` uploads them. Every metric has a step of its own, under its
    name with " step"."""
    import wandb

    for run in runs_of(table):
        with wandb.init(
            project=PROJECT,
            name=run.name,
            config=run.config,
            dir=str(out),
            mode="offline",
            reinit="finish_previous",
            settings=wandb.Settings(silent=True),
        ) as there:
            for name, points in run.series.items():
                there.define_metric(name, step_metric=f"{name} step")
                for step, value in points:
                    there.log({name: value, f"{name} step": step})


def to_trackio(table: Sequence[Row], out: Path) -> None:
    """Runs of trackio, in a database in ``out``: ``TRACKIO_DIR=OUT trackio show`` shows it."""
    os.environ["TRACKIO_DIR"] = str(out.resolve())  # read when it is imported
    import trackio

    for run in runs_of(table):
        trackio.init(
            project=PROJECT, name=run.name, config=run.config, embed=False, auto_log_cpu=False, auto_log_gpu=False
        )
        for name, points in run.series.items():
            for step, value in points:
                trackio.log({name: value}, step=round(step))
        trackio.finish()


@dataclass(frozen=True)
class Destination:
    """Where a table can be written, by a ``library``: to a file with this ``suffix``, or to a new folder."""

    write: Callable[[Sequence[Row], Path], None]
    library: str = ""
    suffix: str = ""


DESTINATIONS: Mapping[str, Destination] = {
    "csv": Destination(to_csv, suffix=".csv"),
    "parquet": Destination(to_parquet, "pyarrow", ".parquet"),
    "tensorboard": Destination(to_tensorboard, "tensorboard"),
    "wandb": Destination(to_wandb, "wandb"),
    "trackio": Destination(to_trackio, "trackio"),
}
