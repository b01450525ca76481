"""Explains checks, from their own descriptions and the docstrings of subjects: `posenc check --explain 7`."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from textwrap import fill

from torch import nn

from posenc_check.run import chosen
from posenc_check.subjects import Bias, Layer, NotApplicableError, Rotary, Subject, call_module
from posenc_check.trial import NOTHING_TO_DO, THREADS, Check, Plan, Trial

WIDTH = 100
# A layer that takes vectors alone and claims nothing: what it lacks is what a new user is told to add.
BARE = Layer(build=nn.Linear, call=call_module, options={"in_features": 32, "out_features": 32})


def explained(numbers: list[int] | None) -> str:
    """A full description of these checks, or one line for each of all checks. ValueError for an unknown number."""
    if numbers is None:
        return "\n".join(f"{entry.number:2}. {entry.name}: {entry.rule}" for entry in chosen(None))
    return "\n\n\n".join("\n".join(_lines(entry)) for entry in chosen(numbers))


def _lines(entry: Check) -> Iterator[str]:
    threads = ", ".join(thread for pain in entry.pains for thread in THREADS[pain])
    about = {"What must hold": entry.rule, "Why": entry.why, "What to do": entry.remedy, "Met in": threads}
    yield f"{entry.number}. {entry.name}"
    for label, text in about.items():
        if text:
            yield from ["", _filled(f"{label}: {text}", "  ")]
    yield from ["", "  What is tried:"]
    for trial in entry.trials:
        described = " ".join((inspect.getdoc(trial.function) or "").split("\n\n")[0].split())
        yield _filled(f"- {trial.name}: {described}", "  ")
        yield _filled(f"needs: {needs(trial)}", "    ")
        if trial.remedy:
            yield _filled(f"what to do: {trial.remedy}", "    ")
    meanings = claims()
    said = dict.fromkeys(meanings[claim] for trial in entry.trials for claim in trial.claims)
    if said:
        yield from ["", "  The claims that it tries:"]
        yield from (_filled(f"- {text}", "  ") for text in said)


def needs(trial: Trial) -> str:
    """What this trial needs, in the words of the reason why it does not apply to `BARE`."""
    try:
        next(trial.cases(Plan(BARE), **trial.kind), None)
    except NotApplicableError as error:
        return str(error).removeprefix(NOTHING_TO_DO).strip()
    return "nothing but a call"


def claims() -> dict[str, str]:
    """The description of each claim, by its name, from the docstrings of the subjects."""
    found: dict[str, str] = {}
    for kind in (Subject, Rotary, Bias, Layer):
        names = {field.name for field in fields(kind)} - {"build", "call"}
        text = " ".join((inspect.getdoc(kind) or "").split()).replace("``", "`").partition("laim")[2]
        for said in re.split(r" - (?=`)|[;:] (?:or )?(?=`)", text)[1:]:
            for name in re.findall(r"`(\w+)`", said):
                if name in names:
                    found.setdefault(name, said.rstrip("."))
    return found


def _filled(text: str, indent: str) -> str:
    return fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)
