"""Runs the items of a step in processes: each has a limit, and what ends one process is not run by another."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from posenc.tools.bench.gpu.journal import AGAIN

LOOK = 0.05  # seconds after which a thread looks whether all is to stop
STARTING = 90.0  # seconds until a process is ready at most
MODULE = "posenc.tools.bench.gpu.worker"
SILENT = "it ended before it was ready: see the log"


class Worker:
    """A process of a step."""

    def __init__(self, words: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self.descriptor, theirs = os.pipe()
        self.left = b""
        # Its own group, so that the processes of a compiler end with it.
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", MODULE, words[0], words[1], str(theirs), *words[2:]],
                stdin=subprocess.PIPE, stdout=file, stderr=file, pass_fds=(theirs,), env=environment,
                start_new_session=True, bufsize=0,
            )  # fmt: skip
        os.close(theirs)

    def ask(self, name: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which `answer` says
            self.process.stdin.write(f"{name}\n".encode())

    def answer(self, until: float, stopped: threading.Event) -> dict[str, Any] | None:
        """The next line; None if the process has ended. TimeoutError if there is none in time, or all is to stop."""
        while b"\n" not in self.left:
            if not select.select([self.descriptor], [], [], LOOK)[0]:
                if time.monotonic() >= until or stopped.is_set():
                    raise TimeoutError
                continue
            read = os.read(self.descriptor, 2**16)
            if not read:
                return None
            self.left += read
        line, _, self.left = self.left.partition(b"\n")
        return json.loads(line)

    def end(self) -> int:
        """Ends the process and all that it started, and returns its exit code."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        assert self.process.stdin is not None
        self.process.stdin.close()
        os.close(self.descriptor)
        return self.process.wait()


class Lanes:
    """The processes of a step side by side, each of which takes the next item."""

    def __init__(
        self,
        start: Callable[[], Worker],
        names: Sequence[str],
        each: float,
        until: float,
        record: Callable[[dict[str, Any]], None],
    ) -> None:
        self.start, self.each, self.until, self.record = start, each, until, record
        self.names = deque(names)
        self.outcome = "done"
        self.error: Exception | None = None  # of writing a result, for example
        self.stopped = threading.Event()

    def run(self, count: int) -> str:
        """Runs all items until the time is up: "done", "out of time", or why no process could be started. Items that
        are interrupted then have no line, so that they are run when it is resumed. Raises what ``record`` raises."""
        lanes = [threading.Thread(target=self._lane, daemon=True) for _ in range(min(count, len(self.names)))]
        for lane in lanes:
            lane.start()
        try:
            for lane in lanes:
                while lane.is_alive():
                    lane.join(LOOK)
        finally:
            self.stopped.set()
            for lane in lanes:
                lane.join()
        if self.error is not None:
            raise self.error
        return self.outcome

    def _next(self) -> str | None:
        if self.stopped.is_set() or self.outcome == SILENT:
            return None
        if time.monotonic() >= self.until and self.names:
            self.outcome = "out of time"
            return None
        try:
            return self.names.popleft()
        except IndexError:
            return None

    def _lane(self) -> None:
        worker: Worker | None = None
        try:
            while (name := self._next()) is not None:
                if worker is None:
                    worker = self.start()
                    if not self._is_ready(worker):
                        return
                found, is_alive = self._item(worker, name)
                if found is not None:
                    self.record({"item": name, **found})
                if not is_alive:
                    worker.end()
                    worker = None
        except Exception as error:
            self.error = error
            self.stopped.set()
        finally:
            if worker is not None:
                worker.end()

    def _is_ready(self, worker: Worker) -> bool:
        try:
            if worker.answer(min(self.until, time.monotonic() + STARTING), self.stopped) is not None:
                return True
            self.outcome = SILENT
        except TimeoutError:
            is_late = time.monotonic() >= self.until or self.stopped.is_set()
            self.outcome = "out of time" if is_late else SILENT
        return False

    def _item(self, worker: Worker, name: str) -> tuple[dict[str, Any] | None, bool]:
        """What was found, None if it was interrupted; and whether the process takes more."""
        limit = time.monotonic() + self.each
        worker.ask(name)
        try:
            found = worker.answer(min(self.until, limit), self.stopped)
        except TimeoutError:
            if time.monotonic() >= limit:
                return {"failed": f"it took longer than {self.each:g} s", AGAIN: True}, False
            self.outcome = "out of time"
            return None, False
        if found is None:
            code = worker.process.wait()
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            return {"failed": f"its process ended {how}: see the log"}, False
        return found, not found.pop("broken", False)
