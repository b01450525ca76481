"""A page for each scheme of the catalog, in docs/schemes/, and its picture: made when the site is built.

A page is made anew when posenc or this folder is newer than it is, so that what it says was measured is of this code.
"""

import re
from contextlib import redirect_stdout
from pathlib import Path

import matplotlib
from scheme_words import when_not, whole_model
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.display import status_iterator

import posenc
from posenc.schemes.catalog import CATALOG
from posenc.schemes.entry import GIVEN, Entry, Law
from posenc_lab.kit.style import saved
from posenc_lab.kit.titles import titled
from posenc_lab.laws.table import audit
from posenc_lab.plot.overview import overview

DOCS = Path(__file__).parents[1]
PAGES = DOCS / "schemes"
PRICE = re.compile(r"\*\*(Forward|A training step)\.\*\*.*?\n\n((?:\|.*\n)+)")
ONE = re.compile(rf"\]\(((?:\.\./)*)schemes\.md#({'|'.join(entry.name for entry in CATALOG)})\)")
PAGE = """# {title}

{does}

```python
posenc.{signature}
```

{formula}
| | |
|---|---|
| doors | {doors} |
| learned | {learned} |
| for | {who} |
| coordinates a token may have | {axes} |
| limits | {limits} |
| source | {source} |
{users}
## Seen

What it does to two tokens, with controls for its options:

```{{image}} images/{name}.png
:alt: {title}: what it does to two tokens
:class: only-light still
```

```{{image}} images/{name}-dark.png
:alt: {title}: what it does to two tokens
:class: only-dark still
```

```{{explorer}} scheme&scheme.scheme={name}
```

`posenc plot overview --schemes {name}` draws it in a file{parameters}.

## Example

{example}
## A whole model

The model is the same on the page of every scheme with as many coordinates, and only the line of the scheme differs.
It is run when this page is made. For a model of your own see [Use a scheme in your model](../in-your-model.md).

```python
{model}```

## When not to use it

These follow from the laws below, which are tested, or from the formula; a number has its source.

{when_not}
## Trained and tested

{study}
## Laws

What holds is claimed in the catalog, and the tests hold the scheme to it. What was measured is of this version, in a
model of six heads of 16 channels, by `posenc laws --schemes {name} --json laws.json`.

*How to read it.* Numbers are differences of scores in double precision, with random queries and keys. What should
be zero is a rounding of it, such as 1e-15 for a few operations and 1e-11 for angles of 100,000 radians: then the
law holds. A law says what the scheme does to scores, and not how good a model with it is.

{laws}
**What does not hold, or does not apply:**

{others}
## Cost

{cost}. {price}

## Reference

```{{eval-rst}}
.. currentmodule:: posenc

.. autoclass:: {kind}
   :members:
   :show-inheritance:{index}
```
"""
RATIOS = """*How to read it.* 1.00 is causal attention without positions, on the same tensors. Below 1 is faster: keys
of negligible weight are skipped, or posenc's kernel is faster than PyTorch's. Differences below 0.10 mean nothing,
and a GPU has other ratios."""
STUDIED = ("Python's packages", "Shakespeare's works")
READ = """Bits per byte, by length of the text, of small decoders that were trained on texts of 128 bytes
([the study](../study/index.md)). Lower is better.

*How to read it.* Compare a number with that of another scheme in the same place. ± is half of the 95 % interval. With 1
seed it does not include how much two trainings differ; [contrasts](../study/contrasts.md) say which differences are
sure. If the loss rises after 128, the model is worse on texts longer than in training. *Far text* is the change of
the loss of the same bytes as more text comes before them: below 0 the model uses it, near 0 it does not, above 0
the text harms. *Lower than*: how many of the other schemes, {}, are shown to have a higher loss."""
ENDS = ("128", "1,024")
LISTED = """
```{toctree}
:hidden:
:glob:

schemes/*
```
"""


def sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def table(*rows: tuple[str, ...]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) + "\n"


def _laws(entry: Entry) -> tuple[str, str]:
    """What is claimed and what is not, as measured."""
    findings = audit(entry.name).findings
    held, others = [("law", "what it says", "measured")], [("law", "measured")]
    for law in Law:
        words = findings[law].words
        if law in entry.laws:
            held.append((law.replace("_", " "), law.meaning, words))
        else:
            others.append((law.replace("_", " "), words))
    return table(*held), table(*others)


def _parameters(entry: Entry) -> str:
    """Which parameters its picture is of."""
    if Law.PARAMETER_FREE in entry.laws:
        return ""
    if entry.scheme.zero_initialized:
        return ". As it begins it changes nothing, so its parameters are drawn at random here, to have something to see"
    return ", untrained: with its initial parameters"


def _price(entry: Entry) -> str:
    """Its rows of the tables of docs/performance.md."""
    rows: list[tuple[str, ...]] = []
    for what, text in PRICE.findall((DOCS / "performance.md").read_text(encoding="utf-8")):
        lines = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.splitlines()]
        if not rows:
            rows.append(("time over plain attention's", *lines[0][2:]))
        rows += [(what.lower(), *cells[2:]) for cells in lines if cells[0] == titled(entry.name)]
    if not rows:
        raise ExtensionError("docs/performance.md must have the tables of the price of position, got none")
    if len(rows) == 1:
        return f"Measure it by `posenc bench --schemes {entry.name}` ([how](../performance.md))."
    return (
        "By tokens, on two cores ([how, and by which command](../performance.md#the-price-of-position)):\n\n"
        + table(*rows)
        + f"\n{RATIOS}\n"
    )


