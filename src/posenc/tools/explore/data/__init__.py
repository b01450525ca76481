"""What the page shows that is not computed when it opens: laws as they were measured.
``python -m posenc.tools.explore.data`` measures them anew."""

from typing import Any

from posenc.tools.kit.files import packaged
from posenc.tools.laws.table import Audit, cell


def laws() -> dict[str, Any]:
    """By scheme and law what was measured. ValueError where the file is damaged."""
    return packaged(__name__, "laws.json")


def shown(audit: Audit) -> dict[str, dict[str, Any]]:
    """Of each law and question what the page shows: the verdict, the number, both in words, and both in a cell's."""
    return {
        law: {
            "holds": finding.holds,
            "value": finding.value,
            "words": finding.words,
            "cell": cell(law, finding),
        }
        for law, finding in audit.findings.items()
    }
