"""Checks that a folder belongs to an extension, and restores the settings it was created with."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from posenc_lab.extend.settings import Extension
from posenc_lab.kit import saved
from posenc_lab.kit.configuration import ConfigError
from posenc_lab.kit.records import Records

CHECKPOINTS = "checkpoints"
KEPT = ("final", "windows")  # their defaults depend on the first run in a folder
OF_TRAINING = ("train_length", "train_batch", "lora", "learning_rate")
OF_SCALINGS = {"longrope": ("factors",), "base": ("base",)}


def continued(settings: Extension, out: Path) -> Extension:
    """The settings, with those that the folder keeps filled in. ConfigError for lengths that are too short for its
    final tokens."""
    there = identity_in(out)
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
    """ValueError, saying what differs, if another extension has results in ``out``."""
    trained = (out / CHECKPOINTS).exists()
    if not (len(records) or trained):
        return
    there = identity_in(out)
    without: tuple[str, ...] = () if there.get("train") or identity["train"] else OF_TRAINING
    if not trained:
        measured = {record["scheme"].partition(",")[0] for record in records}
        without += tuple(name for scaling in OF_SCALINGS.keys() - measured for name in OF_SCALINGS[scaling])
    here = {name: value for name, value in identity.items() if name not in without}
    saved.require_same(out, there, here, "extension")


def identity_in(out: Path) -> dict[str, Any]:
    """The identity that is saved in the folder, empty if there is none."""
    return saved.identity_in(out, Extension.from_mapping)
