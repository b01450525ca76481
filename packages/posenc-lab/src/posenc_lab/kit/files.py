"""Atomic writing and strict reading of files."""

import hashlib
import json
import math
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

from posenc.command.files import naming

MAX_FILE_BYTES = 2**30  # bytes of a file of records

# The types that `require` checks, as errors name them.
WORDS: dict[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    float | None: "a finite number or null",
    dict: "an object",
    list[int]: "a list of whole numbers",
    list[float]: "a list of finite numbers",
    list[float | None]: "a list of finite numbers and nulls",
    list[tuple[int, float]]: "a list of pairs of a whole and a finite number",
}


@contextmanager
def naming_line(path: str | Path, number: int, what: str) -> Iterator[None]:
    """Makes a ValueError name a damaged line, which should be ``what``: a record."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}, line {number}, is not {what} ({error}): mend or remove that line") from None


def content(path: Path) -> bytes:
    """The bytes of a file. ValueError for one that is too large to be what a tool has written, or no file, such as a
    pipe, which would be waited for."""
    with naming(path):
        about = path.stat()
    if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_FILE_BYTES:
        raise ValueError(
            f"{path} must be a file of at most {MAX_FILE_BYTES} bytes, got {about.st_size} bytes or no file"
        )
    return path.read_bytes()


def whole_lines(data: bytes) -> tuple[list[bytes], int]:
    """The lines of a file that is appended to line by line, and their bytes; any bytes after that are an incomplete
    last line."""
    *lines, rest = data.split(b"\n")
    if lines and not rest and b"\0" in lines[-1]:  # a crash can leave zeros in the middle of a long line
        lines.pop()
    return lines, sum(len(line) + 1 for line in lines)


def digest_of(data: bytes) -> str:
    """The short hash by which records name data."""
    return hashlib.sha256(data).hexdigest()[:16]


def rounded(value: float) -> float | None:
    """A measured number as records have it; None where it is not finite, since JSON has no such number."""
    return round(float(value), 6) if math.isfinite(value) else None


def parse(text: str) -> dict[str, Any]:
    """Parses a JSON object. ValueError for anything else, duplicate names, NaN and infinity."""
    try:
        value = json.loads(text, object_pairs_hook=_each_once, parse_constant=_not_json)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def packaged(package: str, name: str) -> dict[str, Any]:
    """The contents of a JSON file in a package. ValueError, naming it, if it is not a JSON object."""
    try:
        return parse(files(package).joinpath(name).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{name} of {package} cannot be read: {error}") from None


def require(values: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """ValueError for the first name in ``kinds`` that is missing in ``values`` or has another type."""
    for name, kind in kinds.items():
        if name not in values:
            raise ValueError(f"{name} is missing")
        if not _fits(values[name], kind):
            came = json.dumps(values[name])
            short = came if len(came) <= 60 else f"{came[:60]}..."
            raise ValueError(f"{name} must be {WORDS[kind]}, got {short}")


def _fits(value: Any, kind: Any) -> bool:
    of = get_args(kind)
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_fits(item, of[0]) for item in value)
    if get_origin(kind) is tuple:
        return isinstance(value, list) and len(value) == len(of) and all(map(_fits, value, of))
    if of:
        return any(_fits(value, each) for each in of)
    if kind is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    return type(value) is kind  # exactly: true is not a number


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {max(names, key=names.count)!r} comes twice")
    return values


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")
