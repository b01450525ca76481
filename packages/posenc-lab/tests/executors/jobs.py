"""What executors are tried with: a job is a word, and the folder in which it notes that it was begun."""

import os
import signal
import time
from pathlib import Path
from typing import NamedTuple


class Job(NamedTuple):
    does: str
    folder: Path

    @property
    def begun(self) -> int:
        """How often."""
        notes = self.folder / f"{self.does}.begun"
        return len(notes.read_text().splitlines()) if notes.exists() else 0


class BugError(Exception):
    """Not one that is expected of a job."""


def run(job: Job) -> str:
    with (job.folder / f"{job.does}.begun").open("a") as notes:
        notes.write(f"{os.getpid()}\n")
    if job.does == "refuse":
        raise ValueError("no such text")
    if job.does == "bug":
        raise BugError("a bug")
    if job.does == "odd":
        return "not today"
    if job.does == "die" or (job.does == "die once" and job.begun == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    if job.does == "place":
        group = "a group of its own" if os.getpgrp() == os.getpid() else "its parent's"
        return f"{os.environ['OMP_NUM_THREADS']} threads, in {group}"
    if job.does == "long":  # stops in order when it is asked once, as a comparison does
        asked: list[int] = []
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: asked.append(number))
        (job.folder / "long.ready").touch()
        while not asked:
            time.sleep(0.01)
        (job.folder / "long.saved").write_text(str(len(asked)))
        raise KeyboardInterrupt
    return ""


def told(folder: Path, *words: str) -> list[Job]:
    return [Job(word, folder) for word in words]
