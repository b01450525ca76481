"""Runs the checks in a child process, so that a subject that exits, crashes or hangs is reported.

A subject may call os._exit, crash, or loop in C, where Python's signals have no effect. The child records its current
step and its time limit. A thread of `faulthandler`, which does not need the interpreter, ends the child when the limit
is over; the parent then reports it.
"""

import contextlib
import ctypes
import faulthandler
import os
import re
import signal
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable
from typing import IO, NoReturn

import posenc
from posenc.command.options import failed

SECONDS_TO_EXIT = 5.0  # seconds in which a process may end after its work
KILL_SIGNAL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has no SIGKILL, and no fork that it would be sent to
SECONDS_AFTER_INTERRUPT = 8.0  # seconds after an interrupt until the child is ended
MAX_TIMER_SECONDS = 1e9  # seconds that a timer takes

_notes: IO[bytes] | None = None  # the notes of this process, if it is watched


def record_stage(stage: str, seconds: float) -> None:
    """Records the current step and its time limit; does nothing outside of a watched process."""
    if _notes is not None:
        _note(f"at {stage}")
        faulthandler.dump_traceback_later(min(seconds, MAX_TIMER_SECONDS), exit=True, file=_notes)


def run_watched(work: Callable[[], int]) -> int:
    """The exit code of ``work`` in a fork of this process, which raises its exceptions; 2, and one line, if it ends
    without one. Without fork, or once torch is loaded, whose threads do not survive a fork, it runs in this process."""
    if not hasattr(os, "fork") or "torch" in sys.modules:
        return work()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    notes = tempfile.TemporaryFile()  # noqa: SIM115  # the process that works keeps it to its end
    child = os.fork()
    if not child:
        _run_in_child(work, notes)
    with notes:
        exit_code = _wait_for_child(child)
        if sys.stderr is not None and sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K\x1b[?25h")  # clears the line of a progress bar, and shows the cursor that it hid
        return _report_exit(exit_code, os.pread(notes.fileno(), 2**20, 0).decode("utf-8", "replace"))


def _run_in_child(work: Callable[[], int], notes: IO[bytes]) -> NoReturn:
    global _notes
    _notes = notes
    os.setpgid(0, 0)  # what it leaves behind is ended with it
    if sys.platform == "linux":  # it ends together with the process that watches it
        ctypes.CDLL(None).prctl(1, KILL_SIGNAL)
    try:
        code = work()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except BaseException:
        _note("raised")
        raise
    else:
        _note(f"ended {code}")
        raise SystemExit(code)
    finally:
        faulthandler.dump_traceback_later(SECONDS_TO_EXIT, exit=True, file=notes)


def _note(line: str) -> None:
    if _notes is not None:
        os.write(_notes.fileno(), f"{line}\n".encode())


def _wait_for_child(child: int) -> int:
    """The exit code of the child, or minus the signal that ended it. An interrupt is passed on to it, once."""
    timer = threading.Timer(SECONDS_AFTER_INTERRUPT, os.kill, (child, KILL_SIGNAL))
    interrupted = False
    while True:
        try:
            exit_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            break
        except KeyboardInterrupt:
            if not interrupted:
                interrupted = True
                os.kill(child, signal.SIGINT)
                timer.start()
    timer.cancel()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, KILL_SIGNAL)
    if interrupted and exit_code in (-KILL_SIGNAL, -signal.SIGINT):
        raise KeyboardInterrupt
    return exit_code


def _report_exit(exit_code: int, notes: str) -> int:
    """The exit code, from how the process ended and what it noted."""
    if found := re.search(r"^ended (\d+)$", notes, re.MULTILINE):
        return int(found[1])
    if re.search(r"^raised$", notes, re.MULTILINE) and exit_code > 0:
        return exit_code
    if re.search(r"^Timeout ", notes, re.MULTILINE):
        message = f"the subject does not return, and nothing stops it{_place(notes)}; --seconds gives more time"
    elif exit_code < 0:
        message = f"the process was ended by {signal.Signals(-exit_code).name}"
    else:
        message = f"the subject ended the process, with exit code {exit_code}"
    return failed(": ".join([*re.findall(r"^at (.*)$", notes, re.MULTILINE)[-1:], message]), code=2)


def _place(notes: str) -> str:
    """The innermost line of the subject's own code in the main thread, whose traceback is the last."""
    installed = ("-packages", sysconfig.get_path("stdlib"), *map(os.path.dirname, (posenc.__file__, __file__)), "<")
    for file, line in re.findall(r'File "(.*)", line (\d+)', notes.rpartition("most recent call first")[2]):
        if not any(part in file for part in installed):
            return f" ({os.path.basename(file)}, line {line})"
    return ""
