"""Runs independent jobs on this machine, as an array of Slurm, or on a cluster of Ray."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from posenc.arguments import shown
from posenc_lab.executors.executor import Executor, cores


def executor_of(on: str, processes: int | None, logs: Path, options: Mapping[str, Mapping[str, Any]]) -> Executor:
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
