"""Computes the effect of any scheme on pairs of tokens, as numbers that the page draws."""

from typing import Any

import numpy as np

from posenc.arguments import check_type, whole
from posenc.scheme import Scheme
from posenc_lab.plot import overview, panels

LENGTH = 65  # tokens, by default


def seen(scheme: Scheme, name: str, *, length: int = LENGTH, is_named: bool = True) -> dict[str, Any]:
    """The effect of a scheme on every pair of tokens, as in ``posenc plot overview``: {name, what, doors, axes, shape,
    values, command}. The values of (heads, queries, keys) are flat, None for a masked key, and of one head if all heads
    are equal. ``is_named``: the scheme can be given to commands by that name."""
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
