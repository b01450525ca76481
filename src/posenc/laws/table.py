"""Every scheme held to every law: the tables, as text, as JSON and as a page."""

from __future__ import annotations

import html
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from posenc.arguments import check_type, shown
from posenc.laws.laws import LAWS, QUESTIONS, Finding
from posenc.laws.probe import SHAPE, Probe
from posenc.schemes.catalog import catalog, entries_of
from posenc.schemes.entry import Shape

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Audit:
    """One scheme, or several joined by "+", held to every law and asked both questions.

    ``claims`` is what the catalog declares; None for a composition, of which it declares nothing.
    """

    name: str
    doors: tuple[str, ...]
    claims: frozenset[str] | None
    findings: Mapping[str, Finding]

    @property
    def disagreements(self) -> tuple[str, ...]:
        """The laws that are claimed and were not found to hold, or hold and are not claimed."""
        if self.claims is None:
            return ()
        return tuple(law for law in LAWS if (law in self.claims) != (self.findings[law].holds is True))


def audit(names: str, shape: Shape = SHAPE) -> Audit:
    """Measures a scheme of the catalog, ``"rope"``, or a composition, ``"rope+alibi"``. ValueError for an unknown name,
    or a shape of fewer than 64 positions, too few to measure among.

    >>> audit("rope").findings["relative"].holds
    True
    """
    check_type("shape", shape, Shape)
    if shape.max_positions < 64:
        raise ValueError(f"shape.max_positions must be at least 64 to measure, got {shape.max_positions}")
    entries = entries_of(names)
    probe = Probe.named(names, shape)
    findings = {name: measure(probe) for name, measure in (LAWS | QUESTIONS).items()}
    return Audit(names, probe.scheme.doors, entries[0].laws if len(entries) == 1 else None, findings)


def audit_all(names: Iterable[str] = (), shape: Shape = SHAPE) -> tuple[Audit, ...]:
    """These schemes, or all of the catalog. ValueError for an unknown name, before anything is measured."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ValueError(f"names must be a sequence of names, got {shown(names)}")
    chosen = tuple(names) or tuple(entry.name for entry in catalog())
    for name in chosen:
        entries_of(name)
    return tuple(audit(name, shape) for name in chosen)


# --- cells ----------------------------------------------------------------------------------------------------------

IDEAL = ("unique", "linear", "length_free", "deterministic", "extensible", *QUESTIONS)
"""What an ideal encoding would have, and the two questions."""

TABLES = {
    "An ideal encoding, and two questions": IDEAL,
    "Where tokens are": ("relative", "absolute", "orthogonal", "bounded", "fractional", "parameter_free", "order_free"),
    "Distance, direction, axes": ("directed", "monotone", "decaying", "decaying_bound", "separable"),
}
"""Every law and question, in the table that shows it."""

_HEADS = {
    "linear": "linear relation",
    "length_free": "any length",
    "extensible": "more axes",
    "fixed_ahead": "fixed ahead?",
    "hinders": "phrase hindered?",
    "decaying_bound": "bound decays (not behaviour)",
    "parameter_free": "no parameters",
}


def _head(law: str) -> str:
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
    "linear": _short,
    "orthogonal": _short,
    "relative": _short,
    "absolute": _short,
    "bounded": lambda finding: f"{finding.value:.3g}",
    "directed": lambda finding: _short(finding) if finding.holds else "",
    "monotone": lambda finding: f"{finding.value:.2f}",
    "decaying": lambda finding: f"{finding.value:.0%}",
    "decaying_bound": lambda finding: f"to {finding.value:.0%}",
    "separable": _short,
    "extensible": lambda finding: f"{finding.value:.0f}",
    "length_free": lambda finding: "" if finding.holds else f"{finding.value:.0f}",
    "parameter_free": lambda finding: "" if finding.holds else f"{finding.value:.0f}",
    "order_free": lambda finding: "" if finding.holds else _short(finding),
    "fixed_ahead": lambda finding: finding.words.partition(": ")[2].partition(" ")[0] if finding.holds else "",
    "hinders": lambda finding: f"{finding.value:.2f}" if finding.holds else "",
}
"""What stands beside a verdict; a law that is not here needs no number."""


def _verdict(finding: Finding) -> str:
    return {True: "yes", False: "no", None: "n/a"}[finding.holds]


def _cell(finding: Finding) -> str:
    """The verdict, and the number behind it in short."""
    shorten = _SHORT.get(finding.law)
    short = shorten(finding) if shorten is not None and finding.value is not None else ""
    return f"{_verdict(finding)} {short}".strip()


def _definition(law: str) -> str:
    return inspect.cleandoc((LAWS | QUESTIONS)[law].__doc__ or "").replace("\n", " ")


# --- text -----------------------------------------------------------------------------------------------------------


def text_tables(audits: Sequence[Audit]) -> tuple[Table, ...]:
    """The tables for a terminal of 120 columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    tables = []
    for title, laws in TABLES.items():
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        table.add_column("scheme", no_wrap=True)
        for law in laws:
            table.add_column(_head(law).replace(" ", "\n"), no_wrap=True)
        for one in audits:
            table.add_row(one.name, *(_cell(one.findings[law]) for law in laws))
        tables.append(table)
    return tuple(tables)


