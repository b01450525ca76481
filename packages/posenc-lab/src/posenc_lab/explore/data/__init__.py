"""Reads what is stored for the page: measurements of laws, which ``python -m posenc_lab.explore.data`` makes again,
summaries of records, which ``python -m study.pages`` makes, and tables of trained models, which ``python -m
study.page_models`` makes."""

from math import isfinite
from pathlib import Path
from typing import Any

from posenc_lab.kit.files import packaged
from posenc_lab.laws.table import Audit, cell

TABLES = Path(__file__).parent / "tables.json"


def laws() -> dict[str, Any]:
    """The measurements by scheme and law. ValueError for a damaged file."""
    return packaged(__name__, "laws.json")


def records() -> list[dict[str, Any]]:
    """The records that ship with the page, as `posenc_lab.explore.records.summary` has those of a folder, each with
    ``shipped``, and its ``verdict`` in words. ValueError for a damaged file."""
    found: list[dict[str, Any]] = packaged(__name__, "records.json")["records"]
    return found


def tables() -> dict[str, Any]:
    """Numbers that models have learned: ``t5`` and ``shaw`` of small decoders, ``minilm`` of all-MiniLM-L6-v2.
    ValueError for a damaged file."""
    return packaged(__name__, TABLES.name)


def shown(audit: Audit) -> dict[str, dict[str, Any]]:
    """The page's data on each law and question: the verdict, the value, their description, and a table cell."""
    return {
        law: {
            "holds": finding.holds,
            "value": finding.value if isfinite(finding.value or 0) else None,  # JSON has no NaN; the words say it
            "words": finding.words,
            "cell": cell(law, finding),
        }
        for law, finding in audit.findings.items()
    }
