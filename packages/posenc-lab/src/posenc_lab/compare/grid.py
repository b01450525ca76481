"""Runs a grid of comparisons: each combination of values is a *cell*, a comparison with a folder of its own.

A cell is named by the hash of its configuration. It can be run anywhere and any number of times: a measurement that its
folder holds is not repeated. The folder is locked while a cell runs, so two runs of a grid at once share the work.
"""

import math
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, get_origin

from posenc.arguments import check_name, shown
from posenc.command.progress import Progress
from posenc_lab.compare.compare import ALL, compare, resolved
from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.summary import Summary, check
from posenc_lab.compare.tasks import configured
from posenc_lab.compare.tuning import trials
from posenc_lab.executors.executor import Executor
from posenc_lab.kit import configuration_file
from posenc_lab.kit.configuration import ConfigError, fingerprint
from posenc_lab.kit.records import InUseError, Record, read

TABLE = "grid"  # of a grid's file: the options that vary
CLUSTERS = ("slurm", "ray")  # its other tables
CELLS = "cells"  # the folder of the cells' folders
MAX_CELLS = 10_000  # combinations
CELL_IN_USE = "another process is running it"


@dataclass(frozen=True)
class Cell:
    """One comparison of a grid whose results are in ``out``."""

    config: CompareConfig
    out: Path

    @property
    def name(self) -> str:
        return fingerprint(self.config.to_dict())

    @property
    def folder(self) -> Path:
        return self.out / CELLS / self.name

    def value(self, name: str) -> str:
        """The value of an option, in words."""
        value = getattr(self.config, name)
        return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)

    def records(self) -> list[Record]:
        """Its complete records. ValueError, naming the line, for a damaged file."""
        return read(self.folder, check)


@dataclass(frozen=True)
class Grid:
    """The cells of a grid in the order in which they are begun, the names of the options that vary, and the options of
    executors by name."""

    cells: tuple[Cell, ...]
    varied: tuple[str, ...]
    clusters: Mapping[str, Mapping[str, Any]]

    @property
    def is_one(self) -> bool:
        """Whether the cells make one comparison."""
        return set(self.varied) <= {"schemes", "seeds"}


def grid_of(path: str | Path, out: Path, **overrides: Any) -> Grid:
    """The grid of a TOML file, with ``overrides`` of the options that all cells share.

    The file's table ``grid`` has a list of values for each option that varies; each combination is a cell, and the
    option that is named first varies slowest. ValueError for invalid TOML, an option that is both shared and varied,
    and for values that a comparison refuses.
    """

    def made(values: Mapping[str, Any]) -> Grid:
        shared = {name: value for name, value in values.items() if name not in (TABLE, *CLUSTERS)}
        varied, clusters = values.get(TABLE), {name: values.get(name, {}) for name in CLUSTERS}
        if not isinstance(varied, Mapping) or not varied:
            raise ValueError(f"{path} must have a table [{TABLE}] with lists of values, got {shown(varied)}")
        known = {item.name: get_origin(item.type) is tuple for item in fields(CompareConfig)}
        for name, items in varied.items():
            check_name(f"an option of [{TABLE}]", name, list(known))
            if not isinstance(items, list) or not items:
                raise ValueError(f"{name} of [{TABLE}] must be a list of values, one for each cell, got {shown(items)}")
            if name in shared:
                raise ValueError(f"{name} must be given once, got it in [{TABLE}] and for all cells")
        if (cells := math.prod(map(len, varied.values()))) > MAX_CELLS:
            raise ValueError(f"[{TABLE}] must have at most {MAX_CELLS} combinations of values, got {cells}")
        configs: dict[CompareConfig, None] = {}
        for each in product(*varied.values()):
            its = dict(zip(varied, each, strict=True))
            lists = {n: [v] for n, v in its.items() if known[n] and not isinstance(v, list)}
            config = configured({**shared, **its, **lists})
            if config.tune and "seeds" in varied:
                message = f"would tune each scheme once for every seed in [{TABLE}]: give seeds for all cells instead"
                raise ConfigError("tune", f"tune {message}")
            every = resolved(config).schemes if its.get("schemes") == ALL else ()
            configs |= dict.fromkeys([replace(config, schemes=(scheme,)) for scheme in every] or [config])
        return Grid(tuple(Cell(config, out) for config in configs), tuple(varied), clusters)

    return configuration_file.from_toml(path, made, **overrides)


def finished(config: CompareConfig, records: Iterable[Record]) -> bool:
    """Whether the records are all that a comparison makes, or more. No text is read, so a finished one costs little."""
    made = list(records)
    tuned = set(config.schemes) - set(config.given_rates()) if config.tune else ()
    wanted = len(trials(config, learns=True)) * len(config.tune_seeds)
    tried = [record["scheme"] for record in made if record["kind"] == "trial"]
    summary = Summary(record for record in made if record["kind"] != "trial")
    trained = set(product(config.schemes, config.seeds)) <= summary.whole()
    return trained and all(tried.count(scheme) >= wanted for scheme in tuned)


def run_cell(cell: Cell) -> str:
    """Runs what of a cell is not measured yet. Returns "", or `CELL_IN_USE` if another process is running it."""
    try:
        compare(cell.config, cell.folder)
    except InUseError:
        return CELL_IN_USE
    return ""


def run_grid(grid: Grid, executor: Executor, progress: Progress) -> dict[Cell, str]:
    """Runs the cells that are not finished. Returns those that are still not, with the reasons.

    KeyboardInterrupt, also for SIGTERM, after the cells that are running have saved how far they are.
    """
    left = [cell for cell in grid.cells if not finished(cell.config, cell.records())]
    failed: dict[Cell, str] = {}
    with progress:
        progress.begin(sum(map(_work, left)))
        if len(left) < len(grid.cells):
            progress.say(f"{len(grid.cells) - len(left)} of {len(grid.cells)} cells are finished")
        with _terminable(), closing(executor(run_cell, left)) as ended:
            for number, (cell, why) in enumerate(ended, 1):
                progress.advance(_work(cell), f"{number} of {len(left)} cells", described(cell, grid.varied))
                if why:
                    failed[cell] = why
                    progress.say(f"{described(cell, grid.varied)}: {why}")
    return failed


def described(cell: Cell, varied: Iterable[str]) -> str:
    """The values that distinguish a cell: "rope, train_length 128"."""
    values = {name: cell.value(name) for name in varied}
    return ", ".join(value if name in ("task", "schemes") else f"{name} {value}" for name, value in values.items())


def _work(cell: Cell) -> float:
    """Roughly in proportion to the time that a cell takes."""
    config = cell.config
    trainings = len(config.schemes) * (len(config.seeds) + config.tune * len(trials(config, learns=True)))
    return float(trainings * config.steps * config.batch_size * config.train_length)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, so that running cells are stopped in order."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
