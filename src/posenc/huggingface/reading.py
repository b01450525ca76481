"""Functions that the readers of all families share, from a configuration's keys to `ModelPositions`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from posenc.huggingface.described import Layer, ModelPositions
from posenc.huggingface.keys import Keys
from posenc.positions.tiles import Window
from posenc.schedule import Schedule
from posenc.scheme import Scheme

PLAIN = Layer()
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


def head_dim_of(keys: Keys) -> int:
    """head_dim, or hidden_size / num_attention_heads."""
    found = keys.get("head_dim")
    return int(keys("hidden_size") // keys("num_attention_heads") if found is None else found)


def described(
    keys: Keys,
    schemes: Scheme | list[Scheme],
    windows: Window | list[Window] = None,
    layers: Layer | list[Layer] = PLAIN,
    **more: Any,
) -> ModelPositions:
    """The description of a model. Each argument is a list with an entry per layer, or one value for all layers."""
    more.setdefault("length", keys.get("max_position_embeddings"))
    counts = [len(given) for given in (schemes, windows, layers) if isinstance(given, list)]
    count = counts[0] if counts else int(keys("num_hidden_layers"))
    each: list[list[Any]] = [x if isinstance(x, list) else [x] * count for x in (schemes, windows, layers)]
    return ModelPositions(keys.model_type, Schedule(list(zip(each[0], each[1], strict=True))), tuple(each[2]), **more)


def kinds_of(keys: Keys, *known: str) -> list[str]:
    """layer_types, one of the ``known`` for each layer."""
    kinds = list(keys("layer_types"))
    if len(kinds) != keys("num_hidden_layers"):
        raise keys.wrong("layer_types", f"must have {keys('num_hidden_layers')} entries like num_hidden_layers")
    unknown = [kind for kind in kinds if kind not in known]
    if unknown:
        raise ValueError(f"{keys.model_type}'s layer_types must be of {', '.join(known)}, got {unknown[0]!r}")
    return kinds


def windows_of(keys: Keys, kinds: Sequence[str], name: str = "sliding_window") -> list[Window]:
    """The window of each layer: None for those without one."""
    window = keys.get(name)
    if SLIDING in kinds and window is None:
        raise keys.wrong(name, f"must be a number of keys, since layer_types has {SLIDING!r}")
    return [int(window) if kind == SLIDING else None for kind in kinds]


def check_pattern(keys: Keys, name: str, kinds: Sequence[Any], expected: Callable[[int, Any], Any]) -> None:
    """ValueError for a key from which transformers derives the list ``kinds``, if it contradicts the list."""
    value = keys.get(name)
    if value is None or value == keys.default(name):
        return
    if [expected(layer, value) for layer in range(len(kinds))] != list(kinds):
        raise keys.wrong(name, "contradicts the list of layers that stands beside it")


def scaled(factor: float, head_dim: int) -> float | None:
    """A factor of q . k, or None if it is 1/sqrt(head_dim)."""
    return None if math.isclose(factor, head_dim**-0.5, rel_tol=1e-12) else factor


def silent(keys: Keys, name: str) -> tuple[str, ...]:
    """A remark on a key that published configurations have but the model does not read."""
    value = keys.get(name)
    return () if value is None else (f"{name} = {value} is not read by the model",)
