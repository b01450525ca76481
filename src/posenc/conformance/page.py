"""The page of `posenc check`: one HTML file that needs nothing else, made from the data of its report."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from posenc.workbench.page import page

# What a status is marked with, beside its name.
SIGNS = {"finding": "✗", "unfinished": "?", "passed": "✓", "not applicable": "–"}


def html(data: Mapping[str, Any]) -> str:
    """The page of the data that `posenc check --json` writes: a table of the checks, every finding with its script, and
    what was tried or why it was not."""
    subjects = [{**subject, "counts": _counts(subject)} for subject in data["subjects"]]
    return page("posenc.conformance", "check.html.j2", data=data, subjects=subjects, signs=SIGNS)


def _counts(subject: Mapping[str, Any]) -> dict[str, int]:
    """How many checks ended how, the worst first."""
    found = Counter(result["status"] for result in subject["results"])
    return {status: found[status] for status in SIGNS if found[status]}
