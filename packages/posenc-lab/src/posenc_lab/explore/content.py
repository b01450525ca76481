"""Collects the page's data: the catalog, measurements, and the user's schemes and records."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from posenc.schemes.catalog import CATALOG
from posenc_lab.choose.evidence import STRENGTHS, described
from posenc_lab.choose.presentation import claims_of, statements_of
from posenc_lab.choose.questions import answers, questions
from posenc_lab.explore import data
from posenc_lab.explore.catalog import catalog, refused
from posenc_lab.explore.models import header
from posenc_lab.explore.numbers import JAVASCRIPT, of_entry, of_own, options_of, own
from posenc_lab.explore.page import looks
from posenc_lab.explore.records import measures, summary
from posenc_lab.laws.probe import SHAPE
from posenc_lab.laws.table import TABLES
from posenc_lab.plot.vectors import weights_file


def content(schemes: Sequence[str] = (), records: Sequence[Path] = (), *, is_saved: bool = False) -> dict[str, Any]:
    """The page's data. ``schemes`` are compositions, or the user's own, ``my.py:MyScheme``; ``records`` folders of
    posenc compare or extend, which stand before the records that ship with the page. With ``is_saved`` it has numbers
    of more settings of each scheme, as there will be no server to ask. ValueError for a name or a folder that cannot be
    read."""
    known = catalog()
    catalogued = {entry.name for entry in CATALOG}
    theirs = [own(name) for name in schemes if name not in catalogued]
    entries = theirs + known.pop("entries")
    numbered = {entry.name: entry for entry in CATALOG if entry.name not in JAVASCRIPT}
    for entry in entries:
        if entry["name"] in numbered:
            entry["options"] = [asdict(option) for option in options_of(numbered[entry["name"]])]
    recorded = [*(summary(folder) for folder in records), *data.records()]
    drawn = [entry["name"] for entry in entries] + [scheme for each in recorded for scheme in each["schemes"]]
    return {
        **known,
        "catalog": entries,
        "refused": refused([entry["name"] for entry in theirs]),
        "minilm": _missing_minilm(),
        "numbers": {name: of_entry(entry, whole=is_saved) for name, entry in numbered.items()}
        | {entry["name"]: of_own(entry["name"]) for entry in theirs},
        "law_tables": {title: list(laws) for title, laws in TABLES.items()},
        "measured_at": asdict(SHAPE),
        "records": recorded,
        "measures": measures(),
        "looks": looks(drawn),
        "choosing": _choosing(),
        "models": header(),
        "tables": data.tables(),
    }


def _choosing() -> dict[str, Any]:
    """The questions and answers of ``posenc choose``, with the claims of each answer in words."""
    return {
        "questions": [asdict(question) for question in questions()],
        "answers": [
            {
                **asdict(answer),
                "claims": [described(claim) for claim in claims_of(answer)],
                "statements": [asdict(each) for each in statements_of(answer)],
                "strength": answer.strength_in_words,
            }
            for answer in answers()
        ],
        "strengths": STRENGTHS,
    }


def _missing_minilm() -> str:
    """Why the learned table of all-MiniLM-L6-v2 cannot be read here; "" where it can."""
    try:
        weights_file()
    except ModuleNotFoundError as error:
        return str(error)
    return ""
