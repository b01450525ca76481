"""``python -m study.pages``: docs/study, every table, figure and sentence of it made from the records, and what of them
ships with the explorer.

The words are in ``templates``, with a template for each page; the numbers are those of `study.found`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import posenc.tools.choose
from posenc.tools.choose.evidence import TEXTS as CLAIMED
from posenc.tools.choose.evidence import claims
from posenc.tools.kit.files import write_whole
from study.found import LENGTHS, MEASURE, Contrast, Text, contrasts, exploratory, interval, label, task, text, tuning
from study.pictures import png
from study.run import SCHEMES, TASKS, TEXTS
from study.shipped import FILE, shipped

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
CLAIMS = Path(posenc.tools.choose.__path__[0]) / "claims.json"
TITLES = {"python": "Python's packages", "plays": "Shakespeare's works", "larger": "Four times as many steps"}


def main() -> None:
    """Writes every page; one of which nothing is measured says so."""
    texts = [text(name, seeds) for name, seeds in TEXTS.items()]
    found = {of.name: contrasts(of) for of in texts if of.name in CLAIMED}
    known = {
        "texts": texts,
        "tuned": tuning(),
        "schemes": list(SCHEMES.values()),
        "titles": TITLES,
        "contrasts": found,
        "tasks": [task(name, seeds) for name, seeds in TASKS.items()],
        "lengths": LENGTHS,
    }
    write_whole(CLAIMS, _claims(found).encode())
    write_whole(FILE, shipped(texts, TITLES).encode())
    write_whole(DOCS / "study" / "plan.md", (HERE / "plan.md").read_bytes())
    for name in ("index", "tuning", "contrasts", "tasks"):
        _write(name, name, **known)
    for of in texts:
        explored = [(n, exploratory(of, n)) for n in LENGTHS] if of.complete and of.name in CLAIMED else []
        _write(of.name, "text", of=of, rows=rows(of), explored=explored, **known)
        if of.trained:
            for dark in (False, True):
                title = f"{TITLES[of.name]}: trained on {LENGTHS[0]} bytes, tested on up to {LENGTHS[1]:,}"
                path = DOCS / "images" / f"study-{of.name}{'-dark' if dark else ''}.png"
                write_whole(path, png(of.summary, title, dark))


def _claims(found: Mapping[str, Sequence[Contrast]]) -> str:
    """The file of claims with what was found of each on every text, a claim's parts in a line each."""
    made = []
    for n, claim in enumerate(claims()):
        parts = claim | {"ours": {name: found[name][n].to_dict() for name in claim["ours"]}}
        lines = (f"    {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in parts.items())
        made.append("  {\n" + ",\n".join(lines) + "\n  }")
    return '{"claims": [\n' + ",\n".join(made) + "\n]}\n"


def _write(name: str, template: str, **known: object) -> None:
    environment = Environment(  # of Markdown, in which nothing is to be escaped
        loader=FileSystemLoader(HERE / "templates"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"label": label, "number": number, "interval": interval}
    written = environment.get_template(f"{template}.md.j2").render(**known)
    write_whole(DOCS / "study" / f"{name}.md", (written.rstrip() + "\n").encode())


def number(value: float | None) -> str:
    """A loss; None where the scheme has no such position, infinite where its training diverged."""
    if value is None:
        return "undefined"
    return f"{value:.3f}" if math.isfinite(value) else "diverged"


def rows(of: Text) -> list[tuple[str, int, list[str], str]]:
    """Of every scheme that is measured, the lowest loss at the trained length first: its name, its seeds, its loss at
    every length, and what far text is worth to it."""
    summary = of.summary
    found = {s: value for s in summary.schemes if (value := summary.bits(MEASURE, s, LENGTHS[0]))}
    longest = max(summary.lengths(MEASURE), default=0)

    def cell(scheme: str, length: int) -> str:
        value = summary.bits(MEASURE, scheme, length)
        if value is None:
            return summary.no_value(scheme, length, MEASURE) or "–"
        shown = f"{value.mean:.3f} ± {value.high - value.mean:.3f}"
        judged = of.complete and of.name in CLAIMED  # what is longer trained is described, not tested
        return f"**{shown}**" if judged and scheme in summary.best(MEASURE, length) else shown

    def gain(scheme: str) -> str:
        its = ("final_tokens", scheme, scheme, longest, "truncated", summary.train_length)
        return interval(summary.difference(*its)) if summary.difference(*its) else "–"

    return [
        (scheme, len(summary.measured(scheme)), [cell(scheme, n) for n in summary.lengths(MEASURE)], gain(scheme))
        for scheme in sorted(found, key=lambda scheme: found[scheme].mean)
    ]


if __name__ == "__main__":
    main()
