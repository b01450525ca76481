"""Formats an answer as text for the terminal, and as JSON."""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from posenc_lab.choose.evidence import STRENGTHS, PublishedTable, Statement, claims, described, statements, tables
from posenc_lab.choose.questions import Answer, Question

WIDTH = 100
UNTESTED = "No published claim about this was tested here with several seeds."
NO_TABLE = "No published or measured figures."
TRIALS = 25  # of a scheme
TUNING = (
    "--tune runs {trials} trial trainings per scheme, here {every} in all: leave it out for a first look, whose order "
    "can be that of one learning rate."
)


def tables_of(answer: Answer) -> list[PublishedTable]:
    """The tables of an answer."""
    named = {table.name: table for table in tables()}
    return [named[name] for name in answer.evidence]


def claims_of(answer: Answer) -> list[dict[str, Any]]:
    """The claims of an answer."""
    named = {claim["name"]: claim for claim in claims()}
    return [named[name] for name in answer.claims]


def statements_of(answer: Answer) -> list[Statement]:
    """The statements of an answer."""
    named = {each.name: each for each in statements()}
    return [named[name] for name in answer.statements]


def tuning(answer: Answer) -> str:
    """What the command of an answer runs in order to tune; empty where it does not."""
    schemes = re.search(r"--schemes (\S+).* --tune", answer.command)
    return TUNING.format(trials=TRIALS, every=TRIALS * (schemes[1].count(",") + 1)) if schemes else ""


def as_json(answer: Answer, given: Mapping[str, str]) -> str:
    """The answer with its tables and claims in full, and the answers given."""
    whole = {
        "given": dict(given),
        **asdict(answer),
        "strength": answer.strength,
        "evidence": [asdict(table) for table in tables_of(answer)],
        "claims": claims_of(answer),
        "statements": [asdict(each) for each in statements_of(answer)],
    }
    return json.dumps(whole, ensure_ascii=False, allow_nan=False, indent=2)


def as_text(answer: Answer, given: Mapping[str, str]) -> str:
    """The answer for reading."""
    options = " ".join(f"--{name} {value}" for name, value in given.items())
    is_certain = answer.strength == "certain"
    clone = ", in a clone of posenc" if "examples/" in answer.command else ""
    measure = [f"Compare it with {answer.compare_with}{clone}:\n\n    {answer.command}"] if answer.command else []
    measure += [_wrapped(words)] if (words := tuning(answer)) else []
    imports = [f"import {name}" for name in ("posenc", "transformers") if f"{name}." in answer.code]
    code = "\n".join([*imports, "", answer.code])
    longer, as_yes = given.get("longer", "yes"), "yes" in answer.when.get("longer", ())
    taken = f"--longer {longer} leads to the same answer here as --longer yes."
    parts = [
        f"{answer.case[0].upper()}{answer.case[1:]}  ({options})",
        *([taken] if as_yes and longer != "yes" else []),
        f"Start with {answer.begin}:\n\n{textwrap.indent(code, '    ')}",
        *measure,
        _wrapped(f"Why: {answer.why}"),
        f"Strength of the evidence for it: {answer.strength_in_words}.",
        "Evidence:",
        *(_wrapped(f"{each.says} ({each.where}; {STRENGTHS[each.strength]})", 2) for each in statements_of(answer)),
        *(_table(table) for table in tables_of(answer)),
        *([] if answer.evidence or is_certain else [f"  {NO_TABLE}"]),
        *([] if is_certain and not answer.claims else ["What was published, and what we found:"]),
        *(_claim(described(claim)) for claim in claims_of(answer)),
        *([] if answer.claims or is_certain else [f"  {UNTESTED}"]),
        _wrapped(f"Not known: {answer.unknown}"),
    ]
    return "\n\n".join(parts)


def as_questions(given: Mapping[str, str], still: Sequence[Question]) -> str:
    """The questions that are open, and how to answer them."""
    some = " ".join(f"--{question.name} {question.values[0]}" for question in still[:2])
    options = "".join(f"--{name} {value} " for name, value in given.items())
    lines = [f"Answer by options, such as: posenc choose {options}{some}", "To list the cases: posenc choose --cases"]
    for question in still:
        lines += ["", f"{question.asks} {question.note}"]
        lines += [f"    --{question.name} {option.value}: {option.label}" for option in question.options]
    return "\n".join(lines)


def as_cases(left: Sequence[Answer], given: Mapping[str, str]) -> str:
    """The answers that are left, each with the command that leads to it."""
    lines = []
    for answer in left:
        values = {**{name: values[0] for name, values in answer.when.items()}, **given}
        options = " ".join(f"--{name} {value}" for name, value in values.items())
        lines += [f"{answer.case}: {answer.begin}", f"    posenc choose {options}"]
    return "\n".join(lines)


def _table(table: PublishedTable) -> str:
    rows = [("", *table.heads), *((row.label, *row.figures) for row in table.rows)]
    lines = [
        _wrapped(f"{table.title} ({table.where}; {STRENGTHS[table.strength]})", 2),
        _wrapped(f"{table.measured} {table.better.capitalize()} is better.", 4),
        *_columns(rows),
        _wrapped(table.shows, 4),
    ]
    return "\n".join(lines)


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "      " + "  ".join((label.ljust(widths[0]), *map(str.rjust, figures, widths[1:]))) for label, *figures in rows
    ]


def _claim(claim: Mapping[str, Any]) -> str:
    lines = [
        f"  {claim['about']}",
        _wrapped(f"published: {claim['published']} ({claim['source']}, {claim['url']})", 4),
        *(_wrapped(words, 4) for words in claim["ours"]),
    ]
    return "\n".join(lines)


def _wrapped(text: str, indent: int = 0) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2 if indent else 0),
        break_long_words=False,
        break_on_hyphens=False,
    )
