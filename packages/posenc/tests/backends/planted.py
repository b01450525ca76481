"""The kernel built with a bug: a line of its C++ that says something else."""

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from posenc.backends.native import build

QUICK = ("-O1", "-march=native")  # built in a second and a half


@dataclass(frozen=True)
class Wrong:
    """In a ``file`` of the kernel ``that`` stands in the place of ``this``, which is there once."""

    file: str
    this: str
    that: str


def check_place(wrong: Wrong) -> None:
    """ValueError where there is no one place for it."""
    count = (build.SOURCES / wrong.file).read_text().count(wrong.this)
    if count != 1:
        raise ValueError(f"{wrong.file} must have this once, to be mutated, got it {count} times: {wrong.this}")


def sources(folder: Path, wrong: Sequence[Wrong] = ()) -> Path:
    """A copy of the kernel's sources in ``folder``, with these bugs; gives the file to compile."""
    for one in wrong:
        check_place(one)
    for path in build.sources():
        text = path.read_text()
        for one in wrong:
            text = text.replace(one.this, one.that) if one.file == path.name else text
        (folder / path.name).write_text(text)
    return folder / "attention.cpp"


def compiled(
    folder: Path,
    wrong: Sequence[Wrong] = (),
    real: str = "double",
    options: Sequence[str] = QUICK,
    compiler: Sequence[str] = (),
) -> Path:
    """The kernel with these bugs, of this precision, built in ``folder`` with these options beside those that it is
    always built with, by this compiler or by the one that posenc takes. CalledProcessError where it is not."""
    source = sources(folder, wrong)
    made = folder / "kernel.so"
    always = [flag for flag in build.FLAGS if not flag.startswith("-O")]
    command = [*(compiler or build.compiler().command), *always, *options, *build.PRECISIONS[real], str(source)]
    subprocess.run([*command, "-o", str(made)], check=True, capture_output=True, text=True)
    return made


def built(
    folder: Path,
    wrong: Sequence[Wrong] = (),
    real: str = "double",
    options: Sequence[str] = QUICK,
    compiler: Sequence[str] = (),
) -> ctypes.CDLL:
    """The library that `compiled` makes, with the system's leave to use what it is built for."""
    kernel = ctypes.CDLL(str(compiled(folder, wrong, real, options, compiler)))
    assert kernel.posenc_usable()
    return kernel
