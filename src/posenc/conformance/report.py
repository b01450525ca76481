"""What reports say, as plain data, and the data as JSON, as JUnit's XML, as a page and for a terminal."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from posenc.conformance.run import FINDING, NOT_APPLICABLE, PASSED, UNFINISHED, Finding, Report, Result
from posenc.conformance.standalone import given
from posenc.workbench.machine import versions
from posenc.workbench.page import page

VERSION = 1  # of the data
# The worst first.
STYLES = {FINDING: "bold red", UNFINISHED: "bold yellow", PASSED: "green", NOT_APPLICABLE: "dim"}
SIGNS = {FINDING: "✗", UNFINISHED: "?", PASSED: "✓", NOT_APPLICABLE: "–"}
Data = dict[str, Any]


def as_data(reports: Sequence[Report]) -> Data:
    """Everything that the reports say, made of what JSON has.

    Two runs with the same subjects and settings give the same, but for ``seconds``.
    """
    return {
        "version": VERSION,
        "made_with": {name: versions()[name] for name in ("posenc", "torch", "python")},
        "ok": all(report.ok and not _missing(report) for report in reports),
        "subjects": [
            _subject(report, f"{number}-{slug(report.name)}/" if len(reports) > 1 else "")
            for number, report in enumerate(reports, 1)
        ],
    }


def nothing_checked(subject: Data) -> bool:
    """Whether not one check could take the subject."""
    return all(result["status"] == NOT_APPLICABLE for result in subject["results"]) and not subject["not_run"]


def as_json(data: Data) -> str:
    """The data as a file."""
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def as_junit(data: Data) -> str:
    """JUnit's XML: a suite for each subject, a case for each check. Not applicable is skipped, unfinished an error."""
    root = ElementTree.Element("testsuites", name="posenc check")

    def element(parent: ElementTree.Element, tag: str, **named: str) -> ElementTree.Element:
        return ElementTree.SubElement(parent, tag, {name: _xml(text) for name, text in named.items()})

    for subject in data["subjects"]:
        name, counts, not_run = subject["name"], _counts(subject), subject["not_run"]
        suite = element(
            root,
            "testsuite",
            name=name,
            tests=str(len(subject["results"]) + len(not_run)),
            failures=str(counts.get(FINDING, 0)),
            errors=str(counts.get(UNFINISHED, 0) + len(not_run)),
            skipped=str(counts.get(NOT_APPLICABLE, 0)),
            time=f"{sum(result['seconds'] for result in subject['results']):.3f}",
        )
        for result in subject["results"]:
            heading = f"{result['number']}. {result['name']}"
            case = element(suite, "testcase", classname=name, name=heading, time=f"{result['seconds']:.3f}")
            for trial, found in findings_of(result):
                message = f"{trial['name']}: expected {found['expected']}, came {found['came']}"
                element(case, "failure", type="finding", message=message).text = _xml(finding_text(result, trial))
            if result["status"] == UNFINISHED:
                element(case, "error", type=UNFINISHED, message=result["found"])
            elif result["status"] == NOT_APPLICABLE:
                element(case, "skipped", message=result["reason"])
        for number in not_run:
            case = element(suite, "testcase", classname=name, name=f"{number}.")
            element(case, "error", type=UNFINISHED, message="not run: interrupted")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def as_html(data: Data) -> str:
    """One HTML file that needs nothing else: a table of the checks, every finding with its script, and what was tried
    or why it was not."""
    subjects = [{**subject, "counts": _counts(subject)} for subject in data["subjects"]]
    return page("posenc.conformance", "check.html.j2", data=data, subjects=subjects, signs=SIGNS)


def findings_of(result: Data) -> list[tuple[Data, Data]]:
    """The trials of a check that found something, each with what it found."""
    return [(trial, trial["finding"]) for trial in result["trials"] if trial["finding"] is not None]


def finding_text(result: Data, trial: Data) -> str:
    """A finding as plain text, with its script."""
    lines = {**_about_finding(trial["finding"]), **_about_check(result)}
    said = [f"{name}: {text}" for name, text in lines.items()]
    head = f"{result['number']}. {result['name']}, {trial['name']}"
    return "\n".join([head, *said, "", "A script that repeats it without posenc:", "", trial["finding"]["script"]])


def _about_finding(found: Data) -> dict[str, str]:
    return {"expected": found["expected"], "came": found["came"], "smallest input": found["input"]}


def _about_check(result: Data) -> dict[str, str]:
    about = {"rule": result["rule"], "why it matters": result["why"], "met before in": ", ".join(result["threads"])}
    return {name: text for name, text in about.items() if text}


def summary(subject: Data) -> str:
    """How many checks ended how."""
    words = {FINDING: "with findings"}
    parts = [f"{count} {words.get(status, status)}" for status, count in _counts(subject).items()]
    return ", ".join(parts + [f"{len(subject['not_run'])} not run" for _ in subject["not_run"][:1]])


