"""``posenc compare`` killed, interrupted, out of disk space and fed with damaged files, in processes of its own.

Whatever happens, every finished record stays, and the same command ends with the records of a run that nothing met.
`make check` runs all that starts processes, which takes longer than the tests themselves.
"""

import itertools
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenc_lab.kit.records import FILE, read
from tests.compare.nursery import Ended, Nursery, Trouble
from tests.compare.small import untimed, write_text

SMALL = [
    *("--schemes", "nope,learned", "--train-length", "8", "--test-lengths", "4,8,16", "--steps", "3"),
    *("--batch-size", "2", "--windows", "8", "--layers", "1", "--dim", "2", "--heads", "1"),
]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


@pytest.fixture(scope="module")
def whole(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing met, and the text of all runs."""
    folder = tmp_path_factory.mktemp("whole")
    write_text(folder / "text")
    ended = nursery.run(command(folder, folder / "out"))
    assert (ended.code, ended.err.count("error")) == (0, 0)
    assert len(read(folder / "out")) == 26
    return folder


def command(whole: Path, out: Path) -> list[str]:
    return ["compare", "--text", str(whole / "text"), "--out", str(out), *SMALL]


def lines(out: Path) -> list[bytes]:
    """The lines of the records that are written to their end."""
    path = out / FILE
    return path.read_bytes().splitlines(keepends=True)[: path.read_bytes().count(b"\n")] if path.exists() else []


def assert_same(out: Path, whole: Path) -> None:
    """The records of a run that nothing met, and nothing half-written or half-trained beside them."""
    assert untimed(read(out)) == untimed(read(whole / "out"))
    assert [
        path.name for path in out.rglob("*") if path.suffix == ".writing" or path.parent.name == "checkpoints"
    ] == []


def error(ended: Ended) -> str:
    """The one line that says what went wrong."""
    line = ended.err.splitlines()[-1]
    assert line.startswith("posenc: error: "), ended.err
    assert "Traceback" not in ended.err
    return line.removeprefix("posenc: error: ")


# The first moment, and how much further on the next one is. Two of them are an interrupt, and share the moments.
MOMENTS = {"kill": (1, 3), "full": (1, 4), "twice": (3, 6)}


@pytest.mark.more
@pytest.mark.parametrize("what", MOMENTS)
def test_stopped_at_anything_it_does_to_a_file(nursery: Nursery, whole: Path, tmp_path: Path, what: str) -> None:
    """Again and again, a little further on each time, so that every kind of moment is met: half of a configuration, a
    checkpoint or a record is written, or all of it and not yet known to be on the disk, or not yet in its place."""
    for at in itertools.count(*MOMENTS[what]):
        before = lines(tmp_path)
        ended = nursery.run(command(whole, tmp_path), Trouble(at, what))
        after = lines(tmp_path)
        assert after[: len(before)] == before
        if ended.code == 0:
            break
        measured = sum(b'"kind": ' in line for line in after)  # beside the line that says what all of them share
        assert len(read(tmp_path)) == measured
        if what == "kill":
            assert ended.code == -signal.SIGKILL
            continue
        assert ended.code == 1
        assert b"".join(after) == (tmp_path / FILE).read_bytes()  # what failed left nothing behind
        assert error(ended).startswith("interrupted: " if what != "full" else f"{tmp_path}/")
        assert ("No space left on device: " in error(ended)) == (what == "full")
        assert error(ended).endswith(f": {measured} records are kept in {tmp_path}; the same command resumes")
    assert at > 10
    assert_same(tmp_path, whole)


@pytest.mark.more
def test_two_runs_do_not_mix_and_one_takes_over_from_one_that_was_killed(
    nursery: Nursery, whole: Path, tmp_path: Path
) -> None:
    first = nursery.start(command(whole, tmp_path), Trouble(40, "stop"))
    assert nursery.wait(first).code == -signal.SIGSTOP
    before = lines(tmp_path)
    assert before
    held = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    second = nursery.run([*command(whole, tmp_path), "--schemes", "alibi"])
    assert second.code == 2
    assert error(second).startswith(f"{tmp_path} is in use by another run: wait for it, or give another folder")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == held
    os.kill(first, signal.SIGKILL)
    assert nursery.wait(first).code == -signal.SIGKILL
    assert nursery.run(command(whole, tmp_path)).code == 0
    assert lines(tmp_path)[: len(before)] == before
    assert_same(tmp_path, whole)


ANOTHER = "is not of this comparison "
DAMAGED = [  # the file, the line of it, what stands there, what then stands there, and what is said
    (FILE, 1, b"}", b"", "is not a record (Expecting "),
    (FILE, 26, b'"kind"', b'"kin"', "is not a record (kind is missing): mend or remove that line"),
    (FILE, 9, b'"seed": 0', b'"seed": "0"', 'is not a record (seed must be a whole number, got "0")'),
    (FILE, 9, b'"kind": "', b'"kind": "x', ANOTHER + "(its kind is 'x"),
    (FILE, 2, b'"fingerprint": "', b'"fingerprint": "x', ANOTHER + "(fingerprint 'x"),
    (FILE, 2, b'"digest"', b'"digests"', ANOTHER + "(text_digest None there and '"),
    (
        FILE,
        2,
        b'"steps": 3',
        b'"steps": 0',
        ANOTHER + "(its configuration: steps must be a whole number of at ",
    ),
    (FILE, 2, b'"steps": 3', b'"steps": 4', ANOTHER + "(steps 4 there and 3 here): remove that line"),
]


@pytest.mark.more
@pytest.mark.parametrize(("name", "number", "there", "then", "message"), DAMAGED)
def test_a_damaged_file_is_named_with_the_line(
    nursery: Nursery, whole: Path, tmp_path: Path, name: str, number: int, there: bytes, then: bytes, message: str
) -> None:
    for each in ("config.toml", FILE):
        content = (whole / "out" / each).read_bytes().split(b"\n")
        if each == name:
            at = 0 if there in content[0] and name == FILE else number - 1  # what all records share stands first
            assert there in content[at]
            content[at] = content[at].replace(there, then)
        (tmp_path / each).write_bytes(b"\n".join(content))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    says = rf"{re.escape(str(tmp_path / name))}, line {number}[,:] {re.escape(message)}"
    ended = nursery.run(command(whole, tmp_path))
    assert (ended.code, bool(re.match(says, error(ended)))) == (2, True), ended.err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def assert_like(out: Path, whole: Path) -> None:
    """The records of one process, to rounding."""
    for found, expected in zip(untimed(read(out)), untimed(read(whole / "out")), strict=True):
        assert found["machine"].pop("processes", 2) == 2
        numbers, others = numbers_of(found), numbers_of(expected)
        # Three steps of training in float32, whose results of about 8 bits are told to the sixth digit.
        assert numbers == pytest.approx(others, abs=64 * 8 * 2**-23 + 1e-6)


def numbers_of(value: Any) -> Any:
    """Nested records as one mapping."""
    if isinstance(value, list | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {(name, *of): x for name, item in items for of, x in numbers_of(item).items()}
    return {(): value}


@pytest.mark.more
@pytest.mark.parametrize(("world", "batch", "stop"), [(3, 5, 3), (3, 2, 0)])
def test_several_processes_train_as_one(nursery: Nursery, tmp_path: Path, world: int, batch: int, stop: int) -> None:
    """Rows of different numbers of targets, which do not divide, and fewer rows than processes."""
    function = "tests.compare.several:learn"
    (tmp_path / "one").mkdir()
    assert nursery.run([function, str(tmp_path / "one"), str(batch)]).code == 0
    several = nursery.start_several(world, [function, str(tmp_path), str(batch), str(stop)])
    for ended in map(nursery.wait, several):
        assert ended.code == 0, ended.err
    expected, found = np.load(tmp_path / "one" / "learned.npz"), np.load(tmp_path / "learned.npz")
    assert set(found) == set(expected)
    for name in expected:
        # Float64 keeps 16 digits, of which a few steps lose some; wrong weights of rows would change the second.
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-12, err_msg=name)


# Which process, and what the first one is about to do: save a checkpoint in a training, or write the record of a test.
@pytest.mark.more
@pytest.mark.parametrize(
    ("which", "number", "at"),
    [(0, signal.SIGKILL, 60), (1, signal.SIGTERM, 5)],
)
def test_one_of_two_processes_is_ended(
    nursery: Nursery, whole: Path, tmp_path: Path, which: int, number: signal.Signals, at: int
) -> None:
    """The other one ends too; started again, they go on."""
    several = nursery.start_several(2, command(whole, tmp_path), Trouble(at, "stop"))
    assert nursery.wait(several[0]).code == -signal.SIGSTOP
    before = lines(tmp_path)
    os.kill(several[which], number)
    os.kill(several[0], signal.SIGCONT)
    ended = [nursery.wait(process) for process in several]
    if number == signal.SIGKILL:
        assert (ended[which].code, ended[1 - which].code) == (-number, 1), ended
    else:
        assert error(ended[0]).startswith("interrupted: ")
    after = lines(tmp_path)
    assert after[: len(before)] == before
    for again in map(nursery.wait, nursery.start_several(2, command(whole, tmp_path))):
        assert again.code == 0, again.err
    assert lines(tmp_path)[: len(after)] == after
    assert_like(tmp_path, whole)


# What loads code along with data, or is made to.
LOADER = re.compile(
    r"^\s*(import|from) (c?pickle|cloudpickle|dill|joblib|marshal|shelve)\b"
    r"|\b(torch|np|numpy)\.load\(|from (torch|numpy) import .*\bload\b",
    re.M,
)


def test_nothing_in_posenc_loads_a_pickle() -> None:
    """But tensors that a check has written to memory itself."""
    sources = {path: path.read_text("utf-8") for path in Path(__file__).parents[3].glob("*/src/**/*.py")}
    assert len(sources) > 50
    found = {path.name for path, source in sources.items() if LOADER.search(source)}
    assert found == {"modules.py", "world.py"}
