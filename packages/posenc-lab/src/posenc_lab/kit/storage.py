"""Whole files at an address of fsspec, such as ``s3://bucket/runs``. fsspec is imported only when one is used."""

import uuid
from pathlib import Path
from typing import Any

from posenc.command.files import WRITING


def is_address(out: str | Path) -> bool:
    """Whether it is an address of fsspec, and not a path."""
    return "://" in str(out)


def get(address: str) -> bytes | None:
    """The contents of a file; None if it does not exist. ValueError if there is nothing that reads such addresses."""
    files, path = _files(address)
    try:
        return files.cat_file(path)
    except FileNotFoundError:
        return None


def find(address: str, pattern: str) -> list[str]:
    """The addresses of the files below this one that match a pattern."""
    files, path = _files(address)
    return sorted(files.unstrip_protocol(each) for each in files.glob(f"{path}/{pattern}"))


def put_once(address: str, data: bytes) -> None:
    """Writes a file that does not exist yet, atomically; an existing one is left as it is.

    It is written under another name and moved: a rename, or on an object store a copy, which is atomic too.
    """
    files, path = _files(address)
    files.makedirs(path.rpartition("/")[0], exist_ok=True)
    temporary = f"{path}.{uuid.uuid4().hex}{WRITING}"
    try:
        files.pipe_file(temporary, data)
        if not files.exists(path):
            files.mv(temporary, path)
    finally:
        if files.exists(temporary):
            files.rm_file(temporary)


def put_folder(folder: Path, address: str) -> None:
    """Writes all files of a folder, and replaces those that exist."""
    files, path = _files(address)
    for each in sorted(each for each in folder.rglob("*") if each.is_file()):
        there = f"{path}/{each.relative_to(folder).as_posix()}"
        files.makedirs(there.rpartition("/")[0], exist_ok=True)
        files.pipe_file(there, each.read_bytes())


def _files(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    from fsspec.core import url_to_fs

    try:
        files, path = url_to_fs(address)
    except ImportError as error:  # fsspec knows the address, and the package for it is not installed
        raise ValueError(f"{address} cannot be opened: {error}") from None
    except ValueError as error:
        raise ValueError(f"{address} must be an address of fsspec: {error}") from None
    return files, path
