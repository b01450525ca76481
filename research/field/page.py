"""The page of the field report, field/report.md, made of the records of its checks."""

import importlib.metadata
import json
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from field import faults
from field.kinds import WRONG, Note
from field.notes import NOT_RUN, NOTES

PAGE = Path(__file__).with_name("report.md")

# The files of field/subjects, those that take longest first, each with the package whose version stands in the report.
FILES = {
    "of_x_transformers": "x-transformers",
    "of_keras_hub": "keras-hub",
    "of_transformers_decoders": "transformers",
    "of_transformers_scaling": "transformers",
    "of_transformers_encoders": "transformers",
    "of_timm": "timm",
    "of_diffusers": "diffusers",
    "of_rotary_embedding_torch": "rotary-embedding-torch",
    "of_vit_pytorch": "vit-pytorch",
    "of_open_clip": "open_clip_torch",
    "of_torchtune": "torchtune",
    "of_equinox": "equinox",
    "of_torchscale": "torchscale",
    "of_labml_nn": "labml-nn",
    "of_attn_gym": "attn-gym",
    "of_positional_encodings": "positional-encodings",
    "of_self_attention_cv": "self-attention-cv",
    "of_local_attention": "local-attention",
    "of_fair_esm": "fair-esm",
    "of_conformer": "conformer",
    "of_axial_positional_embedding": "axial-positional-embedding",
    "of_torch": "torch",
}
SIGNS = {"passed": "✓", "finding": "✗", "not applicable": "·", "not checked": "!", "unfinished": "?"}
Data = dict[str, Any]


def findings(record: Data) -> Iterator[Data]:
    """The findings of a record, each with where it stands."""
    for result in record.get("results", ()):
        for trial in result["trials"]:
            if trial["finding"]:
                yield {**trial["finding"], "record": record, "number": result["number"], "trial": trial["name"]}


def write(records: Sequence[Data]) -> None:
    """The page, with the finding of the smallest input for each note."""
    found = [one for record in records for one in findings(record)]
    sure = [one for one in found if one["confirmed"]]
    noted: dict[Note, list[Data]] = {note: [] for note in NOTES}
    unknown = []
    for one in sure:
        note = note_of(one)
        (unknown if note is None else noted[note]).append(one)
    seen = {note: sorted(ones, key=lambda one: len(json.dumps(one["batch"]))) for note, ones in noted.items() if ones}
    lines = [
        *_opening(records),
        *_table(records),
        *_notes(seen),
        *_others("Findings that no one has looked into yet", unknown),
        *_others("Not confirmed", [one for one in found if not one["confirmed"]]),
        *_not_run(records),
        *_not_checked(records),
        *_reasons(records),
    ]
    PAGE.write_text("\n".join(lines) + "\n")


