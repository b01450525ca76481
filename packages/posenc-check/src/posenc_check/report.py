"""Turns reports into plain data, and the data into JSON, JUnit's XML and text for a terminal."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from platform import python_version
from typing import Any
from xml.etree import ElementTree

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

import posenc
from posenc_check.outcome import AN_ANSWER
from posenc_check.run import FINDING, NOT_APPLICABLE, NOT_CHECKED, PASSED, UNFINISHED, Finding, Report, Result
from posenc_check.standalone import given
from posenc_check.subjects import PADDING
from posenc_check.trial import Check, Trial, slug

VERSION = 2  # of the data: since 2, what is not checked is not ok
# The worst first.
STYLES = {
    FINDING: "bold red",
    UNFINISHED: "bold yellow",
    NOT_CHECKED: "bold yellow",
    PASSED: "green",
    NOT_APPLICABLE: "dim",
}
LINE = 120  # characters of an input that are shown; the data has it whole
Data = dict[str, Any]


def as_data(reports: Sequence[Report]) -> Data:
    """The reports as data that JSON can hold, the same for the same subjects and settings, except for ``seconds``."""
    return {
        "version": VERSION,
        "made_with": {"posenc": posenc.__version__, "torch": str(torch.__version__), "python": python_version()},
        "ok": all(report.ok and not _missing(report) for report in reports),
        "subjects": [
            _subject(report, f"{number}-{slug(report.name)}/" if len(reports) > 1 else "")
            for number, report in enumerate(reports, 1)
        ],
    }


def nothing_checked(subject: Data) -> bool:
    """Whether no check applies to the subject."""
    return all(result["status"] == NOT_APPLICABLE for result in subject["results"]) and not subject["not_run"]


def as_json(data: Data) -> str:
    """The data as a file."""
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def as_junit(data: Data) -> str:
    """JUnit's XML: a suite for each subject, a case for each check and for each claim that is not checked."""
    root = ElementTree.Element("testsuites", name="posenc check")

    def element(parent: ElementTree.Element, tag: str, **named: str) -> ElementTree.Element:
        return ElementTree.SubElement(parent, tag, {name: _xml(text) for name, text in named.items()})

    for subject in data["subjects"]:
        name = subject["name"]
        suite = element(root, "testsuite", name=name)
        for result in subject["results"]:
            heading = f"{result['number']}. {result['name']}"
            case = element(suite, "testcase", classname=name, name=heading, time=f"{result['seconds']:.3f}")
            for trial, found in findings_of(result):
                message = f"{trial['name']}: expected {found['expected']}, came {found['came']}"
                text = finding_text(name, result, trial)
                element(case, "failure", type="finding", message=message).text = _xml(text)
            if result["status"] == UNFINISHED:
                element(case, "error", type=UNFINISHED, message=result["found"])
            elif result["status"] == NOT_APPLICABLE:
                element(case, "skipped", message=result["reason"])
        for claim in subject["not_checked"]:
            case = element(suite, "testcase", classname=name, name=f"claim {claim['said']}")
            element(case, "error", type=NOT_CHECKED, message=claim["reason"])
        for number in subject["not_run"]:
            case = element(suite, "testcase", classname=name, name=f"{number}.")
            element(case, "error", type=UNFINISHED, message="not run: interrupted")
        ended = Counter(case[0].tag for case in suite if len(case))
        counts = {"tests": len(suite), "failures": ended["failure"], "errors": ended["error"]}
        suite.attrib.update({of: str(count) for of, count in (counts | {"skipped": ended["skipped"]}).items()})
        suite.set("time", f"{sum(result['seconds'] for result in subject['results']):.3f}")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def findings_of(result: Data) -> list[tuple[Data, Data]]:
    """The trials of a check that found something, each with what it found."""
    return [(trial, trial["finding"]) for trial in result["trials"] if trial["finding"] is not None]


