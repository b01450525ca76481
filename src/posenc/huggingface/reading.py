"""Functions that the readers of all families share, from a configuration's keys to `ModelPositions`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from posenc.arguments import shown, whole
from posenc.huggingface.described import Layer, ModelPositions
from posenc.huggingface.keys import Keys
from posenc.positions.tiles import Window
from posenc.schedule import Schedule
from posenc.scheme import Scheme

PLAIN = Layer()
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
RECURRENT = ("conv", "linear_attention")
"""Layers without attention."""


def head_dim_of(keys: Keys) -> int:
    """head_dim, or hidden_size / num_attention_heads."""
    if keys.get("head_dim") is not None:
        return keys.whole("head_dim")
    return keys.whole("hidden_size") // keys.whole("num_attention_heads")


def described(
    keys: Keys,
    schemes: Scheme | list[Scheme],
    windows: Window | list[Window] = None,
    layers: Layer | list[Layer] = PLAIN,
    **more: Any,
) -> ModelPositions:
    """The description of a model. Each argument is a list with an entry per layer, or one value for all layers."""
    more.setdefault("length", keys.get("max_position_embeddings"))
    if more["length"] is not None:
        whole(f"the number of positions of {keys.model_type}", more["length"])
    counts = [len(given) for given in (schemes, windows, layers) if isinstance(given, list)]
    count = counts[0] if counts else keys.whole("num_hidden_layers")
    each: list[list[Any]] = [x if isinstance(x, list) else [x] * count for x in (schemes, windows, layers)]
    schedule = Schedule(list(zip(each[0], each[1], strict=True)))
    for scheme in (schedule, more.get("input")):
        if scheme is not None:
            scheme.eval()  # as from_pretrained returns models
    return ModelPositions(keys.model_type, schedule, tuple(each[2]), **more)


def kinds_of(keys: Keys, *known: str) -> list[str]:
    """layer_types, one of the ``known`` for each layer."""
    kinds, count = keys.list("layer_types"), keys.whole("num_hidden_layers")
    if len(kinds) != count:
        raise keys.wrong("layer_types", f"must have {count} entries like num_hidden_layers")
    unknown = [kind for kind in kinds if kind not in known]
    if unknown:
        raise ValueError(f"{keys.model_type}'s layer_types must be of {', '.join(known)}, got {shown(unknown[0])}")
    return kinds


def windows_of(keys: Keys, kinds: Sequence[str]) -> list[Window]:
    """The window of each layer: None for those without one."""
    if SLIDING in kinds and keys.get("sliding_window") is None:
        raise keys.wrong("sliding_window", f"must be a number of keys, since layer_types has {SLIDING!r}")
    keys.get("sliding_window")
    return [keys.whole("sliding_window") if kind == SLIDING else None for kind in kinds]


def check_pattern(
    keys: Keys, name: str, kinds: Sequence[Any], expected: Callable[[int, int], Any], least: int = 1
) -> None:
    """ValueError for a key from which transformers derives the list ``kinds``, if it contradicts the list."""
    if keys.get(name) is None or keys.get(name) == keys.default(name):
        return
    value = keys.whole(name, least)
    if [expected(layer, value) for layer in range(len(kinds))] != list(kinds):
        raise keys.wrong(name, "contradicts the list of layers that stands beside it")


def scaled(factor: float, head_dim: int) -> float | None:
    """A factor of q . k, or None if it is 1/sqrt(head_dim)."""
    return None if math.isclose(factor, head_dim**-0.5, rel_tol=1e-12) else factor


def silent(keys: Keys, name: str) -> tuple[str, ...]:
    """A remark on a key that published configurations have but the model does not read."""
    value = keys.get(name)
    return () if value is None else (f"{name} = {value} is not read by the model",)
