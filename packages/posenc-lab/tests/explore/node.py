"""Runs the explorer's JavaScript in node: the one that Playwright's wheel brings, or the system's."""

import base64
import json
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

import posenc_lab.explore

STATIC = Path(posenc_lab.explore.__file__).parent / "static"


def find() -> str | None:
    """The path of a node, or None."""
    try:
        from playwright._impl._driver import compute_driver_executable
    except ImportError:
        return shutil.which("node")
    driver = compute_driver_executable()  # node and the file it runs; in older versions a script alone
    bundled = driver[0] if isinstance(driver, tuple) else Path(driver).with_name("node")
    return str(bundled) if Path(bundled).exists() else shutil.which("node")


class Node:
    """A process that answers jobs, one after another: see ``run.mjs``. ``static`` holds the JavaScript."""

    def __init__(self, executable: str, static: Path = STATIC) -> None:
        command = [executable, str(Path(__file__).with_name("run.mjs")), str(static)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)
        self._process.stdout.close()

    def __call__(self, what: str, **job: Any) -> Any:
        """What JavaScript finds, its arrays as tensors. AssertionError with the words of an error that it throws."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"what": what, **job}, default=_written) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline(), object_hook=_read)
        assert "error" not in answer, answer["error"]
        return answer["found"]


def _written(x: Any) -> Any:
    """What JSON does not know."""
    if isinstance(x, Tensor):
        data = np.ascontiguousarray(x.detach().double().numpy()).tobytes()
        return {"shape": list(x.shape), "data": base64.b64encode(data).decode()}
    if isinstance(x, range):
        return [x.start, x.stop] if x.step == 1 else [x.start, x.stop, x.step]
    raise TypeError(f"a job must hold numbers, words, tensors and ranges, got {type(x).__name__}")


def _read(x: dict[str, Any]) -> Any:
    if set(x) != {"shape", "data"}:
        return x
    return torch.frombuffer(bytearray(base64.b64decode(x["data"])), dtype=torch.float64).view(x["shape"])
