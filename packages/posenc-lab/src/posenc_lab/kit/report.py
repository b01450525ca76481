"""Defines reports as data: text, tables and figures. `posenc_lab.kit.page` makes pages of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from rich.table import Table as Printed


class Column(NamedTuple):
    """The header of a column; numbers are aligned to the right."""

    text: str
    note: str = ""
    number: bool = True


class Cell(NamedTuple):
    """A cell of a table, with smaller ``notes`` below it. ``mark`` is a class of the style sheet: best or absent."""

    text: str
    notes: Sequence[str] = ()
    mark: str = ""


Row: TypeAlias = Sequence[str | Cell]


@dataclass
class Table:
    """Rows of text under a title, with a paragraph before them and ``lines`` after them. The first column names the
    row."""

    kind: ClassVar[str] = "table"
    title: str
    lead: str
    header: Sequence[str | Column]
    rows: list[Row] = field(default_factory=list)
    id: str = field(default="", kw_only=True)

    @property
    def lines(self) -> Sequence[str]:
        return ()

    @property
    def columns(self) -> list[Column]:
        return [each if isinstance(each, Column) else Column(each, number=False) for each in self.header]

    @property
    def cells(self) -> list[list[Cell]]:
        return [[each if isinstance(each, Cell) else Cell(each) for each in row] for row in self.rows]


@dataclass(frozen=True)
class Paragraph:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    words: str
    faint: bool = False
    id: str = ""


@dataclass(frozen=True)
class Items:
    """A list. ``mark`` is a class of the style sheet."""

    kind: ClassVar[str] = "items"
    items: Sequence[str]
    mark: str = ""


@dataclass(frozen=True)
class Figures:
    """Figures side by side: their names in the report's images, and their captions."""

    kind: ClassVar[str] = "figures"
    captions: Mapping[str, str]


@dataclass(frozen=True)
class Warn:
    """A warning: a sentence in bold, then text and items."""

    kind: ClassVar[str] = "warn"
    title: str
    words: str = ""
    items: Sequence[str] = ()
    id: str = ""


@dataclass(frozen=True)
class Section:
    """Parts under a heading. ``folded``: collapsed at first."""

    kind: ClassVar[str] = "section"
    title: str
    parts: "Sequence[Part]"
    folded: bool = False


Part: TypeAlias = Table | Paragraph | Items | Figures | Warn | Section


@dataclass(frozen=True)
class Report:
    """A page: its title in the browser, its heading, paragraphs below that, its parts, the ``command`` that repeats it,
    and the ``environment`` it was made with."""

    title: str
    heading: str
    lead: Sequence[str]
    parts: Sequence[Part]
    command: str = ""
    environment: Sequence[tuple[str, str]] = ()


def as_markdown(table: Table) -> str:
    """One table, with its title, the line before it and those after it. The best cells are bold."""
    head = [column.text for column in table.columns]
    cells = [[f"**{cell.text}**" if cell.mark == "best" else cell.text for cell in row] for row in table.cells]
    parts = [f"## {table.title}\n", *([f"{table.lead}\n"] if table.lead else [])]
    rows = [head, ["---"] * len(head), *cells]
    parts.append("".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in rows))
    parts += ["".join(f"{line}  \n" for line in table.lines)] if table.lines else []
    return "\n".join(parts)


def as_printed(table: Table) -> "Printed":
    """One table for a terminal, without its title. The best cells are bold."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Printed
    from rich.text import Text

    shown = Printed(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for index, column in enumerate(table.columns):
        shown.add_column(Text(column.text), no_wrap=index == 0, overflow="fold")
        shown.columns[-1].justify = "right" if column.number else "left"
    for row in table.cells:
        shown.add_row(*(Text(cell.text, style="bold" if cell.mark == "best" else "") for cell in row))
    return shown
