"""``python -m study.pages``: docs/study, every table, figure and sentence of it made from the records, and what of them
ships with the explorer.

The words are in ``templates``, with a template for each page; the numbers are those of `study.findings`.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from scipy.stats import spearmanr

import posenc_lab.choose
from posenc.command.files import write_whole
from posenc_lab.choose.evidence import TEXTS as CLAIMED
from posenc_lab.choose.evidence import claims
from posenc_lab.kit.files import digest_of
from posenc_lab.kit.statistics import wilson
from study.devices import gaps, seeds_of
from study.explorer_records import FILE, shipped
from study.findings import (
    LENGTHS,
    MEASURE,
    PUBLISHED,
    Contrast,
    Part,
    Text,
    contrasts,
    exploratory,
    highest_gain,
    interval,
    judged,
    key,
    label,
    records,
    short,
    signed,
    text,
    tuning,
)
from study.pictures import losses, png, uses
from study.pieces import PLAN, bits, pieces
from study.pieces import name as name_of
from study.puzzles import Task, order, task
from study.run import SCHEMES, TASKS, TEXTS

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
CHOOSE = Path(posenc_lab.choose.__path__[0])
NEAR = (
    "Bits per byte over sliding windows, which score the same bytes at every length",
    "How small decoders extrapolate to eight times their length. A low loss does not show that far text is used.",
    "longer than in training",
)
FAR = (
    "Loss of the same final bytes after up to 1,024 bytes minus that after exactly 128, in bits per byte",
    "Below zero, text further back than a model was trained on helps it; around zero it makes no use of it.",
    "what far text is worth",
)
DECODERS = "decoders of 384 thousand parameters trained 600 steps on 128 bytes"
SOLVED = "Seeds with which at least 95 % of the rows are right, of decoders of a tenth of a million parameters"
FINDING = (
    "study_recall",
    "finding",
    "Small models find a far token at eight times the trained length with some schemes, without training on it.",
)
RULES = (
    "study_rules",
    "rules",
    "Hardly any scheme follows such rules on longer rows. Some do not learn them at the trained length.",
)
KINDS = (("recall", "passkey"), ("copy", "reverse", "sort", "addition", "index"))
"""The puzzles in which something is to be found, and those with a rule, without the control."""
TITLES = {
    "python": "Python's packages",
    "plays": "Shakespeare's works",
    "larger": "Four times as many steps",
    "pieces": "Pieces",
}
TRAINED = f"trained on {LENGTHS[0]} bytes"
CLOSE = "t5_alibi_trained"  # a claim whose two perplexities are 0.4 % apart


def main() -> None:
    """Writes every page; that of pieces says how far it is. ValueError where a training of the others is missing."""
    texts = [text(name, seeds) for name, seeds in TEXTS.items()]
    tuned, of_pieces = tuning(), pieces()
    tasks = [task(name, seeds) for name, seeds in TASKS.items()]
    of_recall = next(each for each in tasks if each.name == "recall")  # the one that posenc compare still has
    claimed = [of for of in texts if of.name in CLAIMED]
    found = {of.name: contrasts(of) for of in claimed}
    known = {
        "texts": texts,
        "tuned": tuned,
        "schemes": list(SCHEMES.values()),
        "titles": TITLES,
        "contrasts": found,
        "close": sum(each.agrees == "yes" for made in found.values() for each in made if each.claim["name"] == CLOSE),
        "tasks": tasks,
        "order": order(tasks),
        "published": PUBLISHED["ranks"],
        "wilson": wilson,
        "finders": of_recall.solvers(of_recall.lengths[-1]),
        "agreed": Counter(each.agrees for made in found.values() for each in made),
        "devices": _devices([*texts, *tasks, of_pieces]),
        "again": [gaps(records("python"), records("again"), MEASURE, n) for n in LENGTHS],
        "careful": _careful(claimed, found),
        "versions": sorted({record["versions"]["torch"] for of in texts for record in of.summary.records}),
        "at_one_rate": {each.scheme: each for each in tuned},
        "stays": _stays(texts),
        "short": short(claimed),
        "gains": [highest_gain(its) for its in (claimed, [of for of in texts if of not in claimed])],
        "lengths": LENGTHS,
        "pieces": of_pieces,
        "digest": digest_of(PLAN.read_bytes()),
        "has_sizes": (DOCS / "study" / "sizes.md").is_file(),
    }
    write_whole(CHOOSE / "claims.json", _claims(found).encode())
    write_whole(CHOOSE / "study.json", _tables(claimed, tasks).encode())
    write_whole(FILE, shipped(texts, of_recall, TITLES).encode())
    for page in ("index", "pieces", "texts", "contrasts", "tuning", "tasks"):
        write(page, **known)
    drawn = {
        of.name: partial(losses, of.summary, f"{TITLES[of.name]}: {TRAINED}, tested on up to {LENGTHS[1]:,}")
        for of in texts
    }
    if of_pieces.schemes:
        drawn["pieces"] = partial(uses, of_pieces)
    for name, draw in drawn.items():
        for dark in (False, True):
            write_whole(DOCS / "images" / f"study-{name}{'-dark' * dark}.png", png(draw, dark))


def _claims(found: Mapping[str, Sequence[Contrast]]) -> str:
    """The file of claims with what was found of each on every text, a claim's parts in a line each."""
    made = []
    for n, claim in enumerate(claims()):
        parts = claim | {"ours": {name: found[name][n].to_dict() for name in claim["ours"]}}
        lines = (f"    {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in parts.items())
        made.append("  {\n" + ",\n".join(lines) + "\n  }")
    return '{"claims": [\n' + ",\n".join(made) + "\n]}\n"


def _tables(texts: Sequence[Text], tasks: Sequence[Task]) -> str:
    """The file of what each text and the puzzles have shown, as `posenc_lab.choose` takes tables: a table
    in a line, and its rows."""
    found = [_of_text(of, far) for of in texts for far in (False, True)]
    found += [_of_puzzles([each for each in tasks if each.name in kind]) for kind in KINDS]
    made = [json.dumps(each, ensure_ascii=False) for each in found]
    lines = (
        ",\n".join(made).replace(' {"label"', '\n  {"label"').replace('[{"label"', '[\n  {"label"').replace("**", "")
    )
    return f'{{"records": [\n{lines}\n]}}\n'


def _of_puzzles(tasks: Sequence[Task]) -> dict[str, Any]:
    """With how many seeds each scheme solves some puzzles, at the longest rows."""
    name, kind, shows = FINDING if tasks[0].name in KINDS[0] else RULES
    return _table(
        name=name,
        question="far",
        title=f"The study, {kind}: puzzles on rows longer than in training",
        measured=f"{SOLVED}; {tasks[0].seeds} seeds.",
        shows=shows,
        heads=[f"{each.name}, {each.lengths[-1] // each.lengths[0]} times as long" for each in tasks],
        rows={s: [f"{of.solved(s, of.lengths[-1])} of {of.seeds}" for of in tasks] for s in tasks[0].summary.schemes},
        better="higher",
        doc="docs/study/tasks.md",
    )


def _of_text(of: Text, far: bool) -> dict[str, Any]:
    """The losses of all schemes from the trained length on, or what far text is worth to each."""
    longer = [f"{n:,}" for n in of.summary.lengths(MEASURE) if n > LENGTHS[0]]
    heads = ["far text"] if far else [f"{LENGTHS[0]} (trained)", *longer]
    measured, shows, what = FAR if far else NEAR
    anchor = TITLES[of.name].lower().replace("'", "").replace(" ", "-")
    return _table(
        name=f"study_{of.name}{'_far' * far}",
        question="far" if far else "length",
        title=f"The study, {TITLES[of.name]}: {what}",
        measured=f"{measured}, of {DECODERS}; {of.seeds} seeds.",
        shows=shows,
        heads=heads,
        rows={each.scheme: [each.far] if far else each.cells[-len(heads) :] for each in rows(of)},
        better="lower",
        doc=f"docs/study/texts.md#{anchor}",
    )


def _table(*, rows: Mapping[str, list[str]], better: str, doc: str, **words: Any) -> dict[str, Any]:
    """A table of posenc's own, in the order of its fields."""
    made = [  # a schedule is none of the catalog
        {"label": label(scheme), "schemes": [scheme] if key(scheme) == scheme else [], "figures": figures}
        for scheme, figures in rows.items()
    ]
    return {**words, "rows": made, "better": better, "source": "posenc", "command": "make study", "doc": doc}


def templates() -> Environment:
    """Of Markdown, in which nothing is to be escaped."""
    loader = FileSystemLoader(HERE / "templates")
    return Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def write(name: str, **known: object) -> None:
    """A page, of its template."""
    environment = templates()
    filters = (labels, number, interval, outcome, signed, rows, bits)
    environment.filters |= {"label": label, "named": name_of, **{each.__name__: each for each in filters}}
    written = environment.get_template(f"{name}.md.j2").render(**known)
    write_whole(DOCS / "study" / f"{name}.md", (written.rstrip() + "\n").encode())


def outcome(contrast: Contrast) -> str:
    """A verdict, and whether another was published."""
    return f"{contrast.verdict}: **not as published**" if contrast.agrees == "no" else contrast.verdict


def labels(schemes: Sequence[str]) -> str:
    """Schemes as tables have them."""
    return ", ".join(map(label, schemes)) or "none"


def _devices(of: Sequence[Part]) -> dict[str, dict[str, list[int]]]:
    """For each text, pieces and all puzzles the seeds of trainings on each device."""
    grouped: dict[str, list[Any]] = {}
    for each in of:
        grouped.setdefault(TITLES.get(each.name, "Puzzles"), []).extend(each.summary.records)
    return {name: seeds_of(made) for name, made in grouped.items()}


def _careful(of: Sequence[Text], found: Mapping[str, Sequence[Contrast]]) -> list[tuple[str, Contrast]]:
    """What hangs on the fewest degrees of freedom: the text, and the contrast with the verdict of the others."""
    others = {text.name: judged(found[text.name], text.summary.task.margin, careful=False) for text in of}
    pairs = ((name, *both) for name, its in others.items() for both in zip(found[name], its, strict=True))
    return [(name, other) for name, each, other in pairs if each.verdict != other.verdict]


def _stays(texts: Sequence[Text]) -> tuple[list[float], list[float]]:
    """How the schemes lie after few steps and after more: Spearman's correlation of their losses, of those that have
    one, at both lengths; and the bits between the lowest and the highest at the trained length, after few and more."""
    both = [next(of.summary for of in texts if of.name == name) for name in ("python", "larger")]
    means = []
    for length in LENGTHS:
        pairs = ([of.bits(MEASURE, scheme, length) for of in both] for scheme in both[0].schemes)
        means.append([*zip(*([each.mean for each in pair if each] for pair in pairs if all(pair)), strict=True)])
    return [float(spearmanr(*each).statistic) for each in means], [max(each) - min(each) for each in means[0]]


def number(value: float | None) -> str:
    """A loss; None where the scheme has no such position, infinite where its training diverged."""
    if value is None:
        return "undefined"
    return f"{value:.3f}" if math.isfinite(value) else "diverged"


class Row(NamedTuple):
    """A scheme on a text: its seeds, its loss at every length, what far text is worth to it, and how many others it is
    shown to be lower than, at the trained length and at the longest; empty for a text that is not tested."""

    scheme: str
    seeds: int
    cells: list[str]
    far: str
    beats: str


def rows(of: Text) -> list[Row]:
    """Those of every scheme that is measured, the lowest loss at the trained length first."""
    summary = of.summary
    found = {s: value for s in summary.schemes if (value := summary.bits(MEASURE, s, LENGTHS[0]))}
    judged = of.name in CLAIMED  # what is longer trained is described, not tested
    lower = [exploratory(of, n) for n in LENGTHS] if judged else []

    def cell(scheme: str, length: int) -> str:
        value = summary.bits(MEASURE, scheme, length)
        if value is None:
            return summary.no_value(scheme, length, MEASURE) or "–"
        shown = f"{value.mean:.3f} ± {value.high - value.mean:.3f}"
        return f"**{shown}**" if judged and scheme in summary.best(MEASURE, length) else shown

    return [
        Row(
            scheme,
            len(summary.measured(scheme)),
            [cell(scheme, n) for n in summary.lengths(MEASURE)],
            interval(gain) if (gain := of.far(scheme)) else "–",
            "; ".join(str(each[scheme]) for each in lower),
        )
        for scheme in sorted(found, key=lambda scheme: found[scheme].mean)
    ]


if __name__ == "__main__":
    main()
