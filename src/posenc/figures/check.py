"""The page of `posenc check`: one HTML file that needs nothing else, made from the data of its report."""

from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import jinja2

from posenc.figures import style

# What a status is marked with, beside its name.
SIGNS = {"finding": "✗", "unfinished": "?", "passed": "✓", "not applicable": "–"}


def html(data: Mapping[str, Any]) -> str:
    """The page of the data that `posenc check --json` writes: a table of the checks, every finding with its script, and
    what was tried or why it was not."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: files("posenc.figures").joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("check.html.j2").render(
        data=data,
        subjects=[{**subject, "counts": _counts(subject)} for subject in data["subjects"]],
        signs=SIGNS,
        theme={dark: style.theme(dark) for dark in (False, True)},
    )


def _counts(subject: Mapping[str, Any]) -> dict[str, int]:
    """How many checks ended how, the worst first."""
    found = Counter(result["status"] for result in subject["results"])
    return {status: found[status] for status in SIGNS if found[status]}
