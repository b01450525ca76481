"""Runs a script in a fresh interpreter that cannot import posenc."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

SECONDS_PER_SCRIPT = 120.0
WITHOUT = (
    "import runpy, sys; sys.modules['posenc'] = None; sys.argv = sys.argv[1:]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)


class Outcome(NamedTuple):
    """What a script said it expected and what came, and if that is a fault: None where it said nothing."""

    fault: bool | None
    expected: str
    came: str
    error: str = ""


def run(path: Path) -> Outcome:
    """A script exits with 1 where the fault is there and with 0 where it is not, and says what came."""
    command = [sys.executable, "-I", "-c", WITHOUT, str(path)]
    with tempfile.TemporaryDirectory() as folder:
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_PER_SCRIPT, cwd=folder)
        except subprocess.TimeoutExpired:
            return Outcome(None, "", "", f"no end after {SECONDS_PER_SCRIPT:g} seconds")
    before, said, came = ended.stdout.partition("came:")
    if not said or ended.returncode not in (0, 1):
        last = (ended.stderr.strip().splitlines() or ["it says nothing"])[-1]
        return Outcome(None, "", "", last)
    return Outcome(ended.returncode == 1, before.partition("expected:")[2].strip(), came.strip())
