"""Checks that a folder belongs to an extension, and restores the settings it was created with."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from posenc.tools.extend import results
from posenc.tools.extend.settings import Extension
from posenc.tools.kit.configuration import ConfigError, differences
from posenc.tools.kit.files import parse
from posenc.tools.kit.records import Record, Records

CONFIG = "extend.json"
CHECKPOINTS = "checkpoints"
SEARCH = "search.jsonl"
KEPT = ("final", "windows")  # whose defaults depend on what was asked for when the folder was begun
OF_TRAINING = ("train_length", "lora", "learning_rate")
OF_LONGROPE = ("search", "factors")


def continued(settings: Extension, out: Path) -> Extension:
    """The settings, with those of the folder where none are given. ConfigError for lengths that are too short for its
    final tokens."""
    there = _identity(out) if (out / CONFIG).exists() else {}
    kept = {name: there[name] for name in KEPT if getattr(settings, name) is None and isinstance(there.get(name), int)}
    final = kept.get("final", 0)
    if settings.lengths and settings.lengths[0] < final:
        raise ConfigError(
            "lengths",
            f"lengths must be at least {final} in {out}, which scores the last {final} tokens at every length, got "
            f"{settings.lengths[0]}: give another folder",
        )
    return replace(settings, **kept)


def require_same(out: Path, identity: Mapping[str, Any], records: Records) -> None:
    """ValueError, saying what differs, if another extension has records in ``out``."""
    if not (out / CONFIG).exists():
        if len(records):
            raise ValueError(f"{out} holds records but no {CONFIG} to tell of what: give another folder")
        return
    there, here = _identity(out), results.plain(identity)
    trained = (out / CHECKPOINTS).exists()
    if not len(records) and not (out / SEARCH).exists() and not trained:
        return
    without: tuple[str, ...] = () if there.get("train") or here["train"] else OF_TRAINING
    if not (trained or (out / SEARCH).exists() or any(map(_of_longrope, records))):
        without += OF_LONGROPE
    if differ := differences(there, {name: value for name, value in here.items() if name not in without}):
        raise ValueError(f"{out} holds another extension, with {differ}: give another folder")


def _of_longrope(record: Record) -> bool:
    return bool(record["scheme"].partition(",")[0] == "longrope")


def _identity(out: Path) -> dict[str, Any]:
    """The identity that is saved in the folder."""
    path = out / CONFIG
    try:
        return parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not as this command writes it ({error}): give another folder") from None
