"""The HTML page of ``posenc laws``: the tables, each finding, and the definitions of the laws."""

from collections.abc import Sequence

from posenc.schemes.entry import Shape
from posenc.tools.kit import page
from posenc.tools.kit.page import joined, strong
from posenc.tools.kit.report import Cell, Column, Facts, Paragraph, Part, Report, Section, Table
from posenc.tools.laws.laws import LAWS, QUESTIONS
from posenc.tools.laws.probe import SHAPE, Finding
from posenc.tools.laws.table import TABLES, Audit, cell, definition, head, verdict

TITLE = "The laws of positional encodings, measured"
MARKS = {True: "yes", False: "", None: "absent"}


def as_html(audits: Sequence[Audit], shape: Shape = SHAPE) -> str:
    """A self-contained page."""
    lead = (
        f"Measured with dim {shape.dim}, {shape.num_heads} heads of {shape.head_dim}, tables of {shape.max_positions} "
        "positions, and parameters as initialised. Hover over a cell to see what was measured. A law is a property of "
        "the mathematics; it does not say how well a trained model performs."
    )
    parts: list[Part] = [
        *(_table(title, laws, audits) for title, laws in TABLES.items()),
        Section("All results", [_findings(audit) for audit in audits]),
        Section("What the laws mean", [Facts([(head(law), definition(law)) for law in LAWS | QUESTIONS])]),
    ]
    return page.html(Report(TITLE, TITLE, [lead], parts))


def _table(title: str, laws: Sequence[str], audits: Sequence[Audit]) -> Table:
    table = Table(title, "", ["scheme", *(Column(head(law), number=False, hint=definition(law)) for law in laws)])
    for audit in audits:
        cells = (_cell(audit.findings[law], cell(law, audit.findings[law])) for law in laws)
        table.rows.append([Cell(audit.name, link=audit.name), *cells])
    return table


def _cell(finding: Finding, words: str) -> Cell:
    return Cell(words, mark=MARKS[finding.holds], hint=finding.words)


def _findings(audit: Audit) -> Section:
    """All measurements of a scheme, with the disagreements with the catalog in bold."""
    table = Table("", "", ["law", "holds", "measured"])
    for law, finding in audit.findings.items():
        claim = f"The catalog {'claims' if law in (audit.claims or ()) else 'does not claim'} this law."
        words = joined(finding.words, " ", strong(claim)) if law in audit.disagreements else finding.words
        table.rows.append([head(law), _cell(finding, verdict(finding)), words])
    doors = Paragraph(f"Doors: {', '.join(audit.doors) or 'none'}", faint=True)
    return Section(audit.name, [doors, table], id=audit.name, folded=True)
