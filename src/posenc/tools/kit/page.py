"""Renders a self-contained HTML page from a template."""

from typing import Any

import jinja2

from posenc.tools.kit import style


def page(room: str, template: str, **values: Any) -> str:
    """The page of ``room``'s template, such as (__package__, "report.html.j2"), which extends ``page.html.j2``."""
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package, "") for package in (room, "posenc.tools.kit")]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    theme = {dark: style.theme(dark) for dark in (False, True)}
    return environment.get_template(template).render(theme=theme, **values)
