"""``python -m study.run``: what of the study is not measured yet, on so many processes; stop it and run it again.

A job is a comparison of one scheme in a folder of its own below ``study/records``, which is under version control. Jobs
are in stages, so that all schemes have come equally far whenever it stops: tuning, then one seed of each, then more.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from posenc.lab.compare import compare
from posenc.lab.config import CompareConfig
from posenc.lab.saved import from_toml
from posenc.lab.tuning import chosen
from posenc.workbench.records import read
from study.texts import fetch

HERE = Path(__file__).parent
RECORDS = HERE / "records"

TEXTS = {"python": 10, "plays": 10}
"""The seeds that each text is to have."""

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


@dataclass(frozen=True)
class Job:
    """A comparison of one scheme, with so many seeds; none: tuning alone."""

    part: str
    folder: str
    seeds: int

    @property
    def out(self) -> Path:
        return RECORDS / self.part / self.folder

    def configuration(self) -> CompareConfig:
        given = {"schemes": [SCHEMES[self.folder]], "seeds": list(range(self.seeds))}
        if self.part != "python":
            rate = tuned(self.folder)
            assert rate is not None, f"{self.folder} is not tuned"
            given["rates"] = [f"{SCHEMES[self.folder]}={rate}"]
        return from_toml(HERE / f"{self.part}.toml", **given)


def tuned(folder: str) -> object:
    """The rate that tuning on Python's packages chose for a scheme."""
    out = RECORDS / "python" / folder
    return chosen(SCHEMES[folder], read(out))


def jobs() -> Iterator[list[Job]]:
    """The stages."""
    for part, seeds in (("python", 0), ("python", 1), ("plays", 1), ("python", 3), ("plays", 3)):
        yield [Job(part, folder, seeds) for folder in SCHEMES]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m study.run", description=__doc__)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="jobs at once, of one thread each")
    parser.add_argument("--stages", type=int, default=99, help="stop after so many stages")
    parser.add_argument("--job", nargs=3, metavar=("PART", "FOLDER", "SEEDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        part, folder, seeds = arguments.job
        job = Job(part, folder, int(seeds))
        compare(job.configuration(), job.out)
        return
    fetch()
    for stage, _ in zip(jobs(), range(arguments.stages), strict=False):
        run(stage, arguments.processes)


def run(stage: list[Job], processes: int) -> None:
    """All jobs of a stage, so many at once."""
    waiting = list(stage)
    running: dict[subprocess.Popen[bytes], Job] = {}
    while waiting or running:
        while waiting and len(running) < processes:
            job = waiting.pop(0)
            command = [sys.executable, "-m", "study.run", "--job", job.part, job.folder, str(job.seeds)]
            running[subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})] = job
        for process in [each for each in running if each.poll() is not None]:
            job = running.pop(process)
            print(
                f"{time.strftime('%H:%M:%S')} {job.part}/{job.folder}, {job.seeds} seeds: exit {process.returncode}",
                flush=True,
            )
        time.sleep(1)


if __name__ == "__main__":
    main()
