"""Runs jobs as arrays of Slurm, through submitit."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posenc_lab.executors.executor import Ended, Job, Run, outcome

LARGEST_ARRAY = 1000  # Slurm's default limit is 1001
SECONDS_BETWEEN_POLLS = 5.0  # seconds between looks at the jobs


class Requeued:
    """What each element of an array calls. When Slurm is about to end a job for its time or for another job, submitit
    asks for a ``checkpoint`` and submits what it returns: the same job, which resumes."""

    def __call__(self, run: Run[Job], job: Job) -> str:
        return outcome(run, job)

    def checkpoint(self, run: Run[Job], job: Job) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, run, job)


def slurm(
    run: Run[Job], jobs: Sequence[Job], at_once: int | None, logs: Path, parameters: Mapping[str, Any]
) -> Ended[Job]:
    """Submits arrays of jobs, of which ``at_once`` run at a time. An executor.

    ``parameters`` are those of submitit's ``AutoExecutor.update_parameters``, and ``cluster``: "local" runs the jobs
    here, without Slurm. What the jobs print is in ``logs``. ValueError for a parameter that submitit does not know;
    RuntimeError if there is no Slurm.
    """
    import submitit

    given = dict(parameters)
    folder = logs.resolve()
    executor = submitit.AutoExecutor(folder=folder, cluster=given.pop("cluster", "slurm"))
    if at_once is not None:
        given["slurm_array_parallelism"] = at_once
    try:
        executor.update_parameters(**{"name": "posenc", **given})
    except (NameError, TypeError, AssertionError) as error:
        raise ValueError(f"slurm must have parameters of submitit, got {given}: {error}") from None
    parts = [jobs[first : first + LARGEST_ARRAY] for first in range(0, len(jobs), LARGEST_ARRAY)]
    submitted = [each for part in parts for each in executor.map_array(Requeued(), [run] * len(part), part)]
    running = dict(zip(submitted, jobs, strict=True))
    try:
        while running:
            for each in [each for each in running if each.done()]:
                failure = each.exception()  # of the job's process: what run raised is in its result
                yield running.pop(each), each.result() if failure is None else " ".join(str(failure).split())[:300]
            time.sleep(SECONDS_BETWEEN_POLLS if running else 0)
    finally:
        for each in running:
            each.cancel()
