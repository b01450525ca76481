"""Renders the page, with its JavaScript modules by URL or embedded in one file."""

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from markupsafe import Markup

import posenc
from posenc_lab.explore import lesson, models
from posenc_lab.explore.mathml import mathml
from posenc_lab.kit import style
from posenc_lab.kit.page import page
from posenc_lab.plot import panels

STATIC = Path(__file__).parent / "static"


def modules() -> dict[str, Path]:
    """The path of every JavaScript module, by its import name."""
    return {f"posenc/{path.relative_to(STATIC).as_posix()}": path for path in sorted(STATIC.rglob("*.js"))}


def formulas() -> dict[str, str]:
    """The formula of each figure that has one, as MathML, from ``NAME.tex`` beside its module."""
    return {path.stem: mathml(path.read_text(encoding="utf-8")) for path in sorted(STATIC.rglob("*.tex"))}


def explorer(content: Mapping[str, Any], *, server: bool, start: str = "") -> str:
    """The page as HTML. With a ``server``, modules and models are fetched from it; else the page contains them,
    compressed, and may make no request. ``start`` is the initial state, the fragment of the URL with its "#"."""
    data = {
        "theme": _themes(),
        "formulas": formulas(),
        "quiz": lesson.quiz(),
        **content,
        "server": server,
        "start": start,
    }
    return page(
        "posenc_lab.explore",
        "explorer.html.j2",
        style=Markup(
            "".join((STATIC / f"{name}.css").read_text(encoding="utf-8") for name in ("style", "formula", "lesson"))
        ),
        steps=lesson.lesson(),
        scores=lesson.scores,
        html=lesson.html,
        html_of_line=lesson.html_of_line,
        data=packed(json.dumps(data, allow_nan=False, separators=(",", ":")).encode()),
        models={
            name: packed(models.weights_of(name)) for name in content.get("models", {}).get("models", ()) if not server
        },
        imports=Markup(import_map(server)),
        preloaded=json.loads(import_map(server))["imports"].values() if server else (),
        policy="" if server else policy(server),
        version=posenc.__version__,
    )


def packed(data: bytes) -> str:
    """Data as a script of the page holds it: base64 of gzip, the same for the same data."""
    return base64.b64encode(gzip.compress(data, mtime=0)).decode()


def import_map(server: bool) -> str:
    """The import map: the URL of each module, at the server or as a data URL."""
    urls = {}
    for name, path in modules().items():
        data = f"data:text/javascript;base64,{base64.b64encode(path.read_bytes()).decode()}"
        urls[name] = f"./static/{name.removeprefix('posenc/')}" if server else data
    return json.dumps({"imports": urls})


def policy(server: bool) -> str:
    """The Content-Security-Policy: only the page's own modules, and nothing from another host. With a ``server``, no
    other page may frame it; without one it is framed by `show`."""
    scripts = ["'self'"] if server else ["data:"]
    inline = ('import "posenc/main.js";', import_map(server))
    scripts += [f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'" for text in inline]
    ask = "'self'" if server else "'none'"
    frames = "; frame-ancestors 'none'" if server else ""
    return (
        f"default-src 'none'; script-src {' '.join(scripts)}; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {ask}; base-uri 'none'; form-action 'none'{frames}"
    )


def _themes() -> dict[str, Any]:
    return {
        name: {**asdict(style.theme(dark)), "unseen": panels.NEVER_SEEN[dark], "diverging": panels.DIVERGING[dark]}
        for name, dark in (("light", False), ("dark", True))
    }


def looks(names: Sequence[str]) -> dict[str, Any]:
    """The colour and dash pattern of each scheme on light and dark backgrounds, as in posenc's figures."""
    return {
        name: {
            mode: {"color": look.color, "dash": [2 * length for length in look.dashes[1]]}
            for mode, look in (("light", style.look(name)), ("dark", style.look(name, dark=True)))
        }
        for name in names
    }