def finding_text(name: str, result: Data, trial: Data) -> str:
    """A finding of the subject of that name as plain text, with its script."""
    lines = {**_about_finding(trial["finding"]), **_about_check(result)}
    said = [f"{label}: {text}" for label, text in lines.items()]
    head = f"{name}: {result['number']}. {result['name']}, {trial['name']}"
    return "\n".join([head, *said, "", "A script that reproduces it without posenc:", "", trial["finding"]["script"]])


def _about_finding(found: Data) -> dict[str, str]:
    remedy = {"what to do": found["remedy"]} if found["remedy"] else {}
    said = {"expected": found["expected"], "came": found["came"]}
    padded = any(PADDING in row for row in found["batch"].get("document") or ())
    return said | remedy | {"smallest input": shortened(found["input"]) + f"; document {PADDING}: padding" * padded}


def shortened(text: str) -> str:
    """An input in one line; if it is too long, its beginning, and where all of it is."""
    return text if len(text) <= LINE else f"{text[:LINE]} … (whole in report.json, and in the script)"


def _about_check(result: Data) -> dict[str, str]:
    about = {"rule": result["rule"], "why it matters": result["why"], "met before in": ", ".join(result["threads"])}
    return {name: text for name, text in about.items() if text}


def summary(subject: Data) -> str:
    """How many checks ended with each status, the worst first, and how many claims are not checked."""
    one = len(subject["not_checked"]) == 1
    words = {FINDING: "with findings", NOT_CHECKED: "claim not checked" if one else "claims not checked"}
    parts = [f"{count} {words.get(status, status)}" for status, count in _counts(subject).items()]
    return ", ".join(parts + [f"{len(subject['not_run'])} not run" for _ in subject["not_run"][:1]])


def shown(subject: Data, places: Mapping[str, str], quiet: bool = False) -> RenderableType:
    """A table of the checks, and all findings with the ``places`` of their scripts; ``quiet``: these alone."""
    parts: list[RenderableType] = []
    if not quiet:
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title=Text(subject["name"]))
        table.add_column("", justify="right")
        table.add_column("check")
        table.add_column("status", no_wrap=True)
        table.add_column("what was found, or why it does not apply", overflow="fold")
        table.add_column("s", justify="right")
        rows = [
            (str(r["number"]), r["name"], r["status"], r["found"], f"{r['seconds']:.1f}") for r in subject["results"]
        ]
        rows += [("", f"claim {c['said']}", NOT_CHECKED, c["reason"], "") for c in subject["not_checked"]]
        for number, name, status, found, seconds in rows:
            table.add_row(number, _plain(name), Text(status, style=STYLES[status]), _plain(found), seconds)
        parts.append(table)
    parts += [_shown_findings(subject, result, places) for result in subject["results"] if result["status"] == FINDING]
    said = [summary(subject), *([note] if (note := subject["settings"].get("note")) else [])]
    return Group(*parts, *([] if quiet else [_plain(f"{subject['name']}: {line}") for line in said]))


