"""``posenc check``: tests an implementation of positional encoding. torch is imported only when it runs."""

import argparse
import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from posenc.command.options import failed, refused

if TYPE_CHECKING:
    from rich.console import Console

    from posenc_check.run import Report
    from posenc_check.subjects import Subject

DTYPES = ("float64", "float32")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "check",
        help="test an implementation of positional encoding",
        description="Tests any PyTorch implementation of positional encoding. Each check passes, does not apply (with "
        "the reason), or reports a finding: the smallest input that shows it, and a script that reproduces it without "
        "posenc. The exit code is 1 if something was found, a check did not finish, or a claim could not be checked; "
        "and 2 if nothing could be checked, or the subject ended the process or hung.",
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="module:name or path/to/file.py:name of a posenc_check subject, of several, of a function that "
        "returns them, or of a function or class that returns an nn.Module; or hf:PATH_OR_NAME, a Hugging Face model "
        "in a folder or on the hub",
    )
    parser.add_argument("--checks", type=_numbers, metavar="N,N-N", help="numbers of checks (default: all)")
    parser.add_argument("--lengths", type=_numbers, metavar="N,N", help="sequence lengths (default: 1,3,8,23)")
    parser.add_argument("--longest", type=int, metavar="N", help="maximum sequence length (default: 1025)")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of inputs and cases (default: 0)")
    parser.add_argument("--seconds", type=float, metavar="S", help="time limit of each check (default: 60)")
    parser.add_argument("--dtype", choices=DTYPES, help="default: the subject's, or float32 if that does not run")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: the subject's)")
    module = parser.add_argument_group("claims about an nn.Module, if TARGET returns one")
    module.add_argument("--dim", type=int, metavar="N", help="it takes vectors (rows, tokens, N)")
    module.add_argument("--causal", action="store_true", default=None, help="no token sees later tokens")
    kind = module.add_mutually_exclusive_group()
    kind.add_argument(
        "--relative", action="store_true", default=None, help="shifting all positions does not change the output"
    )
    kind.add_argument(
        "--absolute", action="store_false", dest="relative", default=None, help="shifting all positions changes it"
    )
    module.add_argument("--like", metavar="SCHEME", help="it is this scheme of the catalog: t5, t5(num_buckets=16)")
    module.add_argument("--max-positions", type=int, metavar="N", help="it has positions 0 to N - 1")
    written = parser.add_argument_group("output")
    written.add_argument(
        "--out", type=Path, metavar="DIR", help="folder for report.json, report.xml (JUnit) and scripts/"
    )
    written.add_argument("-q", "--quiet", action="store_true", help="print only findings, and no progress")


def _numbers(text: str) -> list[int]:
    """The numbers of "1,7-9", sorted, without duplicates."""
    found: set[int] = set()
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    except ValueError:
        found = set()
    if not found:
        raise argparse.ArgumentTypeError(f"must be numbers and ranges such as 1,7-9, got {text!r}")
    return sorted(found)


def run(arguments: argparse.Namespace) -> int:
    """Runs the checks. The exit codes are those of docs/conformance.md."""
    from posenc_check.watch import run_watched

    return run_watched(lambda: _check(arguments))


