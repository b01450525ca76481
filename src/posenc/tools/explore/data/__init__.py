"""Reads the stored measurements of laws for the page. ``python -m posenc.tools.explore.data`` measures them again."""

from typing import Any

from posenc.tools.kit.files import packaged
from posenc.tools.laws.table import Audit, cell


def laws() -> dict[str, Any]:
    """The measurements by scheme and law. ValueError for a damaged file."""
    return packaged(__name__, "laws.json")


def shown(audit: Audit) -> dict[str, dict[str, Any]]:
    """The page's data on each law and question: the verdict, the value, their description, and a table cell."""
    return {
        law: {
            "holds": finding.holds,
            "value": finding.value,
            "words": finding.words,
            "cell": cell(law, finding),
        }
        for law, finding in audit.findings.items()
    }
