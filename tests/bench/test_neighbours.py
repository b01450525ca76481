import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from posenc.tools.bench.neighbours import neighbours

HOLDER = """
import sys, time
from posenc.tools.bench.neighbours import neighbours
with neighbours(1) as (pid,):
    print(pid, flush=True)
    time.sleep(60)
"""


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_there_is_one_for_each_core_and_none_afterwards() -> None:
    with neighbours(2) as found:
        assert len(set(found)) == 2
        assert all(map(runs, found))
    assert not any(map(runs, found))


def test_none_is_left_by_an_error() -> None:
    with pytest.raises(KeyboardInterrupt), neighbours(1) as found:
        raise KeyboardInterrupt
    assert not any(map(runs, found))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no such signal")
def test_none_outlives_a_bench_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        assert runs(pid)
        holder.kill()
    until = time.monotonic() + 30
    while runs(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not runs(pid)
