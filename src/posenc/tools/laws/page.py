"""The page of ``posenc laws``: the tables, every finding in words, and what each law means."""

from collections.abc import Sequence

from posenc.schemes.entry import Shape
from posenc.tools.kit.page import page
from posenc.tools.laws.laws import LAWS, QUESTIONS
from posenc.tools.laws.probe import SHAPE
from posenc.tools.laws.table import TABLES, Audit, cell, definition, head, verdict


def as_html(audits: Sequence[Audit], shape: Shape = SHAPE) -> str:
    """A self-contained page."""
    return page(
        "posenc.tools.laws",
        "laws.html.j2",
        audits=audits,
        shape=shape,
        tables=TABLES,
        heads={law: head(law) for law in LAWS | QUESTIONS},
        meanings={law: definition(law) for law in LAWS | QUESTIONS},
        kinds={True: "yes", False: "no", None: "na"},
        cell=cell,
        verdict=verdict,
    )
