"""What the page shows that is not computed when it opens: laws as they were measured, and evidence of which scheme does
well at what. ``python -m posenc.explorer.data`` measures the laws anew."""

from importlib.resources import files
from typing import Any

from posenc.laws.table import Audit, cell
from posenc.workbench.files import parse


def read(name: str) -> dict[str, Any]:
    """What ``NAME.json`` of this folder holds. ValueError, naming it, where that is not JSON."""
    try:
        return parse(files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{name}.json of the explorer's data cannot be read: {error}") from None


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
