"""Other processes that keep every core busy, while something is timed."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

# It says that it has begun, and ends with whoever holds its input, however that ends.
SPINNING = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
print("begun", flush=True)
while True:
    pass
"""


@contextmanager
def neighbours(cores: int) -> Iterator[list[int]]:
    """One busy process for each core, running when this begins and gone when it ends. Gives their ids."""
    with ExitStack() as stack:
        command = [sys.executable, "-I", "-c", SPINNING]
        started = []
        for _ in range(cores):
            # In a session of its own, or Ctrl-C would be its to tell of.
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(process)
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        yield [process.pid for process in started]
