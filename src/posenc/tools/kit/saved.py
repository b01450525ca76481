"""Reads configurations from TOML files, saved by a comparison or written by a user."""

import re
import sys
from pathlib import Path
from typing import Any

from posenc.arguments import shown
from posenc.tools.compare.config import MADE_WITH, CompareConfig
from posenc.tools.compare.tasks import configured
from posenc.tools.kit.configuration import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def from_toml(path: str | Path, **overrides: Any) -> CompareConfig:
    """The configuration of a TOML file, with ``overrides`` applied.

    ValueError, naming the line, for invalid TOML and for a wrong value in the file.
    """
    values = {name: value for name, value in _toml(path).items() if name != MADE_WITH}
    try:
        return configured({**values, **overrides})
    except ConfigError as error:
        if error.field in overrides or error.field not in values:
            raise
        raise ValueError(f"{_place(path, error.field)}: {error}") from None


def saved_identity(path: Path) -> dict[str, Any]:
    """The identity of a configuration that `CompareConfig.to_toml` has saved. ValueError as `from_toml` raises it."""
    made_with = _toml(path).get(MADE_WITH, {})
    if not isinstance(made_with, dict):
        raise ValueError(f"{_place(path, MADE_WITH)}: {MADE_WITH} must be a table, got {shown(made_with)}")
    return from_toml(path).identity(**made_with)


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
