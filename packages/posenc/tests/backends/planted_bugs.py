"""The kernel built with a bug: a line of its C++ that says something else."""

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from posenc.backends.native import build

QUICK = ("-O1", "-march=native")  # built in a second and a half


@dataclass(frozen=True)
class KernelBug:
    """In a ``file`` of the kernel ``that`` stands in the place of ``this``, which is there once."""

    file: str
    this: str
    that: str


def check_occurs_once(bug: KernelBug) -> None:
    """ValueError where there is no one place for it."""
    count = (build.SOURCES / bug.file).read_text().count(bug.this)
    if count != 1:
        raise ValueError(f"{bug.file} must have this once, to be mutated, got it {count} times: {bug.this}")


def sources(folder: Path, bug: Sequence[KernelBug] = ()) -> Path:
    """A copy of the kernel's sources in ``folder``, with these bugs; gives the file to compile."""
    for one in bug:
        check_occurs_once(one)
    for path in build.sources():
        text = path.read_text()
        for one in bug:
            text = text.replace(one.this, one.that) if one.file == path.name else text
        (folder / path.name).write_text(text)
    return folder / "attention.cpp"


def compiled(
    folder: Path,
    bug: Sequence[KernelBug] = (),
    real: str = "double",
    options: Sequence[str] = QUICK,
    compiler: Sequence[str] = (),
) -> Path:
    """The kernel with these bugs, of this precision, built in ``folder`` with these options beside those that it is
    always built with, by this compiler or by the one that posenc takes. CalledProcessError where it is not."""
    source = sources(folder, bug)
    made = folder / "kernel.so"
    always = [flag for flag in build.FLAGS if not flag.startswith("-O")]
    command = [*(compiler or build.compiler().command), *always, *options, *build.PRECISIONS[real], str(source)]
    subprocess.run([*command, "-o", str(made)], check=True, capture_output=True, text=True)
    return made


def built(
    folder: Path,
    bug: Sequence[KernelBug] = (),
    real: str = "double",
    options: Sequence[str] = QUICK,
    compiler: Sequence[str] = (),
) -> ctypes.CDLL:
    """The library that `compiled` makes, with the system's leave to use what it is built for."""
    kernel = ctypes.CDLL(str(compiled(folder, bug, real, options, compiler)))
    assert kernel.posenc_usable()
    return kernel
