"""Runs jobs as tasks of Ray, on this machine or on a cluster."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from posenc.arguments import shown
from posenc_lab.executors.executor import MAX_ATTEMPTS, Ended, Job, Run, outcome

SECONDS_TO_SAVE = 30.0  # seconds that jobs have for saving how far they have come


def on_ray(
    run: Run[Job], jobs: Sequence[Job], at_once: int | None, address: str | None, options: Mapping[str, Any]
) -> Ended[Job]:
    """Runs each job as a task, at most ``at_once`` of them at a time. An executor.

    ``address`` is that of a cluster; None is the one that the environment names (``RAY_ADDRESS``), or the one that was
    last started on this machine, or a new one; ``RAY_ADDRESS=local`` is always a new one. ``options`` are those of
    ``ray.remote``: ``num_cpus``, ``num_gpus``, ``resources``. Ray begins a task again if its process or its node is
    lost. ValueError for an option that Ray does not know; ConnectionError if there is no cluster at the address.
    """
    import ray

    # max_calls: a new process for each task, as the other executors have it.
    given = {"num_cpus": 1, "max_calls": 1, "max_retries": MAX_ATTEMPTS - 1, **options}
    try:
        task: Any = ray.remote(**given)(outcome)
    except (ValueError, TypeError) as error:
        raise ValueError(f"ray must have options of ray.remote, got {shown(dict(options))}: {error}") from None
    ray.init(address=address)
    waiting = deque(jobs)
    running: dict[Any, Job] = {}
    try:
        while waiting or running:
            while waiting and (at_once is None or len(running) < at_once):
                job = waiting.popleft()
                running[task.remote(run, job)] = job
            for each in ray.wait(list(running))[0]:
                job = running.pop(each)
                try:
                    why = ray.get(each)
                except ray.exceptions.RayError as error:  # of the job's process: what run raised is in its result
                    why = " ".join(str(error).split()) or type(error).__name__
                yield job, why
    finally:
        for each in running:
            ray.cancel(each)  # as Ctrl-C does
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=SECONDS_TO_SAVE)
        ray.shutdown()
