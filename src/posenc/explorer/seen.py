"""What posenc itself computes of a scheme, as numbers that the page draws: for anyone's scheme, with its parameters as
they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from posenc.arguments import check_type, whole
from posenc.figures import overview
from posenc.scheme import Scheme

LENGTH = 65
"""Tokens that are drawn, where nothing else is said."""


def seen(scheme: Scheme, name: str, length: int = LENGTH) -> dict[str, Any]:
    """What a scheme does to every two tokens, as ``posenc plot overview`` draws it: {name, what, doors, axes, shape,
    values}, the values of (heads, queries, keys) flat, None where a key is not seen."""
    check_type("scheme", scheme, Scheme)
    axes = overview.axes_of(scheme)
    places = overview.positions_of(axes, whole("length", length))
    found = overview.seen(scheme, places)
    values = found.heads
    flat = [round(float(number), 9) if np.isfinite(number) else None for number in values.ravel()]
    return {
        "name": name,
        "what": found.what,
        "doors": list(scheme.doors),
        "axes": axes,
        "shape": list(values.shape),
        "values": flat,
    }
