"""Writes reports as self-contained HTML pages, from the template ``page.html.j2``."""

import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import jinja2
from markupsafe import Markup, escape

from posenc.command.files import write_whole
from posenc_lab.kit import style
from posenc_lab.kit.report import Report

FILE = "report.html"
FIGURES = "figures"  # the folder of the pictures

Images: TypeAlias = Mapping[str, Mapping[bool, bytes]]
"""The PNG of each figure by name, and by whether it is dark."""


def html(report: Report, images: Images | None = None) -> str:
    """The page of a report. Everything it shows is in it. Text is escaped, except what `strong` made."""
    sources = {
        name: {dark: f"data:image/png;base64,{base64.b64encode(data).decode()}" for dark, data in pair.items()}
        for name, pair in (images or {}).items()
    }
    return page("posenc_lab.kit", "page.html.j2", report=report, images=sources)


def write(report: Report, out: Path, images: Images | None = None) -> Path:
    """Writes ``report.html`` into the folder ``out``, and its pictures below it; returns the path of the report. Each
    file is replaced atomically, so that a reader never sees a partial one."""
    for name, pair in (images or {}).items():
        for dark, data in pair.items():
            write_whole(out / FIGURES / f"{name}{'-dark' if dark else ''}.png", data)
    write_whole(out / FILE, html(report, images).encode())
    return out / FILE


def drawn(figures: Mapping[str, Callable[..., Any]], *of: Any) -> dict[str, dict[bool, bytes]]:
    """The light and dark image of each function of ``of``. A function that returns None has no image."""
    found = {}
    for name, draw in figures.items():
        pair = {dark: draw(*of, dark) for dark in (False, True)}
        if all(pair.values()):
            found[name] = {dark: style.saved(figure, dark=dark) for dark, figure in pair.items()}
    return found


def strong(text: str) -> Markup:
    return Markup("<strong>{}</strong>").format(text)


def joined(*parts: str) -> Markup:
    """Joins text, and escapes all of it except the results of `strong`."""
    return Markup("").join(map(escape, parts))


def page(room: str, template: str, **values: Any) -> str:
    """The page of a ``room``'s template, such as ("posenc_lab.explore", "explorer.html.j2")."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(room, ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    theme = {dark: style.theme(dark) for dark in (False, True)}
    return environment.get_template(template).render(theme=theme, **values)
