"""Reads configurations from TOML files of users, and saves them in folders of results, which they identify."""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from posenc.arguments import shown
from posenc.command.files import write_whole
from posenc_lab.kit.configuration import ConfigError, Configuration, differences

C = TypeVar("C")

FILE = "config.toml"
MADE_WITH = "made_with"  # the table of facts that the user does not choose: versions, digests, the machine


def from_toml(path: str | Path, make: Callable[[Mapping[str, Any]], C], **overrides: Any) -> C:
    """What ``make``, such as a configuration, gives for the values of a TOML file, with ``overrides`` applied.

    ValueError, naming the line, for invalid TOML and for a wrong value in the file.
    """
    values = {name: value for name, value in _toml(path).items() if name != MADE_WITH}
    try:
        return make({**values, **overrides})
    except ConfigError as error:
        if error.field in overrides or error.field not in values:
            raise
        raise ValueError(f"{_place(path, error.field)}: {error}") from None


def save(folder: Path, config: Configuration, made_with: Mapping[str, Any]) -> None:
    """Atomically writes the file that `from_toml` reads as this configuration, and `identity_in` also with
    ``made_with``."""
    write_whole(folder / FILE, (_lines(config.to_dict()) + _tables({MADE_WITH: made_with})).encode())


def identity_in(folder: Path, make: Callable[[Mapping[str, Any]], Configuration]) -> dict[str, Any]:
    """The identity that a folder was begun with, empty if it has none. ValueError as `from_toml` raises it."""
    path = folder / FILE
    if not path.exists():
        return {}
    made_with = _toml(path).get(MADE_WITH, {})
    if not isinstance(made_with, dict):
        raise ValueError(f"{_place(path, MADE_WITH)}: {MADE_WITH} must be a table, got {shown(made_with)}")
    return from_toml(path, make).identity(**made_with)


def require_same(folder: Path, there: Mapping[str, Any], here: Mapping[str, Any], what: str) -> None:
    """ValueError unless the results in a folder are of ``here``: the identity ``there`` must not differ, nor be
    missing. ``what`` they are, for errors: a comparison."""
    if not there:
        raise ValueError(f"{folder} holds records but no {FILE} to tell of what: give another folder")
    if differ := differences(there, here):
        raise ValueError(f"{folder} holds another {what}, with {differ}: give another folder")


def _lines(values: Mapping[str, Any]) -> str:
    """JSON's strings, numbers, arrays and booleans are valid TOML. TOML has no null, so such fields are left out."""
    given = {name: value for name, value in values.items() if not isinstance(value, Mapping | None)}
    return "".join(f"{_key(name)} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in given.items())


def _tables(values: Mapping[str, Any], above: str = "") -> str:
    tables = {above + _key(name): value for name, value in values.items() if isinstance(value, Mapping) and value}
    return "".join(f"\n[{name}]\n{_lines(table)}{_tables(table, name + '.')}" for name, table in tables.items())


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name, ensure_ascii=False)


def _toml(path: str | Path) -> dict[str, Any]:
    data = Path(path).read_bytes()
    try:
        text = data.decode()
        return tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}, is not TOML: {error}") from None
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        line = int(found[1]) if found else text.count("\n") + 1  # at the end of the document
        raise ValueError(f"{path}, line {line}, is not TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is not a configuration: nested too deeply") from None


def _place(path: str | Path, name: str) -> str:
    """The file, and the line of it in which a key of the first level is given."""
    key = re.compile(rf"""\s*\[*\s*["']?{re.escape(name)}["']?\s*[=.\]]""")
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    # None where the key is written with escapes.
    found = next((number for number, line in enumerate(lines, 1) if key.match(line)), None)
    return f"{path}, line {found}" if found else str(path)
