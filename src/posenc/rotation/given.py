"""Reads a scaling from transformers' dictionary (``rope_parameters``, formerly ``rope_scaling``) or name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeAlias

from posenc.arguments import number, shown
from posenc.rotation.scalings import DynamicNTK, Llama3, LongRoPE, PositionInterpolation, Proportional, Scaling, YaRN

Given: TypeAlias = Scaling | Mapping[str, Any] | str
"""What ``scaling=`` accepts."""

KINDS: Mapping[str, tuple[type | None, tuple[str, ...]]] = {
    "default": (None, ()),
    "linear": (PositionInterpolation, ("factor",)),
    "dynamic": (DynamicNTK, ("factor", "original_max_position_embeddings")),
    "yarn": (YaRN, ("factor", "original_max_position_embeddings")),
    "llama3": (
        Llama3,
        ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    ),
    "longrope": (LongRoPE, ("short_factor", "long_factor", "original_max_position_embeddings")),
    "proportional": (Proportional, ("partial_rotary_factor",)),
}
"""The class of each rope_type, and the keys that it needs."""

RENAMED = {"original_length": "original_max_position_embeddings", "share": "partial_rotary_factor"}
OURS = ("ramp", "dynamic")  # arguments of YaRN that transformers does not have


def scaling_of(given: Mapping[str, Any] | str, base: float, head_dim: int, rotary_dim: int) -> Scaling | None:
    """The scaling of a dictionary with a ``rope_type``, or of a name; None for "default".

    >>> scaling_of({"rope_type": "linear", "factor": 4.0}, 10_000.0, 64, 64)
    PositionInterpolation(factor=4.0)

    Keys and their meaning are transformers'. ``rope_theta`` and ``partial_rotary_factor`` must agree with the base and
    the rotated channels. Only "default" and "llama3", with the numbers of Llama 3.1, need no dictionary.
    Raises ValueError for an unknown type, and for a key that is unknown, missing, or contradicts another.
    """
    if isinstance(given, str):
        if given not in ("default", "llama3"):
            raise ValueError(
                f"scaling must be 'default', 'llama3', a dictionary such as {{'rope_type': 'yarn', 'factor': 4.0, "
                f"'original_max_position_embeddings': 4096}}, or a scaling such as YaRN(4.0, 4096), got {given!r}"
            )
        return Llama3() if given == "llama3" else None
    told = {name: value for name, value in given.items() if value is not None or name == "truncate"}
    kind = _kind(told)
    if told.get("rope_theta", base) != base:
        raise ValueError(
            f"scaling['rope_theta'] must be the base, {base:g}, got {told['rope_theta']}: pass it as base="
        )
    share = told.get("partial_rotary_factor")
    share = None if share is None else number("scaling['partial_rotary_factor']", share)
    if kind != "proportional" and share is not None and int(head_dim * share) != rotary_dim:
        raise ValueError(
            f"scaling['partial_rotary_factor'] must be the share of rotated channels, {rotary_dim} of {head_dim}, got "
            f"{share}: pass rotary_dim={int(head_dim * share)}"
        )
    read = {name: value for name, value in told.items() if name not in ("rope_type", "type", "rope_theta")}
    made, needed = KINDS[kind]
    of_fields = {RENAMED.get(f.name, f.name): f.name for f in (fields(made) if made else ()) if f.name not in OURS}
    for name in read:
        if name not in of_fields and name != "partial_rotary_factor":
            raise ValueError(f"scaling has the key {name!r} = {shown(read[name])}, which {kind!r} does not read")
    for name in needed:
        if name not in read:
            raise ValueError(
                f"scaling of type {kind!r} needs the key {name!r}, got {', '.join(map(str, read)) or 'none'}"
            )
    if made is None:
        return None
    if ("mscale" in read) != ("mscale_all_dim" in read):
        raise ValueError("scaling must have both mscale and mscale_all_dim, or none: transformers ignores one alone")
    if "truncate" in read:
        read["truncate"] = read["truncate"] or False  # transformers takes null for false
    found: Scaling = made(**{of_fields[name]: value for name, value in read.items() if name in of_fields})
    return found


def _kind(told: Mapping[str, Any]) -> str:
    """rope_type, which an older ``type`` must not contradict."""
    new, old = told.get("rope_type"), told.get("type")
    if new is None and old is None and any(isinstance(each, Mapping) for each in told.values()):
        first = next(name for name, each in told.items() if isinstance(each, Mapping))
        raise ValueError(
            f"scaling must be of one type of layers, got {', '.join(map(str, told))}: pass scaling[{first!r}]"
        )
    kind = old if new is None else new
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"scaling['rope_type'] must be one of {', '.join(KINDS)}, got {shown(kind)}")
    if old is not None and old != kind:
        raise ValueError(f"scaling['type'] contradicts rope_type {kind!r}, got {shown(old)}")
    return kind