def _check(arguments: argparse.Namespace) -> int:

    from posenc.command.progress import Progress, for_stream
    from posenc.encoding.claims import ClaimError
    from posenc_check import report, watch  # a missing package must fail before minutes of checking
    from posenc_check.run import (
        PREPARATION_FACTOR,
        SECONDS_PER_CHECK,
        Interrupted,
        check,
        prepare_in_time,
        require_seconds,
    )
    from posenc_check.state import restored_state

    given = {name: getattr(arguments, name) for name in ("checks", "lengths", "longest", "seed", "seconds")}
    settings = {name: value for name, value in given.items() if value is not None}
    progress = Progress() if arguments.quiet else for_stream(sys.stderr)
    reports: list[Report] = []
    interrupted = False
    try:
        if arguments.out is not None:
            _require_place(arguments.out)
        seconds = require_seconds(settings.get("seconds", SECONDS_PER_CHECK))
        watch.record_stage(f"importing {arguments.target}", PREPARATION_FACTOR * seconds)
        with restored_state(with_torch=False):
            subjects = _subjects(arguments)
        for name, subject in subjects.items():  # all of them, before minutes are spent on the first
            try:
                prepare_in_time(subject, seconds, name)
            except ClaimError:
                raise
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        for name, subject in subjects.items():
            reports.append(check(subject, name=name, progress=progress, **settings))
    except ClaimError as error:
        return failed(str(error))
    except ValueError as error:
        return refused(error, "check")
    except Interrupted as stop:
        reports.append(stop.report)
        interrupted = True

    watch.record_stage("writing the report", watch.MAX_TIMER_SECONDS)
    data = report.as_data(reports)
    console = stdout()
    results = [result for subject in data["subjects"] for result in subject["results"]]
    scripts = {found["file"]: found["script"] for result in results for _, found in report.findings_of(result)}
    folder = arguments.out
    places = {} if folder is None else {file: str(folder / "scripts" / file) for file in scripts}
    for subject in data["subjects"]:
        console.print(report.shown(subject, places, arguments.quiet), highlight=False)
    unwritten = None
    if folder is not None:
        texts = {Path(place): scripts[file] for file, place in places.items()}
        texts |= {folder / "report.json": report.as_json(data), folder / "report.xml": report.as_junit(data)}
        try:
            _write(folder, texts)
        except OSError as error:
            unwritten = failed(f"{error.filename}: {error.strerror}")
        else:
            if not arguments.quiet:
                console.print(f"The report: {folder / 'report.json'}", highlight=False, soft_wrap=True)
    if interrupted:
        return failed("interrupted: this is what was found so far")
    if unwritten or not data["ok"]:
        return 1
    empty = [subject["name"] for subject in data["subjects"] if report.nothing_checked(subject)]
    return failed(f"nothing was checked: no check applies to {', '.join(empty)}", code=2) if empty else 0


def _subjects(arguments: argparse.Namespace) -> Mapping[str, "Subject"]:
    """The subjects of the target, in the given dtype and on the given device."""
    from dataclasses import replace

    import torch

    from posenc_check.targets import subjects_of

    claims = {name: getattr(arguments, name) for name in ("causal", "relative", "like", "max_positions")}
    claims = {name: value for name, value in claims.items() if value is not None}
    asked = {"dtype": arguments.dtype and getattr(torch, arguments.dtype), "device": arguments.device}
    changed = {name: value for name, value in asked.items() if value is not None}
    found = subjects_of(arguments.target, arguments.dim, **claims)
    return {name: replace(subject, **changed) for name, subject in found.items()}


def _require_place(folder: Path) -> None:
    """ValueError if no report could be written into the folder, so that it fails before minutes of checking."""
    from posenc.command.files import require_writable

    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out must be a folder, got {str(folder)!r}")
    try:
        require_writable(folder / "report.json")
    except OSError as error:
        said = f"{error.filename}: {error.strerror}"
        raise ValueError(f"--out must be a path that can be written, got {str(folder)!r}: {said}") from None


def _write(folder: Path, texts: Mapping[Path, str]) -> None:
    """Writes these files, and removes the scripts that an earlier run wrote."""
    from posenc.command.files import write_whole
    from posenc_check.standalone import MARK

    for path in folder.glob("scripts/**/*.py"):
        if path.read_text(encoding="utf-8", errors="replace").startswith(MARK):
            path.unlink()
    for path, text in texts.items():
        write_whole(path, text.encode("utf-8", "backslashreplace"))


def stdout() -> "Console":
    """The console that reports are printed to, with escapes for what it cannot show, such as half of a character."""
    from rich.console import Console

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    return Console(width=None if sys.stdout.isatty() else 120)  # a file has no width
