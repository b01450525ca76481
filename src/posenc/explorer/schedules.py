"""Ready schedules of published models as data: which scheme and which window each layer has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from posenc import schedules
from posenc.schedule import Schedule
from posenc.tiles import Chunk, check_window, window_words


def families() -> list[dict[str, Any]]:
    """Every ready schedule, with its model's own numbers: {name, title, about, kinds, layers}.

    ``kinds`` are its layers that differ: {scheme, doors, window, words}, the window as {left, right} or {chunk}, where
    None is no end; ``layers`` says which of these each layer is."""
    with torch.random.fork_rng(devices=()):
        return [_family(name, build) for name, build in inspect.getmembers(schedules, _is_ready)]


def _is_ready(member: Any) -> bool:
    return (
        inspect.isfunction(member) and member.__module__ == schedules.__name__ and not member.__name__.startswith("_")
    )


def _family(name: str, build: Callable[[], Schedule]) -> dict[str, Any]:
    title, _, about = (inspect.getdoc(build) or "").partition("\n")[0].partition(": ")
    kinds: list[dict[str, Any]] = []
    layers = []
    for scheme, window in build():
        kind = {"scheme": repr(scheme), "doors": list(scheme.doors), **_window(window)}
        if kind not in kinds:
            kinds.append(kind)
        layers.append(kinds.index(kind))
    return {"name": name, "title": title, "about": about, "kinds": kinds, "layers": layers}


def _window(window: Any) -> dict[str, Any]:
    if isinstance(window, Chunk):
        return {"window": {"chunk": window.size}, "words": window_words(window)}
    left, right = check_window(window)
    return {"window": {"left": left, "right": right}, "words": window_words(window)}
