"""Runs the checks on published packages and writes docs/field-report.md: ``python -m field.report``.

Every file of field/subjects is run in a process of its own, so that a crash or a hang ends one subject and no more.
What a process finds is repeated by the finding's own script in a fresh interpreter that cannot import posenc: what does
not come again there is listed as unconfirmed. Records are written to runs/field as they are made, and what has one,
made from the same code and versions, is not run again. The scripts of field/faults.py are run every time.
"""

import argparse
import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from field import faults, scripts
from field.kinds import WRONG, Note
from field.notes import NOT_RUN, NOTES

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "field-report.md"
SCRIPTS = ROOT / "docs" / "field-scripts"

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
SECONDS = 30.0  # for each check
PATIENCE = 14  # as many times that, for a subject with the scripts of its findings: then its process is ended
SIGNS = {"passed": "✓", "finding": "✗", "not applicable": "·", "not checked": "!", "unfinished": "?"}
Data = dict[str, Any]


def main() -> int:
    """Runs what has no record yet, then writes the page and its scripts."""
    parser = argparse.ArgumentParser(prog="python -m field.report", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "field", help="folder of the records")
    parser.add_argument(
        "--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each check (default: %(default)g)")
    parser.add_argument("--only", nargs="*", choices=FILES, help="files of field/subjects (default: all)")
    parser.add_argument(
        "--page", action="store_true", help="write the page from the records there are, and run no checks"
    )
    parser.add_argument("--faults", action="store_true", help="run no checks, and leave the rest of the page as it is")
    parser.add_argument("--worker", nargs=2, metavar=("FILE", "RECORDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        _work(arguments.worker[0], Path(arguments.worker[1]), arguments.seconds)
        return 0
    arguments.out.mkdir(parents=True, exist_ok=True)
    files = arguments.only or list(FILES)
    if not (arguments.page or arguments.faults):
        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(lambda file: _run(file, arguments.out, arguments.seconds), files))
    if not arguments.faults:
        records = [record for file in FILES for record in _read(arguments.out / f"{file}.jsonl")]
        write(records)
        found = [one for record in records for one in findings(record)]
        confirmed = sum(one["confirmed"] for one in found)
        print(f"{len(records)} records, {confirmed} of {len(found)} findings confirmed: {PAGE.relative_to(ROOT)}")
    outcomes = faults.run(SCRIPTS, arguments.jobs)
    PAGE.write_text(faults.put(PAGE.read_text(), outcomes, SCRIPTS.name))
    print(f"{sum(outcome.fault is True for outcome in outcomes.values())} of {len(outcomes)} faults are there")
    return 0


# -- running -----------------------------------------------------------------------------------------------------------


def _run(file: str, out: Path, seconds: float) -> None:
    """A process for the file, and another one for what is left of it after one that was ended."""
    records = out / f"{file}.jsonl"
    key = _key(file)
    kept = [record for record in _read(records) if record["key"] == key and "failed" not in record]
    records.write_text("".join(json.dumps(record) + "\n" for record in kept))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    while True:
        command = [sys.executable, "-m", "field.report", "--seconds", str(seconds), "--worker", file, str(records)]
        errors = out / f"{file}.err"
        with errors.open("w") as stream, subprocess.Popen(command, cwd=ROOT, env=environment, stderr=stream) as process:
            ended = _watch(process, records, PATIENCE * seconds)
        begun = out / f"{file}.begun"
        if process.returncode == 0:
            begun.unlink(missing_ok=True)
            return
        name = begun.read_text().strip() if begun.exists() else ""
        last = (errors.read_text().strip().splitlines() or [""])[-1]
        _add(records, {"key": key, "file": file, "name": name, "title": name or file, "failed": f"{ended} {last}"})
        if not name:
            return
        begun.unlink()


def _watch(process: subprocess.Popen[bytes], records: Path, patience: float) -> str:
    """Waits for the process as long as its records grow; says so where they did not, or what it ended with."""
    size, waited = -1, 0.0  # not by the clock: this may be stopped with it, and go on
    while process.poll() is None:
        time.sleep(0.5)
        waited += 0.5
        if records.stat().st_size != size:
            size, waited = records.stat().st_size, 0.0
        if waited > patience:
            process.kill()
            process.wait()
            return f"no end after {patience:g} seconds"
    return f"its process ended with {process.returncode}"


def _work(file: str, records: Path, seconds: float) -> None:
    """The subjects of a file that have no record yet."""
    module = importlib.import_module(f"field.subjects.{file}")
    names = {id(value): name for name, value in vars(module).items()}
    done = {record["name"] for record in _read(records)}
    for title, subject in module.SUBJECTS:
        name = names[id(subject)]
        if name not in done:
            begun, busy = time.monotonic(), _busy()
            records.with_suffix(".begun").write_text(name)
            record = {**_checked(subject, file, name, seconds), "key": _key(file), "file": file, "name": name}
            took, busy = time.monotonic() - begun, _busy() - busy
            _add(records, {**record, "title": title, "seconds": round(took, 1), "busy": round(busy, 1)})
            print(f"{file}:{name}  {_in_short(record)}  {took:.0f} s, busy for {busy:.0f}", flush=True)


def _busy() -> float:
    """The seconds for which this process and those that it has ended have had a processor."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _checked(subject: Any, file: str, name: str, seconds: float) -> Data:
    """What the checks say of one subject, every finding repeated by its script."""
    from posenc.tools.check import check
    from posenc.tools.check.report import as_data

    try:
        report = check(subject, name=f"{file.removeprefix('of_')}, {name}", seconds=seconds)
    except ValueError as error:  # it does not run
        return {"failed": " ".join(str(error).split())}
    data = as_data([report])["subjects"][0]
    for result in data["results"]:
        for trial in result["trials"]:
            if trial["finding"]:
                trial["finding"]["confirmed"] = confirmed(trial["finding"]["script"], trial["finding"]["came"])
    return data


def confirmed(script: str, came: str) -> bool:
    """Whether a script exits with 1 and says the same, in a fresh interpreter that cannot import posenc."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "finding.py"
        path.write_text(script)
        outcome = scripts.run(path)
    return outcome.fault is True and outcome.came.split() == came.split()


def _key(file: str) -> str:
    """What a record was made from: the code of the subjects and of the checks, and the versions of the packages."""
    from posenc.tools import check as conformance

    own = sorted(Path(conformance.__file__).parent.rglob("*.py"))
    digest = hashlib.sha256()
    for path in (ROOT / "field" / "subjects" / f"{file}.py", *own):
        digest.update(path.read_bytes())
    for package in (FILES[file], "torch"):
        digest.update(_version(package).encode())
    return digest.hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _read(records: Path) -> list[Data]:
    """The records of a file, without a last line that was cut off."""
    found = []
    for line in records.read_text().splitlines() if records.exists() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def _add(records: Path, record: Data) -> None:
    with records.open("a") as stream:
        stream.write(json.dumps(record) + "\n")


def _in_short(record: Data) -> str:
    if "failed" in record:
        return record["failed"]
    return " ".join(f"{r['number']}{SIGNS[r['status']]}" for r in record["results"])


# -- the page ----------------------------------------------------------------------------------------------------------


def findings(record: Data) -> Iterator[Data]:
    """The findings of a record, each with where it stands."""
    for result in record.get("results", ()):
        for trial in result["trials"]:
            if trial["finding"]:
                yield {**trial["finding"], "record": record, "number": result["number"], "trial": trial["name"]}


def write(records: Sequence[Data]) -> None:
    """The page, and a script for each mistake, of the finding with the smallest input."""
    found = [one for record in records for one in findings(record)]
    sure = [one for one in found if one["confirmed"]]
    noted: dict[Note, list[Data]] = {note: [] for note in NOTES}
    unknown = []
    for one in sure:
        note = note_of(one)
        (unknown if note is None else noted[note]).append(one)
    seen = {note: sorted(ones, key=lambda one: len(json.dumps(one["batch"]))) for note, ones in noted.items() if ones}
    places = _scripts([*(ones for note, ones in seen.items() if note.kind == WRONG), *([one] for one in unknown)])
    lines = [
        *_opening(records),
        *_table(records),
        *_notes(seen, places),
        *_others("Findings that no one has looked into yet", unknown, places),
        *_others("Not confirmed", [one for one in found if not one["confirmed"]], {}),
        *_not_run(records),
        *_not_checked(records),
        *_reasons(records),
    ]
    PAGE.write_text("\n".join(lines) + "\n")


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
        "`posenc check` was run on the positional encodings of published packages, at pinned versions, called as their "
        "documentation or their own code calls them, and held to what they claim. `make field` writes this page. The "
        "packages are installed from [field/requirements.txt](../field/requirements.txt), without what they depend "
        f"on. posenc {posenc.__version__}, torch {torch.__version__}, Python {platform.python_version()}, on the CPU.",
        "",
        "Every finding below was repeated by a script in an interpreter of its own that cannot import posenc. "
        "A finding says "
        "that a rule does not hold, and no more: whether that is a mistake, a limitation that is known, or what was "
        "meant stands with each. More was found by reading the code beside the checks, and has scripts too.",
        "",
        faults.IN_ALL,
        "",
        "## Subjects and checks",
        "",
        "✓ passed, **✗** a mistake, ○ found a limitation, something meant or housekeeping, · does not apply (why "
        "stands at the end), ! not checked, though it is a matter of the subject (why, too), ? did not finish in time, "
        "or was not confirmed.",
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
            lines.append(f"| **{package} {_version(package)}** |" + " |" * len(numbers))
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


def _notes(seen: Mapping[Note, Sequence[Data]], places: Mapping[int, str]) -> list[str]:
    lines = ["## Findings", ""]
    for note, ones in seen.items():
        packages = dict.fromkeys(FILES[one["record"]["file"]] for one in ones)
        versions = ", ".join(f"{package} {_version(package)}" for package in packages)
        lines += [f"### {note.title}", "", f"**{note.kind.capitalize()}**, {versions}. {note.text}", ""]
        if note.where:
            lines += [f"In the code: {note.where}.", ""]
        lines += _shown(ones[0], places.get(id(ones[0]), ""))
        others = [f"{one['record']['title']} ({one['number']}, {one['trial']})" for one in ones[1:]]
        if others:
            lines += [f"<details><summary>and {len(others)} more</summary>", "", "; ".join(others) + ".", ""]
            lines += ["</details>", ""]
    return lines


def _shown(one: Mapping[str, Any], place: str) -> list[str]:
    """A finding: what was expected and came, on what, and how to see it again."""
    record = one["record"]
    lines = [
        f"- {record['title']}, check {one['number']}, “{one['trial']}”: expected {_quoted(one['expected'])}, came "
        f"{_quoted(one['came'])}",
        f"- on `{_short(one['input'])}`",
        f"- `posenc check field/subjects/{record['file']}.py:{record['name']} --checks {one['number']}`"
        + (f", or [{Path(place).name}]({place})" if place else ""),
        "",
    ]
    return lines


def _quoted(text: str) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)  # colours
    return "`" + " ".join(_short(plain).replace("`", "'").split()) + "`"


def _short(text: str, most: int = 280) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def _others(heading: str, ones: Sequence[Data], places: Mapping[int, str]) -> list[str]:
    if not ones:
        return []
    lines = [f"## {heading}", ""]
    for one in ones:
        lines += [f"**{FILES[one['record']['file']]}**", "", *_shown(one, places.get(id(one), ""))]
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
    lines = ["## Not checked", "", "No trial could try these claims, or they ought to be made and are not.", ""]
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


def _scripts(groups: Sequence[Sequence[Data]]) -> dict[int, str]:
    """Writes the script of the first finding of each group, and gives its place by the id() of the finding."""
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    for old in {*SCRIPTS.glob("*.py")} - {SCRIPTS / fault.script for fault in faults.FAULTS}:
        old.unlink()
    places, counts = {}, dict.fromkeys(FILES.values(), 0)
    for ones in groups:
        package = FILES[ones[0]["record"]["file"]]
        counts[package] += 1
        path = SCRIPTS / f"{package}-{counts[package]}.py"
        path.write_text(ones[0]["script"])
        places[id(ones[0])] = f"{SCRIPTS.name}/{path.name}"
    return places


if __name__ == "__main__":
    raise SystemExit(main())