def version_of(package: str) -> str:
    """The version of a package that is installed, or nothing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def about(note: Note, finding: Mapping[str, Any]) -> bool:
    """Whether a note speaks of a finding."""
    return (
        finding["record"]["file"].startswith(note.file)
        and finding["number"] in note.checks
        and (not note.names or finding["record"]["name"] in note.names)
        and finding["trial"].startswith(note.trials)
    )


def note_of(finding: Mapping[str, Any]) -> Note | None:
    """What is known of a finding."""
    return next((note for note in NOTES if about(note, finding)), None)


def _opening(records: Sequence[Data]) -> list[str]:
    import torch

    import posenc

    checks = next((r["results"] for r in records if "results" in r), [])
    return [
        "# The checks on published packages",
        "",
        "`posenc check` was run on the positional encodings of published packages, at pinned versions. They are called "
        "as in their documentation or their own code, and tested for what they claim. `make field` writes this page. "
        "The packages are installed from [field/requirements.txt](requirements.txt), without their "
        f"dependencies. posenc {posenc.__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        "on the CPU.",
        "",
        "Every finding below was reproduced by the script that its check writes, in a separate interpreter that cannot "
        "import posenc; `make field` leaves these scripts in runs/field/scripts. Each mistake also has a script of at "
        "most 30 lines, written by hand, that needs only torch and the package. A finding only says that a rule does "
        "not hold. Each has a label: a mistake, a known limitation, by design, or housekeeping. More was found by "
        "reading the code, and has scripts too.",
        "",
        faults.IN_ALL,
        "",
        "## Subjects and checks",
        "",
        "✓ passed, **✗** a mistake, ○ a limitation, by design or housekeeping, · does not apply (reasons at the end), "
        "! not checked, although the check applies (reasons at the end), ? did not finish in time, or was not "
        "confirmed.",
        "",
        "; ".join(f"{result['number']} {result['name']}" for result in checks) + ".",
        "",
    ]


def _table(records: Sequence[Data]) -> list[str]:
    numbers = sorted({result["number"] for record in records for result in record.get("results", ())})
    lines = ["| subject | " + " | ".join(map(str, numbers)) + " |", "|---|" + ":-:|" * len(numbers)]
    package = ""
    for record in records:
        if FILES[record["file"]] != package:
            package = FILES[record["file"]]
            lines.append(f"| **{package} {version_of(package)}** |" + " |" * len(numbers))
        if "results" in record:
            signs = {result["number"]: SIGNS[result["status"]] for result in record["results"]}
            for one in findings(record):
                signs[one["number"]] = _worse(signs[one["number"]], one)
            lines.append(f"| {record['title']} | " + " | ".join(signs.get(n, "") for n in numbers) + " |")
    return [*lines, ""]


def _worse(sign: str, finding: Mapping[str, Any]) -> str:
    """The sign of a check with one more finding."""
    note = note_of(finding)
    if finding["confirmed"] and (note is None or note.kind == WRONG):
        return "**✗**"
    return sign if sign == "**✗**" else "○" if finding["confirmed"] or sign == "○" else "?"


def _notes(seen: Mapping[Note, Sequence[Data]]) -> list[str]:
    lines = ["## Findings", ""]
    for note, ones in seen.items():
        packages = dict.fromkeys(FILES[one["record"]["file"]] for one in ones)
        versions = ", ".join(f"{package} {version_of(package)}" for package in packages)
        lines += [f"### {note.title}", "", f"**{note.kind.capitalize()}**, {versions}. {note.text}", ""]
        if note.where:
            lines += [f"In the code: {note.where}.", ""]
        lines += _shown(ones[0], note)
        others = [f"{one['record']['title']} ({one['number']}, {one['trial']})" for one in ones[1:]]
        if others:
            lines += [f"<details><summary>and {len(others)} more</summary>", "", "; ".join(others) + ".", ""]
            lines += ["</details>", ""]
    return lines


def _shown(one: Mapping[str, Any], note: Note | None = None) -> list[str]:
    """A finding: what was expected and came, on what, how to see it again, and the way out."""
    record = one["record"]
    return [
        f"- {record['title']}, check {one['number']}, “{one['trial']}”: expected {_quoted(one['expected'])}, came "
        f"{_quoted(one['came'])}",
        f"- on `{_short(one['input'])}`",
        f"- `posenc check field/subjects/{record['file']}.py:{record['name']} --checks {one['number']}`"
        + (f", or {faults.link(note)}" if note and note.script else ""),
        *([f"- instead: {note.instead}"] if note and note.instead else []),
        "",
    ]


def _quoted(text: str) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)  # colours
    return "`" + " ".join(_short(plain).replace("`", "'").split()) + "`"


def _short(text: str, most: int = 280) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def _others(heading: str, ones: Sequence[Data]) -> list[str]:
    if not ones:
        return []
    lines = [f"## {heading}", ""]
    for one in ones:
        lines += [f"**{FILES[one['record']['file']]}**", "", *_shown(one)]
    return lines


def _not_run(records: Sequence[Data]) -> list[str]:
    reasons = [(FILES[r["file"]], r["title"], r["failed"]) for r in records if "failed" in r]
    lines = ["## Not run", ""]
    lines += [f"- {package}, {title}: {_short(reason)}" for package, title, reason in reasons]
    return [*lines, *(f"- {package}: {reason}" for package, reason in NOT_RUN.items()), ""]


def _not_checked(records: Sequence[Data]) -> list[str]:
    """The claims that no trial could try, or that are not made: of each, why, and of which subjects."""
    why: dict[tuple[str, str], list[str]] = {}
    for record in records:
        for claim in record.get("not_checked", ()):
            subject = f"{FILES[record['file']]} {record['title']}"
            why.setdefault((claim["said"], claim["reason"]), []).append(subject)
    lines = ["## Not checked", "", "No trial could test these claims, or they should be made and are not.", ""]
    lines += ["| claim | why | subjects |", "|---|---|---|"]
    lines += [f"| `{claim}` | {reason} | {', '.join(titles)} |" for (claim, reason), titles in why.items()]
    return [*lines, ""] if why else []


def _reasons(records: Sequence[Data]) -> list[str]:
    """Why checks do not apply: of each reason, to which subjects and checks."""
    why: dict[str, dict[str, list[int]]] = {}
    for record in records:
        for result in record.get("results", ()):
            if result["status"] == "not applicable":
                for reason in re.sub(r"\b\d[\d.e+-]*", "…", result["reason"]).split("; "):
                    why.setdefault(reason, {}).setdefault(record["title"], []).append(result["number"])
    lines = ["## Why checks do not apply", "", "| reason | checks | subjects |", "|---|---|---:|"]
    for reason, titles in sorted(why.items(), key=lambda item: -len(item[1])):
        numbers = sorted({n for found in titles.values() for n in found})
        lines.append(f"| {reason} | {', '.join(map(str, numbers))} | {len(titles)} |")
    return lines
