"""Defines executors.

An executor is a function of a function ``run`` and of jobs. It calls ``run(job)`` for every job in another process, on
this machine or another, and yields each job when it has ended, with "" or the reason why it failed. ``run`` and the
jobs are pickled. A job may be run again after its process was killed, so it must continue or repeat what it had begun.
If the iteration is closed, the jobs that are running get a signal to stop, and the iterator waits for them.
"""

import os
import sys
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from posenc.arguments import shown
from posenc.command.options import words

Job = TypeVar("Job")
Run: TypeAlias = Callable[[Job], str]

Ended: TypeAlias = Generator[tuple[Job, str], None, None]
"""Each job when it has ended, with "" or the reason why it failed."""

TRIES = 3
"""How often a job is begun whose process is killed."""


class Executor(Protocol):
    def __call__(self, run: Run[Job], jobs: Sequence[Job]) -> Ended[Job]: ...


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def outcome(run: Run[Job], job: Job) -> str:
    """What an executor yields for a job: what ``run`` returns, or its error in words. Runs beside the job."""
    try:
        return run(job)
    except KeyboardInterrupt:
        return "interrupted"
    except Exception as error:
        if not isinstance(error, ValueError | OSError):  # not an expected one: its place is needed too
            traceback.print_exc(file=sys.stderr)
        return words(error)


def executor(on: str, processes: int | None, logs: Path, options: Mapping[str, Mapping[str, Any]]) -> Executor:
    """The executor ``on`` names: local, slurm, ray, or the address of a cluster, ray://HOST:PORT.

    ``processes`` is the number of jobs at once: by default as many as this machine has cores, and as many as fit on a
    cluster. ``logs`` is a folder for the output of Slurm's jobs. ``options`` are, by executor, submitit's parameters
    and Ray's resources of a task. ValueError for another name; ModuleNotFoundError if the library is not installed.
    """
    if on == "local":
        from posenc_lab.executors.local import local

        at_once = processes or cores()
        return partial(local, processes=at_once, threads=max(cores() // at_once, 1))
    if on == "slurm":
        from posenc_lab.executors.slurm import slurm

        return partial(slurm, at_once=processes, logs=logs, parameters=options.get("slurm", {}))
    if on == "ray" or on.startswith("ray://"):
        from posenc_lab.executors.cluster import on_ray

        address = on if "://" in on else None
        return partial(on_ray, at_once=processes, address=address, options=options.get("ray", {}))
    raise ValueError(f"on must be local, slurm, ray or ray://HOST:PORT, got {shown(on)}")
