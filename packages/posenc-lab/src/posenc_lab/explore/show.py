"""Shows the effect of a scheme in a notebook."""

import html
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


class Shown:
    """A frame with one figure of the explorer, for Jupyter. It is self-contained and needs no network."""

    def __init__(self, page: str, title: str, height: int) -> None:
        self._page, self._title, self._height = page, title, height

    def _repr_html_(self) -> str:
        return (
            f'<iframe title="{html.escape(self._title)}" srcdoc="{html.escape(self._page)}" '
            f'style="width: 100%; height: {self._height}px; border: 0"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<{self._title}: shown in a notebook>"


def show(scheme: Scheme, height: int = 760) -> Shown:
    """Displays the effect of a scheme on every pair of tokens as an interactive figure in a notebook.

    The numbers are posenc's, of this scheme with its parameters as they are: for one that only adds vectors, the inner
    product of two positions; for one that turns queries and keys, the score of two equal tokens; else what is added to
    a score, or multiplies it. ``height`` is that of the frame, in pixels.

    Errors: ValueError for what is no scheme, or a height below 1. ModuleNotFoundError without the extra ``explore``.

    >>> show(posenc.ALiBi(8))  # doctest: +SKIP
    """
    check_type("scheme", scheme, Scheme)
    whole("height", height)
    from posenc_lab.explore.page import explorer

    name = " + ".join(type(part).__name__ for part in scheme.parts) or type(scheme).__name__
    page = explorer({"seen": [seen(scheme, name, is_named=False)]}, server=False, start="#figure=seen")
    return Shown(page, f"What {name} does to two tokens", height)