# --- JSON -----------------------------------------------------------------------------------------------------------


def as_json(audits: Sequence[Audit], shape: Shape = SHAPE) -> str:
    """All findings, with the definitions of the laws and the sizes they were measured at."""

    def plain(finding: Finding) -> dict[str, Any]:
        found = asdict(finding) | {"numbers": dict(finding.numbers)}
        del found["law"]
        return found

    document = {
        "shape": asdict(shape),
        "laws": {law: _definition(law) for law in LAWS},
        "questions": {question: _definition(question) for question in QUESTIONS},
        "schemes": [
            {
                "name": one.name,
                "doors": one.doors,
                "claims": None if one.claims is None else sorted(one.claims),
                "disagreements": one.disagreements,
                "laws": {law: plain(one.findings[law]) for law in LAWS},
                "questions": {question: plain(one.findings[question]) for question in QUESTIONS},
            }
            for one in audits
        ],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


# --- HTML -----------------------------------------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --paper: #ffffff; --faint: #656d76; --line: #d8dce1;
  --yes: #d9e8fb; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --paper: #14171c; --faint: #9aa4b0; --line: #333b45;
  --yes: #17345c; } }
body { margin: 2rem auto; max-width: 84rem; padding: 0 1rem; color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13.5px; }
th, td { padding: .3rem .55rem; border: 1px solid var(--line); text-align: left; vertical-align: top; }
th { font-weight: 600; } tbody th { white-space: nowrap; }
.yes { background: var(--yes); } .na, .faint { color: var(--faint); }
a { color: inherit; }
summary { cursor: pointer; font-weight: 600; padding: .25rem 0; } dt { font-weight: 600; } dd { margin: 0 0 .5rem; }
"""


def as_html(audits: Sequence[Audit], shape: Shape = SHAPE) -> str:
    """One page that needs nothing else: both tables, every finding in words, and what each law means."""
    escape = html.escape

    def marked(finding: Finding, inner: str, tag: str = "td") -> str:
        kind = {True: "yes", False: "no", None: "na"}[finding.holds]
        return f'<{tag} class="{kind}" title="{escape(finding.words)}">{escape(inner)}</{tag}>'

    def table(laws: Sequence[str]) -> str:
        heads = "".join(f'<th scope="col" title="{escape(_definition(law))}">{escape(_head(law))}</th>' for law in laws)
        rows = "".join(
            f'<tr><th scope="row"><a href="#{escape(one.name)}">{escape(one.name)}</a></th>'
            + "".join(marked(one.findings[law], _cell(one.findings[law])) for law in laws)
            + "</tr>"
            for one in audits
        )
        return (
            f'<div class="wide"><table><thead><tr><th scope="col">scheme</th>{heads}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div>"
        )

    def details(one: Audit) -> str:
        rows = "".join(
            f'<tr><th scope="row">{escape(_head(name))}</th>{marked(finding, _verdict(finding))}'
            f"<td>{escape(finding.words)}{_claim(one, name)}</td></tr>"
            for name, finding in one.findings.items()
        )
        doors = ", ".join(one.doors) or "none"
        return (
            f'<details id="{escape(one.name)}"><summary>{escape(one.name)}</summary>'
            f'<p class="faint">Doors: {escape(doors)}</p>'
            f'<div class="wide"><table><tbody>{rows}</tbody></table></div></details>'
        )

    meanings = "".join(f"<dt>{escape(_head(law))}</dt><dd>{escape(_definition(law))}</dd>" for law in LAWS | QUESTIONS)
    opening = (  # a link to a scheme opens what it points at
        "const open = () => { const part = document.getElementById(location.hash.slice(1)); "
        "if (part) part.open = true; }; addEventListener('hashchange', open); open();"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>The laws of positional encodings, measured</title><style>{_STYLE}</style></head><body>"
        "<h1>The laws of positional encodings, measured</h1>"
        f'<p class="faint">At dim {shape.dim}, {shape.num_heads} heads of {shape.head_dim}, and tables for '
        f"{shape.max_positions} positions; parameters as they are first drawn. Point at a cell for what was measured. "
        "A law says what the mathematics does, not how well a model trained with it fares.</p>"
        f"{''.join(f'<h2>{escape(title)}</h2>{table(laws)}' for title, laws in TABLES.items())}"
        f"<h2>Every finding</h2>{''.join(map(details, audits))}"
        f"<h2>What the laws mean</h2><dl>{meanings}</dl><script>{opening}</script></body></html>\n"
    )


def _claim(one: Audit, law: str) -> str:
    if law not in one.disagreements:
        return ""
    assert one.claims is not None
    return " <strong>The catalog claims it.</strong>" if law in one.claims else " <strong>Not claimed.</strong>"
