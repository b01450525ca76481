"""A page as its reader's browser gets it."""

from html.parser import HTMLParser

VOID = {"meta", "link", "img", "source", "br"}


class Page(HTMLParser):
    """The tags with their attributes, the visible text, and the cells of the tables by the id of the table."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.tables: dict[str, list[list[str]]] = {}
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.rows = self.tables.setdefault(self.tags[-1][1].get("id", ""), [])
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.text += data
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += f" {data.strip()}"

    def row(self, table: str, scheme: str) -> list[str]:
        return next([" ".join(c.split()) for c in row] for row in self.tables[table] if row[0].split()[0] == scheme)
