"""Defines executors.

An executor is a function of a function ``run`` and of jobs. It calls ``run(job)`` for every job in another process, on
this machine or another, and yields each job when it has ended, with "" or the reason why it failed. ``run`` and the
jobs are pickled. A job may be run again after its process was killed, so it must continue or repeat what it had begun.
If the iteration is closed, the jobs that are running get a signal to stop, and the iterator waits for them.
"""

import os
import sys
import traceback
from collections.abc import Callable, Generator, Sequence
from typing import Protocol, TypeAlias, TypeVar

from posenc.command.options import words

Job = TypeVar("Job")
Run: TypeAlias = Callable[[Job], str]

Ended: TypeAlias = Generator[tuple[Job, str], None, None]
"""Each job when it has ended, with "" or the reason why it failed."""

MAX_ATTEMPTS = 3
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
