"""Runs jobs in processes of this machine."""

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from posenc_lab.executors.executor import MAX_ATTEMPTS, Ended, Job, Run, outcome


def local(run: Run[Job], jobs: Sequence[Job], processes: int, threads: int = 1) -> Ended[Job]:
    """Runs ``processes`` jobs at once, each in a new process with ``threads`` threads. An executor."""
    spawn = multiprocessing.get_context("spawn")
    waiting = deque(range(len(jobs)))
    begun: Counter[int] = Counter()
    running: dict[Connection, tuple[SpawnProcess, int]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                number = waiting.popleft()
                begun[number] += 1
                ours, theirs = spawn.Pipe(duplex=False)
                process = spawn.Process(target=_child, args=(run, jobs[number], theirs))
                with _threads(threads):
                    process.start()
                theirs.close()
                running[ours] = process, number
            ended = wait(list(running))  # readable when the job has ended, or its process
            for ours in [each for each in running if each in ended]:
                process, number = running.pop(ours)
                try:
                    why = ours.recv()
                except EOFError:
                    why = None
                process.join()
                if why is None and begun[number] < MAX_ATTEMPTS:
                    waiting.append(number)
                else:
                    yield jobs[number], f"its process ended with {process.exitcode}" if why is None else why
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.join()


def _child(run: Run[Job], job: Job, answer: Connection) -> None:
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C reaches the parent alone, which then asks once: a second signal would end at once
    threading.Thread(target=_end_with_parent, daemon=True).start()
    ended = outcome(run, job)
    with suppress(BrokenPipeError):  # the parent was killed
        answer.send(ended)


def _end_with_parent() -> None:
    """Stops the job if the parent is gone without having asked for it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Processes that start now have so many threads: libraries read the environment when they are loaded."""
    name = "OMP_NUM_THREADS"
    before = os.environ.get(name)
    os.environ[name] = str(count)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
