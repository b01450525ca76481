"""Runs the checks on published packages and writes field/report.md: ``python -m field.report``.

Every file of field/subjects is run in a process of its own, so that a crash or a hang ends one subject and no more.
What a process finds is repeated by the finding's own script in a fresh interpreter that cannot import posenc: what does
not come again there is listed as unconfirmed. Records are written to runs/field as they are made, and what has one,
made from the same code and versions, is not run again. The scripts of field/reproductions are run every time.
"""

import argparse
import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from field import faults, scripts
from field.page import FILES, PAGE, SIGNS, Data, findings, version_of, write

ROOT = Path(__file__).parent.parent
SECONDS_PER_CHECK = 30.0  # for each check
TIME_LIMIT_FACTOR = 14  # as many times that, for a subject with the scripts of its findings: then its process is ended


def main() -> int:
    """Runs what has no record yet, then writes the page, and the scripts of findings beside their records."""
    parser = argparse.ArgumentParser(prog="python -m field.report", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT.parent / "runs" / "field", help="folder of the records")
    parser.add_argument(
        "--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS_PER_CHECK, help="for each check (default: %(default)g)"
    )
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
        save_scripts(found, arguments.out / "scripts")
        confirmed = sum(one["confirmed"] for one in found)
        print(f"{len(records)} records, {confirmed} of {len(found)} findings confirmed: {PAGE.relative_to(ROOT)}")
    outcomes = faults.run(arguments.jobs)
    PAGE.write_text(faults.put(PAGE.read_text(), outcomes))
    shown = sum(outcome.fault is True for outcome in outcomes.values())
    print(f"{shown} of {len(outcomes)} scripts of field/reproductions show their fault")
    return 0


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
            ended = _watch(process, records, TIME_LIMIT_FACTOR * seconds)
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
    from posenc_check import check
    from posenc_check.report import as_data

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


def save_scripts(found: Iterable[Data], folder: Path) -> None:
    """The findings' own scripts, in a folder for each subject, as `posenc check --out` names them."""
    shutil.rmtree(folder, ignore_errors=True)
    for one in found:
        path = folder / one["record"]["file"] / one["record"]["name"] / one["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(one["script"])


def _key(file: str) -> str:
    """What a record was made from: the code of the subjects and of the checks, and the versions of the packages."""
    import posenc_check as conformance

    own = sorted(Path(conformance.__file__).parent.rglob("*.py"))
    digest = hashlib.sha256()
    for path in (ROOT / "field" / "subjects" / f"{file}.py", *own):
        digest.update(path.read_bytes())
    for package in (FILES[file], "torch"):
        digest.update(version_of(package).encode())
    return digest.hexdigest()[:16]


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


if __name__ == "__main__":
    raise SystemExit(main())
