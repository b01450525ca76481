"""``python -m study.run``: what of the study is not measured yet, on so many processes; stop it and run it again.

A job is a comparison of one scheme in a folder of its own below ``runs/study``. What was measured is packed into
``research/study/records``, which is under version control.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc_lab.compare.compare import compare
from posenc_lab.compare.config import CompareConfig, Rate
from posenc_lab.compare.grid import finished
from posenc_lab.compare.summary import Summary
from posenc_lab.compare.tasks import from_toml
from posenc_lab.compare.tuning import chosen, trials
from posenc_lab.executors.executor import cores
from posenc_lab.executors.local import local
from posenc_lab.kit.records import read
from study.archives import RECORDS, pack, unpack
from study.texts import fetch

HERE = Path(__file__).parent

TEXTS = {"python": 10, "plays": 10, "larger": 5}
"""The seeds that each text is to have; the last is the first, trained longer."""

TASKS = dict.fromkeys(("copy", "reverse", "sort", "addition", "recall", "index", "passkey", "parity"), 10)
"""The seeds that each puzzle has. All are measured, and are only read here."""

USUAL = ("nope", "learned", "sinusoidal", "rope", "p_rope", "alibi", "t5", "kerple", "fire", "fox")
SCHEMES = {name: name for name in (*USUAL, "stick_breaking", "pope", "cope")} | {"windows": "rope@32~rope@32~nope"}
"""Folders, and the schemes in them."""

OF_TWO_LAYERS = {"windows": "rope@32~nope"}
"""What a folder holds where models have two layers, as those of puzzles do, and the schedule is of three."""

OF_TASKS = ("nope", "sinusoidal", "rope", "alibi", "t5", "fox", "pope", "windows")
"""Those that puzzles are tried with."""

FOLDERS = dict.fromkeys(TEXTS, tuple(SCHEMES)) | dict.fromkeys(TASKS, OF_TASKS)
"""The folders of its schemes."""

CPU, GPU = "cpu", "cuda"  # the second is a folder in that of a scheme: seeds that were measured on a GPU


@dataclass(frozen=True)
class Job:
    """A comparison of one scheme with these seeds; no seeds: tuning alone."""

    part: str
    folder: str
    seeds: tuple[int, ...]

    @property
    def scheme(self) -> str:
        return OF_TWO_LAYERS.get(self.folder, SCHEMES[self.folder]) if self.part in TASKS else SCHEMES[self.folder]

    @property
    def out(self) -> Path:
        return RECORDS / self.part / self.folder

    def __str__(self) -> str:
        return f"{self.part}/{self.folder}, {len(self.seeds)} seeds"

    def configuration(self) -> CompareConfig:
        given: dict[str, Any] = {"schemes": [self.scheme], "seeds": list(self.seeds)}
        if self.part != "python":
            given["rates"] = [f"{self.scheme}={tuned(self.part, self.folder)}"]
        return from_toml(HERE / f"{self.part}.toml", **given)

    def done(self) -> bool:
        """Whether its folder holds all of it, so that the text need not be read to find nothing to do."""
        return finished(self.configuration(), read(self.out))

    def elsewhere(self) -> set[int]:
        """The seeds of which a GPU has measured all."""
        found = Summary(record for record in read(self.out / GPU) if record["kind"] != "trial").whole()
        return {seed for scheme, seed in found if scheme == self.scheme}


def tuned(part: str, folder: str) -> Rate:
    """The rate that tuning chose for a scheme: on Python's packages for all texts, on its own rows for a puzzle.
    ValueError where it has not had all its trials."""
    job = Job(part if part in TASKS else "python", folder, ())
    made = read(job.out)
    rate, tried = chosen(job.scheme, made), sum(record["kind"] == "trial" for record in made)
    wanted = 3 if part in TASKS else len(trials(from_toml(HERE / "python.toml"), learns=True))
    if rate is None or tried < wanted:
        raise ValueError(f"{folder} must be tuned on {job.part} first: it has had {tried} of {wanted} trials")
    return rate


def jobs() -> Iterator[list[Job]]:
    """The stages: all schemes are tuned, then trained on each text."""
    yield [Job("python", folder, ()) for folder in SCHEMES]
    for part, seeds in TEXTS.items():
        left = {folder: {*range(seeds)} - Job(part, folder, ()).elsewhere() for folder in FOLDERS[part]}
        yield [Job(part, folder, tuple(sorted(its))) for folder, its in left.items() if its]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m study.run", description=__doc__)
    parser.add_argument("--processes", type=int, default=cores(), help="jobs at once, of one thread each")
    arguments = parser.parse_args()
    fetch()
    unpack()
    for stage in jobs():
        failed = run([job for job in stage if not job.done()], arguments.processes)
        pack()
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
