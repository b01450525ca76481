"""``python -m study.run``: what of the study is not measured yet, on so many processes; stop it and run it again.

A job is a comparison of one scheme in a folder of its own below ``study/records``, which is under version control. Jobs
are in stages, so that all schemes have come equally far whenever it stops: tuning, then one seed of each, then more.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc.tools.compare.compare import compare
from posenc.tools.compare.config import CompareConfig, Rate
from posenc.tools.compare.grid import finished
from posenc.tools.compare.tasks import from_toml
from posenc.tools.compare.tuning import chosen, trials
from posenc.tools.executors.executor import cores
from posenc.tools.executors.local import local
from posenc.tools.kit.records import read
from study.texts import fetch

HERE = Path(__file__).parent
RECORDS = HERE / "records"

TEXTS = {"python": 10, "plays": 10, "larger": 5}
"""The seeds that each text is to have; the last is the first, trained longer."""

TASKS = dict.fromkeys(("copy", "reverse", "sort", "addition", "recall", "index", "passkey", "parity"), 10)
"""The same of each puzzle."""

SCHEMES = {
    "nope": "nope",
    "learned": "learned",
    "sinusoidal": "sinusoidal",
    "rope": "rope",
    "p_rope": "p_rope",
    "alibi": "alibi",
    "t5": "t5",
    "kerple": "kerple",
    "fire": "fire",
    "fox": "fox",
    "stick_breaking": "stick_breaking",
    "pope": "pope",
    "cope": "cope",
    "windows": "rope@32~rope@32~nope",
}
"""Folders, and the schemes in them."""

OF_TWO_LAYERS = {"windows": "rope@32~nope"}
"""What a folder holds where models have two layers, as those of puzzles do, and the schedule is of three."""

OF_TASKS = ("nope", "sinusoidal", "rope", "alibi", "t5", "fox", "pope", "windows")
"""Those that puzzles are tried with."""


@dataclass(frozen=True)
class Job:
    """A comparison of one scheme, with so many seeds; none: tuning alone."""

    part: str
    folder: str
    seeds: int

    @property
    def scheme(self) -> str:
        return OF_TWO_LAYERS.get(self.folder, SCHEMES[self.folder]) if self.part in TASKS else SCHEMES[self.folder]

    @property
    def out(self) -> Path:
        return RECORDS / self.part / self.folder

    def __str__(self) -> str:
        return f"{self.part}/{self.folder}, {self.seeds} seeds"

    def configuration(self) -> CompareConfig:
        given: dict[str, Any] = {"schemes": [self.scheme], "seeds": list(range(self.seeds))}
        if self.part in TASKS:
            return from_toml(HERE / "tasks.toml", task=self.part, **given)
        if self.part != "python":
            given["rates"] = [f"{self.scheme}={tuned(self.folder)}"]
        return from_toml(HERE / f"{self.part}.toml", **given)

    def done(self) -> bool:
        """Whether its folder holds all of it, so that the text need not be read to find nothing to do."""
        return finished(self.configuration(), read(self.out))


def tuned(folder: str) -> Rate:
    """The rate that tuning on Python's packages chose for a scheme. ValueError where it has not had all its trials."""
    job, made = Job("python", folder, 0), read(RECORDS / "python" / folder)
    rate, tried = chosen(SCHEMES[folder], made), sum(record["kind"] == "trial" for record in made)
    wanted = len(trials(job.configuration(), learns=True))
    if rate is None or tried < wanted:
        raise ValueError(f"{folder} must be tuned on python first: it has had {tried} of {wanted} trials")
    return rate


def jobs() -> Iterator[list[Job]]:
    """The stages: all schemes are tuned, then come few seeds of everything, then the rest."""
    yield [Job("python", folder, 0) for folder in SCHEMES]
    for share in (0.1, 0.3, 0.5, 1.0):
        for part, seeds in TEXTS.items():
            yield [Job(part, folder, math.ceil(share * seeds)) for folder in SCHEMES]
        for part, seeds in TASKS.items():
            yield [Job(part, folder, math.ceil(share * seeds)) for folder in OF_TASKS]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m study.run", description=__doc__)
    parser.add_argument("--processes", type=int, default=cores(), help="jobs at once, of one thread each")
    parser.add_argument("--stages", type=int, default=99, help="stop after so many stages")
    arguments = parser.parse_args()
    fetch()
    for stage, _ in zip(jobs(), range(arguments.stages), strict=False):
        failed = run([job for job in stage if not job.done()], arguments.processes)
        if failed:  # what comes after builds on it
            sys.exit(f"these failed, and nothing after them was begun: {', '.join(map(str, failed))}")


def run(stage: list[Job], processes: int) -> list[Job]:
    """All jobs, so many at once, each with one thread. Gives those that failed."""
    failed = []
    with closing(local(measure, stage, processes)) as ended:
        for job, why in ended:
            failed += [job] if why else []
            print(f"{time.strftime('%H:%M:%S')} {job}: {why or 'done'}", flush=True)
    return failed


def measure(job: Job) -> str:
    """What of a job is not measured yet."""
    compare(job.configuration(), job.out)
    return ""


if __name__ == "__main__":
    main()
