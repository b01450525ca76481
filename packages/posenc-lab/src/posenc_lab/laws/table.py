"""Audits schemes for all laws, and makes the tables as text and JSON."""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from posenc.arguments import check_type, shown
from posenc.encoding.claims import checking_claims
from posenc.schemes.catalog import catalog, entries_of
from posenc.schemes.entry import Shape
from posenc_lab.kit.report import Column, Row, Table, as_printed
from posenc_lab.laws.laws import LAWS, QUESTIONS
from posenc_lab.laws.probe import SHAPE, Finding, Probe

if TYPE_CHECKING:
    from rich.table import Table as Printed


@dataclass(frozen=True)
class Audit:
    """The findings of all laws and of both questions for a scheme or a composition.

    ``claims`` are the laws that the catalog declares; None for a composition, or a user's scheme without an entry.
    """

    name: str
    doors: tuple[str, ...]
    claims: frozenset[str] | None
    findings: Mapping[str, Finding]

    @property
    def disagreements(self) -> tuple[str, ...]:
        """The laws whose measurement disagrees with the catalog."""
        if self.claims is None:
            return ()
        return tuple(law for law in LAWS if (law in self.claims) != (self.findings[law].holds is True))


def audit(names: str, shape: Shape = SHAPE) -> Audit:
    """Measures a scheme of the catalog, ``"rope"``, or a composition, ``"rope+alibi"``. ValueError for an unknown name,
    or a shape of fewer than 64 positions, which are too few to measure; ``ClaimError``, before anything is measured,
    for a term that is not what its `Distance` declares.

    >>> audit("rope").findings["relative"].holds
    True
    """
    check_type("shape", shape, Shape)
    if shape.max_positions < 64:
        raise ValueError(f"shape.max_positions must be at least 64 to measure, got {shape.max_positions}")
    entries = entries_of(names)
    probe = Probe.named(names, shape)
    with checking_claims():
        probe.scheme(probe.positions([0, 1]))
    findings = {name: measure(probe) for name, measure in (LAWS | QUESTIONS).items()}
    return Audit(names, probe.scheme.doors, (entries[0].laws or None) if len(entries) == 1 else None, findings)


def audit_all(names: Iterable[str] = (), shape: Shape = SHAPE) -> tuple[Audit, ...]:
    """Audits of these schemes, by default of the whole catalog. ValueError for an unknown name, before any
    measurement."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ValueError(f"names must be a sequence of names, got {shown(names)}")
    chosen = tuple(names) or tuple(entry.name for entry in catalog())
    for name in chosen:
        entries_of(name)
    return tuple(audit(name, shape) for name in chosen)


# --- cells ----------------------------------------------------------------------------------------------------------

IDEAL = ("unique", "linear", "length_free", "deterministic", "extensible", *QUESTIONS)
"""The laws of an ideal encoding, and the two questions."""

TABLES = {
    "An ideal encoding, and two questions": IDEAL,
    "Where tokens are": ("relative", "absolute", "orthogonal", "bounded", "fractional", "parameter_free", "order_free"),
    "Distance, direction, axes": ("directed", "monotone", "decaying", "decaying_bound", "separable"),
}
"""The laws and questions of each table, by its title."""

_HEADS = {
    "linear": "linear relation",
    "length_free": "any length",
    "extensible": "more axes",
    "fixed_ahead": "fixed ahead?",
    "hinders": "phrase hindered?",
    "decaying_bound": "bound decays (not behaviour)",
    "parameter_free": "no parameters",
}


def head(law: str) -> str:
    """The heading of a law."""
    return _HEADS.get(law, law.replace("_", " "))


def _short(finding: Finding) -> str:
    return f"{finding.value:.2g}"


def _unique(finding: Finding) -> str:
    full, half = (int(finding.numbers.get(f"{dtype} first collision", -1)) for dtype in ("float32", "bfloat16"))
    if full >= 0:
        return f"from {full}"
    return _short(finding) + (f" (bf16: {half})" if half >= 0 else "")


_SHORT: dict[str, Callable[[Finding], str]] = {
    "unique": _unique,
    **dict.fromkeys(("linear", "orthogonal", "relative", "absolute", "separable"), _short),
    **dict.fromkeys(("length_free", "parameter_free"), lambda finding: "" if finding.holds else f"{finding.value:.0f}"),
    "bounded": lambda finding: f"{finding.value:.3g}",
    "directed": lambda finding: _short(finding) if finding.holds else "",
    "monotone": lambda finding: f"{finding.value:.2f}",
    "decaying": lambda finding: f"{finding.value:.0%}",
    "decaying_bound": lambda finding: f"to {finding.value:.0%}",
    "extensible": lambda finding: f"{finding.value:.0f}",
    "order_free": lambda finding: "" if finding.holds else _short(finding),
    "fixed_ahead": lambda finding: finding.words.partition(": ")[2].partition(" ")[0] if finding.holds else "",
    "hinders": lambda finding: f"{finding.value:.2f}" if finding.holds else "",
}
"""The number beside a verdict; other laws have none."""


def verdict(finding: Finding) -> str:
    """Yes, no, or not applicable."""
    return {True: "yes", False: "no", None: "n/a"}[finding.holds]


def cell(law: str, finding: Finding) -> str:
    """The verdict and a short form of the value."""
    shorten = _SHORT.get(law)
    short = shorten(finding) if shorten is not None and finding.value is not None else ""
    return f"{verdict(finding)} {short}".strip()


def definition(law: str) -> str:
    """The definition of a law or a question."""
    return inspect.cleandoc((LAWS | QUESTIONS)[law].__doc__ or "").replace("\n", " ")


# --- text -----------------------------------------------------------------------------------------------------------


def text_tables(audits: Sequence[Audit]) -> tuple["Printed", ...]:
    """The tables for a terminal of 120 columns."""
    tables = []
    for title, laws in TABLES.items():
        heads = (Column(head(law).replace(" ", "\n"), number=False) for law in laws)
        rows: list[Row] = [[one.name, *(cell(law, one.findings[law]) for law in laws)] for one in audits]
        shown = as_printed(Table(title, "", ["scheme", *heads], rows))
        shown.title, shown.title_justify, shown.collapse_padding = title, "left", True
        tables.append(shown)
    return tuple(tables)


# --- JSON -----------------------------------------------------------------------------------------------------------


def as_json(audits: Sequence[Audit], shape: Shape = SHAPE) -> str:
    """All findings, the definitions of the laws, and the shape."""
    document = {
        "shape": asdict(shape),
        "laws": {law: definition(law) for law in LAWS},
        "questions": {question: definition(question) for question in QUESTIONS},
        "schemes": [
            {
                "name": one.name,
                "doors": one.doors,
                "claims": None if one.claims is None else sorted(one.claims),
                "disagreements": one.disagreements,
                "laws": {law: asdict(one.findings[law]) for law in LAWS},
                "questions": {question: asdict(one.findings[question]) for question in QUESTIONS},
            }
            for one in audits
        ],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
