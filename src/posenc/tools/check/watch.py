"""Runs the checks in a child process, so that a subject that exits, crashes or hangs is reported.

A subject may call os._exit, crash, or loop in C, where Python's signals have no effect. The child records its current
step and its time limit. A thread of `faulthandler`, which does not need the interpreter, ends the child when the limit
is over; the parent then reports it.
"""

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
from posenc.tools.kit.command import failed

LEAVE = 5.0  # seconds in which a process may end after its work
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has no SIGKILL, and no fork that it would be sent to
INTERRUPTED = ((3.0, signal.SIGINT), (8.0, KILL))  # the signals sent after so many seconds
LONGEST = 1e9  # seconds that a timer takes
NO_BAR = "\r\x1b[K\x1b[?25h"  # clears the line of a progress bar, and shows the cursor that it hid

_notes: IO[bytes] | None = None  # the notes of this process, if it is watched


def at(stage: str, seconds: float) -> None:
    """Records the current step and its time limit; does nothing outside of a watched process."""
    if _notes is not None:
        _note(f"at {stage}")
        faulthandler.dump_traceback_later(min(seconds, LONGEST), exit=True, file=_notes)


def watched(work: Callable[[], int]) -> int:
    """The exit code of ``work`` in a fork of this process; 2, and one line, if it ends without one.

    Exceptions are raised in the fork. Without fork, or once torch is loaded, whose threads and devices do not survive a
    fork, it runs in this process.
    """
    if not hasattr(os, "fork") or "torch" in sys.modules:
        return work()
    _flush()
    before = _children()
    if sys.platform == "linux":  # what the child leaves behind becomes a child of this process
        ctypes.CDLL(None).prctl(36, 1)
    notes = tempfile.TemporaryFile()  # noqa: SIM115  # the process that works keeps it to its end
    child = os.fork()
    if not child:
        _work(work, notes)
    with notes:
        try:
            end = _end(child)
        finally:
            _end_all(before)
            if sys.stderr is not None and sys.stderr.isatty():
                sys.stderr.write(NO_BAR)
        return _judged(end, os.pread(notes.fileno(), 2**20, 0).decode("utf-8", "replace"))


def _work(work: Callable[[], int], notes: IO[bytes]) -> NoReturn:
    global _notes
    _notes = notes
    if sys.platform == "linux":  # it ends together with the process that watches it
        ctypes.CDLL(None).prctl(1, KILL)
    try:
        code = work()
        _flush()
    except BaseException:
        _note("raised")
        raise
    else:
        _note(f"ended {code}")
        raise SystemExit(code)
    finally:
        faulthandler.dump_traceback_later(LEAVE, exit=True, file=notes)


def _children() -> set[int]:
    """The processes whose parent is this one, as far as the system tells."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return set(map(int, file.read().split()))
    except OSError:
        return set()


def _end_all(spared: set[int]) -> None:
    """Ends what the subject started and did not end, and what that has started."""
    while found := _children() - spared:
        for process in found:
            os.kill(process, KILL)
            os.waitpid(process, 0)


def _flush() -> None:
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()


def _note(line: str) -> None:
    if _notes is not None:
        os.write(_notes.fileno(), f"{line}\n".encode())


def _end(child: int) -> int:
    """The exit code of the child, or minus the signal that ended it. A terminal interrupts both processes, anything
    else only this one, which then passes the interrupt on."""
    timers: list[threading.Timer] = []
    try:
        while True:
            try:
                end = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                break
            except KeyboardInterrupt:
                for seconds, number in () if timers else INTERRUPTED:
                    timers.append(threading.Timer(seconds, os.kill, (child, number)))
                    timers[-1].start()
    finally:
        for timer in timers:
            timer.cancel()
    if timers and end == -KILL:
        raise KeyboardInterrupt
    return end


def _judged(end: int, notes: str) -> int:
    """The exit code, from how the process ended and what it noted."""
    found = re.search(r"^ended (\d+)$", notes, re.MULTILINE)
    if found:
        return int(found[1])
    if re.search(r"^raised$", notes, re.MULTILINE) and end > 0:
        return end
    if re.search(r"^Timeout ", notes, re.MULTILINE):
        said = f"the subject does not return, and nothing stops it{_place(notes)}; --seconds gives more time"
    elif end < 0:
        said = f"the process was ended by {signal.Signals(-end).name}"
    else:
        said = f"the subject ended the process, with exit code {end}"
    stages = re.findall(r"^at (.*)$", notes, re.MULTILINE)
    return failed(": ".join([*stages[-1:], said]), code=2)


def _place(notes: str) -> str:
    """The innermost line of the subject's own code in the main thread, whose traceback is the last."""
    installed = ("-packages", sysconfig.get_path("stdlib"), os.path.dirname(posenc.__file__), "<")
    for file, line in re.findall(r'File "(.*)", line (\d+)', notes.rpartition("most recent call first")[2]):
        if not any(part in file for part in installed):
            return f" ({os.path.basename(file)}, line {line})"
    return ""
