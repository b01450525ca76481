"""The process that `posenc check` works in: however it ends, the command says so, and its exit code is not 0."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

from posenc_check.watch import run_watched

BEGINNING = """
import itertools, os, signal, sys, threading, time
from posenc_check import watch

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell has put into the background
watch.SECONDS_TO_EXIT, watch.SECONDS_AFTER_INTERRUPT = 0.3, 0.6

def work():
    watch.record_stage("mine:one: before the checks", 60)
    watch.record_stage("mine:one: 7. padding", {seconds})
    print("working", flush=True)
    {work}

sys.exit(watch.run_watched(work))
"""
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork, so nothing is watched")


def started(folder: Path, work: str, seconds: float) -> "subprocess.Popen[str]":
    """A command that does this work and nothing else, so that torch is not loaded."""
    (folder / "mine.py").write_text(BEGINNING.format(work=work, seconds=seconds), encoding="utf-8")
    command = [sys.executable, str(folder / "mine.py")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


ENDED = "posenc: error: mine:one: 7. padding: the subject ended the process, with exit code"
STAYS = "posenc: error: mine:one: 7. padding: the subject does not return, and nothing stops it (mine.py, line 12)"


@pytest.mark.parametrize(
    ("work", "code", "said"),
    [
        ("return 0", 0, ""),
        ("return 1", 1, ""),
        ("threading.Thread(target=time.sleep, args=(60,)).start(); return 0", 0, ""),  # which Python waits for
        # Processes that it leaves behind, and that would keep the output open.
        ("import subprocess; subprocess.Popen(['sleep', '600']); return 0", 0, ""),
        ("os._exit(0)", 2, f"{ENDED} 0\n"),
        ("os._exit(1)", 2, f"{ENDED} 1\n"),
        ("sys.exit(0)", 2, f"{ENDED} 0\n"),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            2,
            "posenc: error: mine:one: 7. padding: the process was ended by SIG",
        ),
        ("sys.exit('as without a watch')", 1, "as without a watch\n"),
        ("raise ValueError('as without a watch')", 1, "Traceback"),
    ],
)
def test_how_the_work_ends_is_how_the_command_does(work: str, code: int, said: str, tmp_path: Path) -> None:
    with started(tmp_path, work, seconds=60) as running:
        out, error = running.communicate(timeout=60)
    assert (running.returncode, out) == (code, "working\n")
    assert error.startswith(said)
    assert bool(error) == bool(said)


@pytest.mark.parametrize("work", ["sum(itertools.repeat(1))", "signal.pthread_sigmask(0, [2, 14]); time.sleep(60)"])
def test_what_does_not_return_is_ended(work: str, tmp_path: Path) -> None:
    """A loop in C, which keeps Python from all else; and a wait that no signal reaches."""
    with started(tmp_path, work, seconds=0.3) as running:
        _, error = running.communicate(timeout=60)
    assert (running.returncode, error) == (2, f"{STAYS}; --seconds gives more time\n")


@pytest.mark.parametrize(
    ("work", "code", "last"),
    [
        ("try: time.sleep(60)\n    except KeyboardInterrupt: return 1", 1, ""),
        ("sum(itertools.repeat(1))", -signal.SIGINT, "KeyboardInterrupt\n"),
    ],
)
def test_an_interrupt_reaches_the_work_or_ends_it(work: str, code: int, last: str, tmp_path: Path) -> None:
    with started(tmp_path, work, seconds=60) as running:
        assert running.stdout is not None
        running.stdout.readline()
        time.sleep(0.3)  # until it is in the loop
        running.send_signal(signal.SIGINT)
        _, error = running.communicate(timeout=60)
    assert running.returncode == code
    assert error.endswith(last)


@pytest.mark.more
def test_the_command_is_watched(tmp_path: Path) -> None:
    subject = """
        import os
        from posenc_check import Layer

        def build(): return []

        def call(made, x):
            return x if x.size(1) == 5 else os._exit(0)

        subject = Layer(build=build, call=call)
        """
    (tmp_path / "mine.py").write_text(dedent(subject), encoding="utf-8")
    command = [sys.executable, "-m", "posenc", "check", "mine.py:subject", "--checks", "5"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 2
    last = run.stderr.splitlines()[-1]
    assert last.startswith("posenc: error: mine.py:subject: 5. purity, ")
    assert last.endswith(": the subject ended the process, with exit code 0")


def test_where_torch_is_loaded_the_work_is_done_here() -> None:
    assert run_watched(os.getpid) == os.getpid()