def _compared(entry: Entry) -> str:
    """The command that trains it beside others."""
    if entry.axes in ("two", "three"):
        return "`posenc compare` has no task with several coordinates, so nothing was measured."
    return (
        f"Train it beside others by `posenc compare --schemes rope,{entry.name} --seeds 0,1,2` ([how](../compare.md))."
    )


def _study(entry: Entry) -> str:
    """Its rows of the study's tables of losses."""
    rows: list[tuple[str, ...]] = []
    page = (DOCS / "study" / "texts.md").read_text(encoding="utf-8")
    others = ""
    for text in STUDIED:
        section = page.partition(f"\n## {text}\n")[2].partition("\n## ")[0]
        lines = [line for line in section.splitlines() if line.startswith("| ")]
        cells = {c[0]: c for c in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)}
        if (name := titled(entry.name)) in cells:
            head = cells.pop("scheme")
            rows = rows or [("length", *head[1:])]
            there = [sum(c[head.index(n)] != "undefined" for s, c in cells.items() if s != name) for n in ENDS]
            others = " and ".join(f"{count} at {n}" for count, n in zip(there, ENDS, strict=True))
            anchor = text.lower().replace("'", "").replace(" ", "-")
            rows.append((f"[{text}](../study/texts.md#{anchor})", *cells[name][1:]))
    if not rows:
        return f"It is not one of the schemes of [the study](../study/index.md). {_compared(entry)}\n"
    return f"{READ.format(others)}\n\n{table(*zip(*rows, strict=True))}"  # a column for each text, for narrow screens


def _runs(code: str, name: str) -> str:
    """The code, once it has run."""
    with redirect_stdout(None):
        exec(compile(code, f"the code of {name}", "exec"), {})
    return code


def _example(entry: Entry) -> str:
    """Its example, with what it begins with, once it has run."""
    return "```python\n" + _runs(f"{GIVEN}\n\n{entry.example}\n", entry.name) + "```\n"


def page(entry: Entry) -> str:
    """The page of a scheme, as Markdown."""
    laws, others = _laws(entry)
    return PAGE.format(
        title=titled(entry.name),
        name=entry.name,
        kind=entry.scheme.__name__,
        index="\n   :no-index:" if any(entry.variant) else "",
        signature=entry.signature,
        does=f"{sentence(entry.does)}.",
        doors=", ".join(entry.doors) or "none",
        learned=entry.learned,
        who="decoders" if entry.for_decoders else "decoders and encoders",
        axes={"any": "one, two or three"}.get(entry.axes, entry.axes),
        limits=entry.limits or "none known",
        source=f"[{entry.paper}]({entry.url})" if entry.url else entry.paper,
        parameters=_parameters(entry),
        users=f"| who uses it | {entry.users} |\n" if entry.users else "",
        formula=f"$$\n{entry.formula}\n$$\n" if entry.formula else "",
        example=_example(entry),
        laws=laws,
        others=others,
        cost=sentence(entry.cost),
        price=_price(entry),
        model=_runs(whole_model(entry), entry.name),
        when_not=when_not(entry),
        study=_study(entry),
    )


def _picture(entry: Entry, dark: bool) -> bytes:
    """Its panel, as wide as it needs to be by itself."""
    figure = overview(entry.name, dark=dark)
    figure.suptitle("")
    figure.set_size_inches(4.5 if figure.axes[0].images else 6.5, figure.get_figheight())
    return saved(figure, dark=dark)


def _newest() -> float:
    """When what pages are made of was last changed."""
    pages = [DOCS / "performance.md", DOCS / "study" / "texts.md"]
    files = [*Path(posenc.__file__).parent.rglob("*.py"), *Path(__file__).parent.glob("*.py"), *pages]
    return max(file.stat().st_mtime for file in files)


def write(app: Sphinx) -> None:
    """Writes the pages and pictures that are not there or not new, and removes those of schemes that are no more."""
    matplotlib.use("agg")
    (PAGES / "images").mkdir(parents=True, exist_ok=True)
    newest, names = _newest(), {entry.name for entry in CATALOG}
    for file in PAGES.glob("*.md"):
        if file.stem not in names:
            file.unlink()
    stale = [
        entry
        for entry in CATALOG
        if not (file := PAGES / f"{entry.name}.md").is_file() or file.stat().st_mtime < newest
    ]
    for entry in status_iterator(stale, "schemes.. ", "brown", len(stale), app.verbosity, lambda entry: entry.name):
        for dark in (False, True):
            image = PAGES / "images" / f"{entry.name}{'-dark' if dark else ''}.png"
            image.write_bytes(_picture(entry, dark))
        (PAGES / f"{entry.name}.md").write_text(page(entry), encoding="utf-8")


def link(app: Sphinx, docname: str, source: list[str]) -> None:
    """In the site docs/schemes.md leads to the pages, from its table and in the list of pages; links to one of them,
    ``schemes.md#rope``, lead there too."""
    source[0] = ONE.sub(r"](\1schemes/\2.md)", source[0])
    if docname == "schemes":
        source[0] += LISTED
        for entry in CATALOG:
            said = f"| `{entry.signature}` |"
            source[0] = source[0].replace(said, f"| [`{entry.signature}`](schemes/{entry.name}.md) |")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    app.connect("source-read", link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
