"""Computes the effect of any scheme on pairs of tokens, as numbers that the page draws."""

from __future__ import annotations

from typing import Any

import numpy as np

from posenc.arguments import check_type, whole
from posenc.scheme import Scheme
from posenc.tools.plot import overview, panels

LENGTH = 65
"""Tokens that are drawn, where nothing else is said."""


def seen(scheme: Scheme, name: str, *, length: int = LENGTH, is_named: bool = True) -> dict[str, Any]:
    """What a scheme does to every two tokens, as ``posenc plot overview`` draws it: {name, what, doors, axes, shape,
    values, command}, the values of (heads, queries, keys) flat, None where a key is not seen; one head where all are
    alike. ``is_named``: commands know the scheme by that name."""
    check_type("scheme", scheme, Scheme)
    axes = panels.axes_of(scheme)
    places = overview.positions_of(axes, whole("length", length))
    found = overview.seen(scheme, places)
    values = found.values if len(found.heads) > 1 else found.values[:1]
    flat = [round(float(number), 9) if np.isfinite(number) else None for number in values.ravel()]
    return {
        "name": name,
        "what": found.what,
        "doors": list(scheme.doors),
        "axes": axes,
        "shape": list(values.shape),
        "values": flat,
        "command": f"posenc plot overview --schemes {name}" if is_named else "",
    }
