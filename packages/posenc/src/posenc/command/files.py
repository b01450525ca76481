"""Writes files whole or not at all."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WRITING = ".writing"  # suffix of a partially written file


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Makes an OSError name ``path`` instead of a temporary file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def put(descriptor: int, data: bytes) -> None:
    """Writes all of ``data`` and waits until it is on the disk."""
    left = memoryview(data)
    while left:  # a nearly full disk takes a part, and only the next write fails
        left = left[os.write(descriptor, left) :]
    os.fsync(descriptor)


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file atomically: if interrupted, the old file remains.

    Symbolic links are followed. A path that is not a regular file, such as a device or a pipe, is written to directly.

    Raises OSError, naming ``path``, if it cannot be written; a partial file is removed.
    """
    with naming(path):
        if _is_special(path):
            with path.open("wb") as device:
                device.write(data)
            return
        target, temporary = _target(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb", buffering=0) as file:
                put(file.fileno(), data)
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def require_writable(path: Path) -> None:
    """Makes the folder of ``path``. OSError, naming ``path``, if `write_whole` could not write it. An existing file is
    not changed."""
    with naming(path):
        if _is_special(path):
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not os.access(path, os.W_OK):  # not opened, which would end the input of a pipe's reader
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        target, temporary = _target(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.open("xb").close()
        except FileExistsError:  # left by an interrupted write
            return
        temporary.unlink()


def _is_special(path: Path) -> bool:
    """Whether the path exists but is not a regular file."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def _target(path: Path) -> tuple[Path, Path]:
    """The file that ``path`` links to, and its name while it is written."""
    target = Path(os.path.realpath(path))
    return target, target.with_name(target.name + WRITING)