def _shown_findings(subject: Data, result: Data, places: Mapping[str, str]) -> RenderableType:
    """The findings of a check, then its rule and reason."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    findings = findings_of(result)
    same = len(findings) > 1 and len({found["remedy"] for _, found in findings}) == 1  # it is said once, after them
    last = {"what to do": findings[0][1]["remedy"]} if same and findings[0][1]["remedy"] else {}
    for trial, found in findings:
        grid.add_row("  trial", Text(trial["name"], style="bold"))
        where = places.get(found["file"], "--out DIR writes it")
        for name, text in {**_about_finding(found | {"remedy": ""} if same else found), "script": where}.items():
            grid.add_row("  " + name, _plain(text))
        grid.add_row()
    for name, text in (last | _about_check(result)).items():
        grid.add_row("  " + name, _plain(text))
    return Group(Text(f"{subject['name']}: {result['number']}. {result['name']}", style="bold red"), grid, Text(""))


def _subject(report: Report, folder: str) -> Data:
    subject = report.subject
    return {
        "name": report.name,
        "kind": type(subject).__name__,
        "build": _home(subject.build),
        "call": _home(subject.call),
        "claims": _jsonable(given(subject)),
        "settings": _jsonable(report.settings),
        "results": [_result(result, folder) for result in report.results],
        "not_checked": [_jsonable(vars(claim)) for claim in report.not_checked],
        "not_run": _missing(report),
    }


def _result(result: Result, folder: str) -> Data:
    entry = result.check
    trials = [
        {**vars(end), "finding": end.finding and _finding(end.finding, entry, trial, folder)}
        for trial, end in zip(entry.trials, result.trials, strict=True)
    ]
    data: Data = {name: getattr(entry, name) for name in ("number", "name", "rule", "why")}
    data |= {name: getattr(result, name) for name in ("status", "reason", "threads")}
    data |= {"seconds": round(result.seconds, 3), "trials": trials}
    return {**data, "found": _found(data)}


def _found(result: Data) -> str:
    """What a check found, or why it does not apply or did not finish, in a few words."""

    def joined(which: str, *statuses: str) -> dict[str, list[str]]:
        """The names of trials with one of these statuses, by what they came to."""
        said: dict[str, list[str]] = {}
        for trial in result["trials"]:
            what = trial["finding"]["came"] if which == "reason" and trial["finding"] else trial[which]
            if trial["status"] in statuses and what:
                said.setdefault(what, []).append(trial["name"])
        return said

    if said := joined("reason", FINDING, UNFINISHED):
        more = {what: f" and {len(names) - 1} more" * (len(names) > 1) for what, names in said.items()}
        return "; ".join(f"{names[0]}{more[what]}: {what}" for what, names in said.items())
    if result["status"] == NOT_APPLICABLE:
        return str(result["reason"])
    left_out = sum(trial["status"] == NOT_APPLICABLE for trial in result["trials"])
    cases = sum(trial["cases"] for trial in result["trials"])
    words = [f"{cases} case{'s' * (cases != 1)}"]
    words += [f"{left_out} of {len(result['trials'])} trials not applicable"] * (left_out > 0)
    return "; ".join(words + [f"{', '.join(names)}: {note}" for note, names in joined("note", PASSED).items()])


def _finding(finding: Finding, entry: Check, trial: Trial, folder: str) -> Data:
    batch = given(finding.batch)
    remedy, dtype = entry.remedy_of(trial), finding.values.get("autocast") or finding.values.get("dtype")
    if dtype is not None and finding.expected == AN_ANSWER:
        remedy = f"It failed in {dtype}, before anything was compared: mend the error, or raise a TypeError there."
    return {
        "expected": finding.expected,
        "came": finding.actual,
        "input": ", ".join(f"{name}={value!r}" for name, value in (batch | finding.values).items()),
        "batch": _jsonable(batch),
        "values": _jsonable(finding.values),
        "remedy": remedy,
        "file": folder + entry.script_of(trial.name),
        "script": finding.script,
    }


def _home(part: Any) -> str:
    return f"{part.__module__}.{part.__qualname__}"


def _missing(report: Report) -> list[int]:
    done = {result.check.number for result in report.results}
    return [number for number in report.settings.get("checks", ()) if number not in done]


def _counts(subject: Data) -> dict[str, int]:
    """How many checks ended with each status, the worst first; for "not checked", how many claims."""
    found = Counter(result["status"] for result in subject["results"])
    found[NOT_CHECKED] = len(subject["not_checked"])
    return {status: found[status] for status in STYLES if found[status]}


def _jsonable(value: Any) -> Any:
    """The value as JSON can hold it: anything else becomes text."""
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and value - value == 0):
        return value
    return _home(value) if hasattr(value, "__qualname__") else " ".join(str(value).split())


def _plain(text: str) -> Text:
    """Text for a terminal, with control characters escaped."""
    return Text(re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", lambda found: repr(found[0])[1:-1], text))


def _xml(text: str) -> str:
    """Text with the characters that XML cannot hold escaped as in Python."""
    allowed = r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
    return re.sub(allowed, lambda found: repr(found[0])[1:-1], text)
