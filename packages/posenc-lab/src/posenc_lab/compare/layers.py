"""Parses scheme names of a comparison: one scheme for all layers, or one for each layer, with windows.

``rope~rope~nope`` has RoPE in two layers and no positions in the third, repeated every three layers; ``rope@32`` sees
only the last 32 tokens. So ``rope@32~rope@32~nope`` is the schedule of several published models:
RoPE in windows, and every third layer over the whole text without positions.
"""

from posenc.schedule import Schedule
from posenc.scheme import Scheme
from posenc.schemes.catalog import entries_of, scheme_from_names
from posenc.schemes.entry import Entry, Shape
from posenc.schemes.own import BETWEEN

WINDOW = "@"


def entries(names: str) -> tuple[Entry, ...]:
    """The entries of every scheme in ``names``. ValueError as for `entries_of`, and for an invalid window."""
    return tuple(dict.fromkeys(entry for scheme, _ in _parts(names) for entry in entries_of(scheme)))


def position_from(names: str, shape: Shape, num_layers: int) -> Scheme | Schedule:
    """The scheme or schedule of a model with ``layers`` layers."""
    parts = _parts(names)
    made = {scheme: scheme_from_names(scheme, shape) for scheme, _ in parts}
    if parts == [(names, None)]:
        return made[names]
    if len(parts) > num_layers:
        raise ValueError(f"schemes must name a scheme for each of {num_layers} layers at most, got {names!r}")
    chosen = (parts[layer % len(parts)] for layer in range(num_layers))
    return Schedule([(made[scheme], window) for scheme, window in chosen])


def _parts(names: str) -> list[tuple[str, int | None]]:
    """The scheme and the window of each layer."""
    found: list[tuple[str, int | None]] = []
    for part in BETWEEN.split(names):
        scheme, marked, window = part.partition(WINDOW)
        if marked and not (window.isascii() and window.isdecimal() and int(window)):
            raise ValueError(f"schemes must have a number of tokens after {WINDOW}, got {names!r}")
        found.append((scheme, int(window) if marked else None))
    return found
