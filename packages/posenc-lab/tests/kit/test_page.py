"""A report of every kind of part, as a page and as Markdown, and the command that repeats it."""

import base64
from pathlib import Path

from posenc_lab.kit import page
from posenc_lab.kit.page import joined, strong
from posenc_lab.kit.report import Cell, Column, Figures, Items, Paragraph, Report, Section, Table, Warn, as_markdown
from tests.kit.pages import Page

HOSTILE = '<b>"&'
TABLE = Table(
    "Sizes",
    "In words.",
    ["name", Column("no."), Column("length", "tokens")],
    [["a|b", "1", Cell("12", ["±1", ""], "best")], [HOSTILE, "2", Cell("–", mark="absent")]],
    id="sizes",
)
REPORT = Report(
    title=f"A title {HOSTILE}",
    heading=f"A heading {HOSTILE}",
    lead=["What it is of."],
    parts=[
        Warn("Not finished.", "Missing:", ["one", HOSTILE], id="missing"),
        Section("Results", [Items([HOSTILE, "an item"], "results")]),
        Figures({"loss": f"The loss {HOSTILE}", "not drawn": "It is left out."}),
        TABLE,
        Table("Nothing", "", ["name"]),
        Section("All", [Paragraph(joined("It is ", strong(HOSTILE)), id="said")], folded=True),
    ],
    command="posenc anything --with 'two words' --and-more",
    environment=[("torch", "2.0")],
)
IMAGES = {"loss": {False: b"light", True: b"dark"}}


def test_a_page_has_every_part_and_escapes_all_of_it() -> None:
    text = page.html(REPORT, IMAGES)
    parsed = Page(text)
    assert parsed.open == []
    assert "<b>" not in text
    for words in ("A heading", "What it is of.", "Missing:", "an item", "In words.", HOSTILE):
        assert words in parsed.text
    assert "It is left out." not in text
    assert parsed.tables == {
        "sizes": [[" name", " no.", " length tokens"], [" a|b", " 1", " 12 ±1"], [f" {HOSTILE}", " 2", " –"]]
    }
    sources = [a.get("srcset", a.get("src")) for tag, a in parsed.tags if tag in ("source", "img")]
    assert sources == [f"data:image/png;base64,{base64.b64encode(data).decode()}" for data in (b"dark", b"light")]
    heads = [a for tag, a in parsed.tags if tag == "th" and a["scope"] == "row"]
    assert heads == [{"scope": "row"}, {"scope": "row"}]
    assert parsed.text.rstrip().endswith("To repeat it\nposenc anything --with 'two words' --and-more\n\ntorch2.0")
    # A line breaks only between options.
    assert "<span>posenc anything</span> <span>--with &#39;two words&#39;</span> <span>--and-more</span></code>" in text


def test_it_is_written_with_its_pictures(tmp_path: Path) -> None:
    path = page.write(REPORT, tmp_path / "new", IMAGES)
    assert path == tmp_path / "new" / "report.html"
    assert (path.parent / "figures" / "loss.png").read_bytes() == b"light"
    assert (path.parent / "figures" / "loss-dark.png").read_bytes() == b"dark"


def test_a_table_in_markdown() -> None:
    assert as_markdown(TABLE) == (
        "## Sizes\n\nIn words.\n\n| name | no. | length |\n| --- | --- | --- |\n| a/b | 1 | **12** |\n"
        f"| {HOSTILE} | 2 | – |\n"
    )
