"""Renders the page, with its JavaScript modules by URL or embedded in one file."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from markupsafe import Markup

import posenc
from posenc.tools.explore.mathml import mathml
from posenc.tools.kit import style
from posenc.tools.kit.page import page
from posenc.tools.plot import panels

STATIC = Path(__file__).parent / "static"


def modules() -> dict[str, Path]:
    """Every JavaScript module, by the name that others import it by."""
    return {f"posenc/{path.relative_to(STATIC).as_posix()}": path for path in sorted(STATIC.rglob("*.js"))}


def formulas() -> dict[str, str]:
    """The formula of each figure that has one, as MathML, from ``NAME.tex`` beside its module."""
    return {path.stem: mathml(path.read_text(encoding="utf-8")) for path in sorted((STATIC / "figures").glob("*.tex"))}


def explorer(content: Mapping[str, Any], *, server: bool, start: str = "") -> str:
    """The page as HTML. With a ``server`` behind it, modules are fetched from it; else the page holds them all, needs
    nothing else, and is forbidden to ask for anything. ``start`` is the state it opens with, as after the "#"."""
    data = {"theme": _themes(), "formulas": formulas(), **content, "server": server, "start": start}
    return page(
        "posenc.tools.explore",
        "explorer.html.j2",
        style=Markup((STATIC / "style.css").read_text(encoding="utf-8")),
        data=_script(data),
        imports=Markup(import_map(server)),
        policy="" if server else policy(server),
        version=posenc.__version__,
    )


def import_map(server: bool) -> str:
    """Where each module is: at the server, or in the map itself."""
    return json.dumps(
        {
            "imports": {
                name: f"./static/{name.removeprefix('posenc/')}" if server else _data_url(path)
                for name, path in modules().items()
            }
        }
    )


def policy(server: bool) -> str:
    """What the page may load: its own modules, and nothing from another host; and, of a server, that no other page may
    show it. Only a header can say that, and `show` puts the page without a server into a frame."""
    scripts = ["'self'"] if server else ["data:"]
    inline = ('import "posenc/main.js";', import_map(server))
    scripts += [f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'" for text in inline]
    ask = "'self'" if server else "'none'"
    frames = "; frame-ancestors 'none'" if server else ""
    return (
        f"default-src 'none'; script-src {' '.join(scripts)}; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {ask}; base-uri 'none'; form-action 'none'{frames}"
    )


def _data_url(path: Path) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _script(data: Mapping[str, Any]) -> Markup:
    """JSON that can stand in a script element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def _themes() -> dict[str, Any]:
    return {
        name: {**asdict(style.theme(dark)), "unseen": panels.NEVER_SEEN[dark], "diverging": panels.DIVERGING[dark]}
        for name, dark in (("light", False), ("dark", True))
    }


def looks(names: Sequence[str]) -> dict[str, Any]:
    """How each scheme's line is drawn, on light and on dark paper: the same as in posenc's figures."""
    return {
        name: {
            mode: {"color": look.color, "dash": [2 * length for length in look.dashes[1]]}
            for mode, look in (("light", style.look(name)), ("dark", style.look(name, dark=True)))
        }
        for name in names
    }