def shown(subject: Data, places: Mapping[str, str], quiet: bool = False) -> RenderableType:
    """A table of the checks and all findings, for a terminal; ``quiet``: the findings alone.

    ``places`` says where each script was written, by its name.
    """
    parts: list[RenderableType] = []
    if not quiet:
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title=Text(subject["name"]))
        table.add_column("", justify="right")
        table.add_column("check")
        table.add_column("status", no_wrap=True)
        table.add_column("what was found, or why it does not apply", overflow="fold")
        table.add_column("s", justify="right")
        for result in subject["results"]:
            status = Text(result["status"], style=STYLES[result["status"]])
            seconds = f"{result['seconds']:.1f}"
            table.add_row(str(result["number"]), Text(result["name"]), status, _plain(result["found"]), seconds)
        parts.append(table)
    parts += [_shown_findings(subject, result, places) for result in subject["results"] if result["status"] == FINDING]
    said = [summary(subject), *([note] if (note := subject["settings"].get("note")) else [])]
    return Group(*parts, *([] if quiet else [_plain(f"{subject['name']}: {line}") for line in said]))


def _shown_findings(subject: Data, result: Data, places: Mapping[str, str]) -> RenderableType:
    """What a check found, then what is to be said of the check."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for trial, found in findings_of(result):
        grid.add_row("  trial", Text(trial["name"], style="bold"))
        where = places.get(found["file"], "--out DIR writes it")
        for name, text in {**_about_finding(found), "script": where}.items():
            grid.add_row("  " + name, _plain(text))
        grid.add_row()
    for name, text in _about_check(result).items():
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
        "not_run": _missing(report),
    }


def _result(result: Result, folder: str) -> Data:
    entry = result.check
    files = [f"{folder}{entry.number}-{slug(trial.name)}.py" for trial in result.trials]
    data: Data = {
        **{name: getattr(entry, name) for name in ("number", "name", "rule", "why")},
        "status": result.status,
        "reason": result.reason,
        "seconds": round(result.seconds, 3),
        "threads": result.threads,
        "trials": [
            {**vars(trial), "finding": trial.finding and _finding(trial.finding, file)}
            for trial, file in zip(result.trials, files, strict=True)
        ],
    }
    return {**data, "found": _found(data)}


def _found(result: Data) -> str:
    """In a few words, what a check found, or why it does not apply or did not finish."""
    said: dict[str, list[str]] = {}
    for trial in result["trials"]:
        if trial["status"] in (FINDING, UNFINISHED):
            what = trial["finding"]["came"] if trial["finding"] else trial["reason"]
            said.setdefault(what, []).append(trial["name"])
    if said:
        more = {what: f" and {len(names) - 1} more" * (len(names) > 1) for what, names in said.items()}
        return "; ".join(f"{names[0]}{more[what]}: {what}" for what, names in said.items())
    if result["status"] == NOT_APPLICABLE:
        return str(result["reason"])
    left_out = sum(trial["status"] == NOT_APPLICABLE for trial in result["trials"])
    cases = sum(trial["cases"] for trial in result["trials"])
    words = [f"{cases} case{'s' * (cases != 1)}"]
    if left_out:
        words.append(f"{left_out} of {len(result['trials'])} trials not applicable")
    noted: dict[str, list[str]] = {}
    for trial in result["trials"]:
        if trial["note"]:
            noted.setdefault(trial["note"], []).append(trial["name"])
    return "; ".join(words + [f"{', '.join(names)}: {note}" for note, names in noted.items()])


def _finding(finding: Finding, file: str) -> Data:
    batch = given(finding.batch)
    return {
        "expected": finding.expected,
        "came": finding.came,
        "input": ", ".join(f"{name}={value!r}" for name, value in (batch | finding.values).items()),
        "batch": _jsonable(batch),
        "values": _jsonable(finding.values),
        "file": file,
        "script": finding.script,
    }


def slug(text: str) -> str:
    """The words of a text, for a name of a file."""
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))


def _home(part: Any) -> str:
    return f"{part.__module__}.{part.__qualname__}"


def _missing(report: Report) -> list[int]:
    done = {result.check.number for result in report.results}
    return [number for number in report.settings.get("checks", ()) if number not in done]


def _counts(subject: Data) -> dict[str, int]:
    """How many checks ended how, the worst first."""
    found = Counter(result["status"] for result in subject["results"])
    return {status: found[status] for status in STYLES if found[status]}


def _jsonable(value: Any) -> Any:
    """The value as JSON has it: what JSON has not becomes text."""
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and value - value == 0):
        return value
    return _home(value) if callable(value) else str(value)


def _plain(text: str) -> Text:
    """Text for a terminal, with nothing in it that a terminal would obey."""
    return Text(re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", lambda found: repr(found[0])[1:-1], text))


def _xml(text: str) -> str:
    """Text without the characters that XML cannot hold, which become what Python writes for them."""
    allowed = r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
    return re.sub(allowed, lambda found: repr(found[0])[1:-1], text)
