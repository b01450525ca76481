"""``posenc compare`` in processes of its own that come to harm: a process that has torch at hand, and forks a child for
each run, which is stopped at the n-th thing it does to a file.

What is counted is every call of `WATCHED`, over the whole run: of configuration, checkpoints, records and report.
"""

import errno
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

WATCHED = ("write", "fsync", "replace", "unlink", "ftruncate")
SIGNALS = {
    "kill": [signal.SIGKILL],
    "stop": [signal.SIGSTOP],
    "twice": [signal.SIGINT, signal.SIGINT],
    "full": [],
}


@dataclass(frozen=True)
class Trouble:
    """What happens just before the ``at``-th thing done to a file.

    "kill", "stop": the signal; "twice": two interrupts; "full": the disk takes nothing more. Where a write ends
    with it, half of it is written.
    """

    at: int = 0  # never
    what: str = "stop"


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code, or minus the signal, and what it wrote; or that it is stopped."""

    code: int
    out: str
    err: str


class Nursery:
    """The parent of the children; a context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.compare.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "200"},
            cwd=Path(__file__).parents[4],
        )

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input is its end
        assert self._process.returncode == 0

    def start(
        self, arguments: Sequence[str], trouble: Trouble = Trouble(), environment: Mapping[str, str] | None = None
    ) -> int:
        """A child that runs ``posenc`` with these arguments, or a function of a module, ``module:function``, with the
        others: the number of its process."""
        asked = {"arguments": list(arguments), "trouble": asdict(trouble), "environment": dict(environment or {})}
        return int(self._ask(asked))

    def start_several(self, world: int, arguments: Sequence[str], trouble: Trouble = Trouble()) -> list[int]:
        """Children that torchrun could have started; the trouble is the first one's."""
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = str(free.getsockname()[1])
        group = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        group |= {"WORLD_SIZE": str(world)}
        return [
            self.start(arguments, Trouble() if rank else trouble, {**group, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(world)
        ]

    def wait(self, process: int) -> Ended:
        """Until a child has ended or is stopped."""
        return Ended(*self._ask({"wait": process}))

    def run(self, arguments: Sequence[str], trouble: Trouble = Trouble()) -> Ended:
        """Both."""
        return self.wait(self.start(arguments, trouble))

    def _ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def main() -> None:
    """The parent: a line of JSON for each child to start or to wait for, and one in return."""
    for name in (
        "posenc_lab.compare.compare",
        "posenc.command.progress",
        "posenc_lab.compare.report",
        "torch._dynamo",
        "torch.nn.parallel",
    ):
        importlib.import_module(name)  # what children would import, each anew
    written: dict[int, list[int]] = {}  # the ends of the pipes that children write to; what they write fits in
    answer: Any
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            process, status = os.waitpid(question["wait"], os.WUNTRACED)
            if os.WIFSTOPPED(status):
                answer = [-os.WSTOPSIG(status), "", ""]
            else:
                texts = [os.fdopen(pipe, encoding="utf-8").read() for pipe in written.pop(process)]
                answer = [os.waitstatus_to_exitcode(status), *texts]
        else:
            pipes = [os.pipe(), os.pipe()]
            answer = os.fork()
            if not answer:
                os.environ.update(question["environment"])
                child(question["arguments"], Trouble(**question["trouble"]), [pipe[1] for pipe in pipes])
            written[answer] = [pipe[0] for pipe in pipes]
            for pipe in pipes:
                os.close(pipe[1])
        print(json.dumps(answer), flush=True)


def child(arguments: list[str], trouble: Trouble, pipes: list[int]) -> None:
    """Runs the command line and ends the process."""
    from posenc.command import cli
    from posenc_lab import compare as lab
    from posenc_lab.compare import train

    for number, pipe in enumerate(pipes, 1):
        os.dup2(pipe, number)
    nothing: Any = SimpleNamespace(write=lambda records, out: out, terminal_table=lambda records: "the table")
    sys.modules["posenc_lab.compare.report"] = nothing
    lab.report = nothing  # type: ignore[attr-defined]
    assert train.train.__kwdefaults__ is not None
    train.train.__kwdefaults__["save_seconds"] = 0.0  # a checkpoint after every step
    watch(trouble)
    code = 70
    try:
        module, is_function, function = arguments[0].partition(":")
        if is_function:
            getattr(importlib.import_module(module), function)(*arguments[1:])
            code = 0
        else:
            code = cli.main(arguments)
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def watch(trouble: Trouble) -> None:
    """Counts what is done to files, and lets the trouble happen."""
    count, full = 0, False

    def watched(name: str, call: Any) -> Any:
        def calling(*arguments: Any, **more: Any) -> Any:
            nonlocal count, full
            count += 1
            if count == trouble.at:
                if name == "write" and trouble.what in ("kill", "twice", "full"):
                    call(arguments[0], arguments[1][: len(arguments[1]) // 2])
                for number in SIGNALS[trouble.what]:
                    os.kill(os.getpid(), number)
                full = trouble.what == "full"
            if full and name in ("write", "fsync", "replace"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*arguments, **more)

        return calling

    for name in WATCHED:
        setattr(os, name, watched(name, getattr(os, name)))


if __name__ == "__main__":
    main()
