"""Evidence about schemes: tables of figures, published claims with our own results, and statements without figures.

Each piece has a strength, one of `STRENGTHS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from posenc_lab.kit.files import packaged
from posenc_lab.kit.titles import titled

TEXTS = {"python": "the Python files of Django 5.2.8 and SQLAlchemy 2.0.44", "plays": "Shakespeare's works"}
"""The texts on which claims are tested, and what each is."""

STRENGTHS = {
    "certain": "follows from the mathematics, and is tested here",
    "measured": "measured here repeatedly, with intervals",
    "published": "published, and not measured here",
    "once": "measured here once or too seldom for a verdict",
    "used": "released models use it; nobody compared it here",
}
"""How strong evidence is, the strongest first, and what each strength means."""


@dataclass(frozen=True)
class Row:
    """The figures of one scheme, as printed; ``schemes`` are the catalog names that it is about."""

    label: str
    schemes: tuple[str, ...]
    figures: tuple[str, ...]


@dataclass(frozen=True)
class PublishedTable:
    """A published measurement of schemes, or one of posenc's own.

    ``measured`` says what was measured, ``shows`` what may be concluded, ``heads`` are the column headers. Published
    figures have a ``source`` and its ``url``; posenc's have ``doc``, their page, and the ``command`` that prints them,
    unless it no longer can.
    ``second_hand`` figures were read in a paper other than the one that measured them. ``too_few`` names what is too
    few for a verdict, such as "one seed"."""

    name: str
    question: Literal["length", "far", "order", "images", "cost", "stretch", "distance"]
    title: str
    measured: str
    shows: str
    heads: tuple[str, ...]
    rows: tuple[Row, ...]
    better: Literal["lower", "higher"]
    source: str
    url: str = ""
    command: str = ""
    doc: str = ""
    second_hand: bool = False
    too_few: str = ""

    @property
    def strength(self) -> str:
        """One of `STRENGTHS`."""
        return "published" if self.url else "once" if self.too_few else "measured"

    @property
    def where(self) -> str:
        """The source of the figures, in words."""
        words = (
            f"{self.source}, {self.url}"
            if self.url
            else f"posenc's own, {f'by {self.command}' if self.command else self.doc}"
        )
        words += ", read second-hand" if self.second_hand else ""
        return f"{words}; {self.too_few}, too few for a verdict" if self.too_few else words


def tables() -> tuple[PublishedTable, ...]:
    """The records of ``evidence.json``, and those of ``study.json``, which ``python -m study.pages`` writes."""
    records = (each for name in ("evidence", "study") for each in packaged(__package__, f"{name}.json")["records"])
    return tuple(
        PublishedTable(**{**r, "heads": tuple(r["heads"]), "rows": tuple(map(_row, r["rows"]))}) for r in records
    )


def _row(row: Mapping[str, Any]) -> Row:
    return Row(titled(row["label"]), tuple(row["schemes"]), tuple(row["figures"]))


@dataclass(frozen=True)
class Statement:
    """Evidence without figures, in a sentence: what follows from the mathematics, "certain", with the ``command`` that
    tests it; what was "published", or what released models "used", with its ``source`` and ``url``."""

    name: str
    strength: Literal["certain", "published", "used"]
    says: str
    source: str = ""
    url: str = ""
    command: str = ""
    second_hand: bool = False

    @property
    def where(self) -> str:
        """The source, in words."""
        words = f"{self.source}, {self.url}" if self.url else f"tested by {self.command}"
        return f"{words}, read second-hand" if self.second_hand else words


def statements() -> tuple[Statement, ...]:
    """The statements of ``evidence.json``."""
    return tuple(Statement(**record) for record in packaged(__package__, "evidence.json")["statements"])


# --- claims ---------------------------------------------------------------------------------------------------------


def claims() -> tuple[dict[str, Any], ...]:
    """The claims of ``claims.json``, which ``python -m study.pages`` writes."""
    return tuple(packaged(__package__, "claims.json")["claims"])


def described(claim: Mapping[str, Any]) -> dict[str, Any]:
    """A claim in words: its subject, what was published, and our result on each text."""
    first, second = map(titled, claim["contrast"])
    published = claim["published"]
    return {
        "about": f"{first} compared with {second}, at {claim['length']:,} bytes",
        "published": published["claim"],
        "source": published["source"],
        "url": published["url"],
        "ours": [f"{TEXTS[text]}: {_found(found)}" for text, found in claim["ours"].items()],
    }


def _found(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "no verdict here yet"
    if found["status"] == "not run":
        return f"not run: {found['why']}"
    mean, verdict = found["mean"], found["verdict"]
    differs = verdict in ("lower", "higher")
    size = f"{abs(mean):.3f} bits per byte {verdict}" if differs else f"{verdict}, {mean:+.3f} bits per byte"
    interval = f"95 % interval {found['low']:+.3f} to {found['high']:+.3f}, {found['seeds']} seeds"
    return f"{size} ({interval}); agrees with what was published: {found['agrees']}".replace("-", "−")
