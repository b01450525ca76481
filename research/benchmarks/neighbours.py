"""Starts other processes that keep every core busy during timing."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

# Reports that it runs, and exits once its stdin is closed, however the parent process ends.
SPINNING = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
print("begun", flush=True)
while True:
    pass
"""


@contextmanager
def neighbours(cores: int) -> Iterator[list[int]]:
    """Runs one busy process per core within the block, and yields their ids."""
    with ExitStack() as stack:
        command = [sys.executable, "-I", "-c", SPINNING]
        started = []
        for _ in range(cores):
            # In a session of its own, so that Ctrl-C does not reach it and print a traceback.
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(process)
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        yield [process.pid for process in started]
