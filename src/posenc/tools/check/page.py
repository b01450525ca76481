"""The HTML page of ``posenc check``: a table of the checks, each finding with its script, and all trials."""

from posenc.tools.check.report import Data, counted, findings_of, shortened
from posenc.tools.check.run import FINDING, NOT_APPLICABLE, NOT_CHECKED, PASSED, UNFINISHED
from posenc.tools.kit import page
from posenc.tools.kit.page import code, joined, sign, strong
from posenc.tools.kit.report import Cell, Code, Column, Facts, Items, Paragraph, Part, Report, Section, Table, Warn

SIGNS = {FINDING: "✗", UNFINISHED: "?", NOT_CHECKED: "!", PASSED: "✓", NOT_APPLICABLE: "–"}
LEAD = (
    "The result of each check of this implementation: passed, not applicable (with the reason), or a finding, with a "
    "script that reproduces it without posenc; and the claims that could not be checked."
)


def as_html(data: Data) -> str:
    """The data as a self-contained page."""
    subjects = data["subjects"]
    return page.html(
        Report(
            title=f"posenc check: {', '.join(subject['name'] for subject in subjects)}",
            heading="posenc check",
            lead=[LEAD],
            parts=[_subject(number, subject) for number, subject in enumerate(subjects, 1)],
            environment=[*data["made_with"].items()],
        )
    )


def _subject(number: int, subject: Data) -> Section:
    claims = [joined(", ", code(f"{name}={value}")) for name, value in subject["claims"].items()]
    made = joined(f"{subject['kind']}, built by ", code(subject["build"]), ", called by ", code(subject["call"]))
    parts: list[Part] = [
        Paragraph(joined(made, *claims, "."), faint=True),
        Items([Cell(_signed(status, words), mark=_mark(status)) for status, words in counted(subject)], "counts"),
    ]
    if subject["not_run"]:
        parts.append(Warn("Interrupted.", f"Not run: {', '.join(map(str, subject['not_run']))}."))
    parts.append(_checks(number, subject))
    found = [_finding(number, result) for result in subject["results"] if result["status"] == FINDING]
    if found:
        parts.append(Section("Findings", found))
    parts.append(Section("Trials", [Items([_tried(result) for result in subject["results"]])]))
    settings = [
        (name, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for name, value in subject["settings"].items()
    ]
    return Section(subject["name"], [*parts, Section("Settings", [Facts(settings)])], id=f"subject-{number}")


def _checks(number: int, subject: Data) -> Table:
    header: list[str | Column] = [
        Column("no."),
        "check",
        "status",
        "finding, or why it does not apply",
        Column("seconds"),
    ]
    table = Table("", "", header, id=f"checks-{number}", head=1)
    for result in subject["results"]:
        status = result["status"]
        link = f"found-{number}-{result['number']}" if status == FINDING else ""
        name, state = Cell(result["name"], link=link), Cell(_signed(status, status), mark=_mark(status))
        table.rows.append([str(result["number"]), name, state, result["found"], f"{result['seconds']:.1f}"])
    for claim in subject["not_checked"]:
        state = Cell(_signed(NOT_CHECKED, NOT_CHECKED), mark=_mark(NOT_CHECKED))
        table.rows.append(["", joined("claim ", code(claim["said"])), state, claim["reason"], ""])
    return table


def _finding(number: int, result: Data) -> Section:
    """What a check found, with a script for each trial that found something."""
    parts: list[Part] = [Paragraph(f"{result['rule']} {result['why']}")]
    if result["threads"]:
        parts.append(Paragraph(f"Seen before in {', '.join(result['threads'])}.", faint=True))
    for trial, found in findings_of(result):
        facts = [("expected", found["expected"]), ("actual", found["came"])]
        facts += [("what to do", found["remedy"])] if found["remedy"] else []
        facts += [("smallest input", code(shortened(found["input"])))]
        title = f"A script that reproduces it without posenc: {found['file']}"
        parts.append(Section(trial["name"], [Facts(facts), Section(title, [Code(found["script"])], folded=True)]))
    name = f"{result['number']}. {result['name']}"
    return Section(name, parts, id=f"found-{number}-{result['number']}", mark="framed")


def _tried(result: Data) -> Cell:
    """A check, with how each of its trials ended."""
    ends = []
    for trial in result["trials"]:
        cases = f", {trial['cases']} case{'s' * (trial['cases'] != 1)}" if trial["cases"] else ""
        ends.append(f"{trial['name']}: {trial['status']}" + (f": {trial['reason']}" if trial["reason"] else cases))
    return Cell(joined(strong(f"{result['number']}. {result['name']}"), f": {result['rule']}"), ends)


def _signed(status: str, words: str) -> str:
    return joined(sign(SIGNS[status]), f" {words}")


def _mark(status: str) -> str:
    return status.replace(" ", "-")
