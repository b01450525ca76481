"""``python -m tests.compare.interruptions TEXT OUT``: a comparison that is killed just before the n-th thing that it
does to a file, in the middle of it where it is a write, and started again, with a larger n each time, until one ends.

Each run is a fork of a process that has imported all; for each a line is written: how it ended, and a digest of each
record that was there then.
"""

import hashlib
import itertools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from posenc_lab.compare import train
from posenc_lab.compare.compare import compare
from posenc_lab.kit.records import FILE
from tests.compare.tiny_comparison import small_config

WATCHED = ("write", "fsync", "replace", "unlink", "ftruncate")


def watch(at: int) -> None:
    """Kills this process at that one of its calls, counted over all of `WATCHED`."""
    count = itertools.count(1)

    def watched(name: str, call: Any) -> Any:
        def calling(*arguments: Any, **more: Any) -> Any:
            if next(count) == at:
                if name == "write":
                    call(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **more)

        return calling

    for name in WATCHED:
        setattr(os, name, watched(name, getattr(os, name)))


def main(text: Path, out: Path) -> None:
    assert train.train.__kwdefaults__ is not None
    train.train.__kwdefaults__["save_seconds"] = 0.0  # a checkpoint after every step
    code, at = -1, 1
    while code:
        child = os.fork()
        if not child:
            watch(at)
            compare(small_config(text, schemes=("nope", "learned"), steps=3, test_lengths=(8, 32)), out)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        lines = (out / FILE).read_bytes().split(b"\n")[:-1] if (out / FILE).exists() else []
        at += 2
        print(json.dumps([code, [hashlib.sha256(line).hexdigest() for line in lines]]))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
