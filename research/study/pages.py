"""``python -m study.pages``: docs/study, every table, figure and sentence of it made from the records, and what of them
ships with the explorer.

The words are in ``templates``, with a template for each page; the numbers are those of `study.findings`.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from scipy.stats import spearmanr

import posenc_lab.choose
from posenc.command.files import write_whole
from posenc_lab.choose.evidence import TEXTS as CLAIMED
from posenc_lab.choose.evidence import claims
from posenc_lab.compare.summary import Summary
from posenc_lab.compare.task import listed
from study.claims import check
from study.devices import Share, again, on_cpu, shares, twice
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
    interval,
    key,
    label,
    records,
    short,
    signed,
    text,
    tuning,
)
from study.pictures import png
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
KINDS = (("recall", "passkey"), ("copy", "reverse", "sort", "addition", "index"))
"""The puzzles in which something is to be found, and those with a rule, without the control."""
TITLES = {"python": "Python's packages", "plays": "Shakespeare's works", "larger": "Four times as many steps"}


def main() -> None:
    """Writes every page; one of which nothing is measured says so."""
    texts = [text(name, seeds) for name, seeds in TEXTS.items()]
    tuned = tuning()
    tasks = [task(name, seeds) for name, seeds in TASKS.items()]
    found = {of.name: contrasts(of) for of in texts if of.name in CLAIMED}
    known = {
        "texts": texts,
        "tuned": tuned,
        "schemes": list(SCHEMES.values()),
        "titles": TITLES,
        "contrasts": found,
        "close": {name: close(name, found) for name in ("rope_alibi_trained", "t5_alibi_trained")},
        "tasks": tasks,
        "order": order(tasks),
        "ranked": PUBLISHED["ranked"],
        "agreed": Counter(each.agrees for made in found.values() for each in made),
        "devices": _devices([*texts, *tasks]),
        "twice": twice(map(records, TASKS)),
        "again": [its for n in LENGTHS if (its := again(records("python"), records("again"), MEASURE, n))],
        "versions": sorted({record["versions"]["torch"] for of in texts for record in of.summary.records}),
        "at_one_rate": {each.scheme: each for each in tuned},
        "stays": _stays(texts),
        "short": short([of for of in texts if of.name in CLAIMED]),
        "lengths": LENGTHS,
    }
    write_whole(CHOOSE / "claims.json", _claims(found).encode())
    claimed = [of for of in texts if of.name in CLAIMED and of.trained]
    write_whole(CHOOSE / "study.json", _tables(claimed, tasks).encode())
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


def close(name: str, found: Mapping[str, Sequence[Contrast]]) -> dict[str, Any]:
    """A claim with two perplexities near each other: how far apart they are, and how many tests agree with it."""
    tests = [each for made in found.values() for each in made if each.claim["name"] == name]
    low, high = sorted(map(float, re.findall(r"\d+\.\d+", tests[0].claim["published"]["claim"])))
    return {
        "apart": f"{high / low - 1:.1%}".replace("%", " %"),
        "agreeing": sum(each.agrees == "yes" for each in tests),
    }


def _claims(found: Mapping[str, Sequence[Contrast]]) -> str:
    """The file of claims with what was found of each on every text, a claim's parts in a line each."""
    made = []
    for n, claim in enumerate(claims()):
        parts = claim | {"ours": {name: found[name][n].to_dict() for name in claim["ours"]}}
        check(parts)
        lines = (f"    {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in parts.items())
        made.append("  {\n" + ",\n".join(lines) + "\n  }")
    return '{"claims": [\n' + ",\n".join(made) + "\n]}\n"


def _tables(texts: Sequence[Text], tasks: Sequence[Task]) -> str:
    """The file of what each text and the puzzles have shown, as `posenc_lab.choose` takes tables: a table
    in a line, and its rows."""
    found = [_table(of, far) for of in texts for far in (False, True)]
    found += [
        _of_puzzles(of) for kind in KINDS if (of := [each for each in tasks if each.name in kind and each.trained])
    ]
    made = [json.dumps(each, ensure_ascii=False) for each in found]
    lines = (
        ",\n".join(made).replace(' {"label"', '\n  {"label"').replace('[{"label"', '[\n  {"label"').replace("**", "")
    )
    return f'{{"records": [\n{lines}\n]}}\n'


def counted(seeds: Sequence[int]) -> str:
    """How many seeds the schemes have, in words."""
    few, most = min(seeds), max(seeds)
    return "one seed" if most == 1 else f"{most} seeds" if few == most else f"{few} to {most} seeds"


def _of_puzzles(tasks: Sequence[Task]) -> dict[str, Any]:
    """With how many seeds each scheme solves some puzzles, at the longest rows."""
    recall = tasks[0].name in KINDS[0]
    seeds = [len(each.shares(scheme, each.lengths[-1])) for each in tasks for scheme in each.summary.schemes]

    def cell(of: Task, scheme: str) -> str:
        length = of.lengths[-1]
        return f"{of.solved(scheme, length)} of {len(of.shares(scheme, length))}"

    return {
        "name": "study_recall" if recall else "study_rules",
        "question": "far",
        "title": f"The study, {'finding' if recall else 'rules'}: puzzles on rows longer than in training",
        "measured": (
            f"Seeds with which at least 95 % of the rows are right, of decoders of a tenth of a million parameters; "
            f"{counted(seeds)}."
        ),
        "shows": (
            "Small models find a far token at eight times the trained length with some schemes, without training on it."
            if recall
            else "Hardly any scheme follows such rules on longer rows. Some do not learn them at the trained length."
        ),
        "heads": [f"{each.name}, {each.lengths[-1] // each.lengths[0]} times as long" for each in tasks],
        "rows": [
            {
                "label": label(scheme),
                "schemes": [scheme] if key(scheme) == scheme else [],
                "figures": [cell(each, scheme) for each in tasks],
            }
            for scheme in tasks[0].summary.schemes
        ],
        "better": "higher",
        "source": "posenc",
        "command": "make study",
        "doc": "docs/study/tasks.md",
        "too_few": "" if all(each.complete for each in tasks) else counted(seeds),
    }


def _table(of: Text, far: bool) -> dict[str, Any]:
    """The losses of all schemes from the trained length on, or what far text is worth to each."""
    shown = rows(of)
    seeds = counted([each for _, each, _, _ in shown])
    longer = [f"{n:,}" for n in of.summary.lengths(MEASURE) if n > LENGTHS[0]]
    heads = ["far text"] if far else [f"{LENGTHS[0]} (trained)", *longer]
    measured, shows, what = FAR if far else NEAR
    return {
        "name": f"study_{of.name}{'_far' * far}",
        "question": "far" if far else "length",
        "title": f"The study, {TITLES[of.name]}: {what}",
        "measured": f"{measured}, of decoders of 384 thousand parameters trained 600 steps on 128 bytes; {seeds}.",
        "shows": shows,
        "heads": heads,
        "rows": [
            {
                "label": label(scheme),
                "schemes": [scheme] if key(scheme) == scheme else [],  # a schedule is none of the catalog
                "figures": [gain] if far else cells[-len(heads) :],
            }
            for scheme, _, cells, gain in shown
        ],
        "better": "lower",
        "source": "posenc",
        "command": "make study",
        "doc": f"docs/study/{of.name}.md",
        "too_few": "" if of.complete else seeds,
    }


def _write(name: str, template: str, **known: object) -> None:
    environment = Environment(  # of Markdown, in which nothing is to be escaped
        loader=FileSystemLoader(HERE / "templates"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    filters = (labels, number, interval, said, cost, signed, memory)
    environment.filters |= {"label": label, **{each.__name__: each for each in filters}}
    written = environment.get_template(f"{template}.md.j2").render(**known)
    write_whole(DOCS / "study" / f"{name}.md", (written.rstrip() + "\n").encode())


def said(contrast: Contrast) -> str:
    """A verdict, and whether another was published."""
    if not contrast.verdict:
        return "not yet"
    return f"{contrast.verdict}: **not as published**" if contrast.agrees == "no" else contrast.verdict


def cost(of: Summary) -> str:
    """What trainings took, in a sentence."""
    each = (f"{part.seconds:.0f} seconds on {_named(part)} (median of {part.trainings})" for part in shares(of.records))
    return f"**What it cost.** A training took {listed(each)}, beside others: do not read these as speeds."


def labels(schemes: Sequence[str]) -> str:
    """Schemes as tables have them."""
    return ", ".join(map(label, schemes)) or "none"


def memory(scheme: str, of: Text) -> str:
    """The peak of a training step on the CPU, in MB; a median over seeds."""
    peaks = [r["peak_bytes"] for r in on_cpu(of.summary.of("training", scheme)) if "peak_bytes" in r]
    return f"{median(peaks) / 1e6:.0f}" if peaks else "–"


def _named(part: Share) -> str:
    return "a CPU core" if part.device == "CPU" else f"an {part.device}"


def _devices(of: Sequence[Part]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """The devices, and for each part its name and what ran on each of them."""
    made = [(TITLES.get(each.name, each.name), shares(each.summary.records)) for each in of]
    devices = sorted({part.device for _, its in made for part in its})

    def cell(its: Sequence[Share], device: str) -> str:
        own = (part for part in its if part.device == device)
        return next((f"{p.trainings} (seeds {p.first} to {p.last})" for p in own), "–")

    return devices, [(name, [cell(its, device) for device in devices]) for name, its in made]


@dataclass(frozen=True)
class Stays:
    """How the schemes lie at a length after few steps and after more: Spearman's correlation of their losses, and the
    bits between the lowest and the highest."""

    length: int
    correlation: float
    few: float
    more: float


def _stays(texts: Sequence[Text]) -> list[Stays]:
    """At both lengths, of the schemes that have a loss there; empty before all trainings are there."""
    few, more = (next((of for of in texts if of.name == name and of.complete), None) for name in ("python", "larger"))
    if few is None or more is None:
        return []
    found = []
    for length in LENGTHS:
        pairs = [
            (mine.mean, its.mean)
            for scheme in few.summary.schemes
            if (mine := few.summary.bits(MEASURE, scheme, length))
            and (its := more.summary.bits(MEASURE, scheme, length))
        ]
        before, after = zip(*pairs, strict=True)
        spreads = (max(losses) - min(losses) for losses in (before, after))
        found.append(Stays(length, float(spearmanr(before, after).statistic), *spreads))
    return found


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

    def cell(scheme: str, length: int) -> str:
        value = summary.bits(MEASURE, scheme, length)
        if value is None:
            return summary.no_value(scheme, length, MEASURE) or "–"
        shown = f"{value.mean:.3f} ± {value.high - value.mean:.3f}"
        judged = of.complete and of.name in CLAIMED  # what is longer trained is described, not tested
        return f"**{shown}**" if judged and scheme in summary.best(MEASURE, length) else shown

    return [
        (
            scheme,
            len(summary.measured(scheme)),
            [cell(scheme, n) for n in summary.lengths(MEASURE)],
            interval(gain) if (gain := of.far(scheme)) else "–",
        )
        for scheme in sorted(found, key=lambda scheme: found[scheme].mean)
    ]


if __name__ == "__main__":
    main()
