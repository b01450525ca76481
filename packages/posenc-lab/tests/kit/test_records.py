import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from posenc_lab.compare.summary import check
from posenc_lab.kit.records import FILE, Records, read
from tests.compare.tiny_comparison import fill_disk

ABOUT: dict[str, Any] = {"fingerprint": "f", "configuration": {}, "text": {}, "versions": {}, "machine": {}}
RECORD = {"kind": "windows", "scheme": "rope", "seed": 0, "length": 64, "bits": [1.5, None], "tokens": 64, **ABOUT}
TIMES = {"step_ratio": 1, "low": 0.9, "high": 1.1, "step_seconds": 0.5}
SPEED = {"kind": "speed", "scheme": "rope", "seed": 0, "relative_to": "nope", **TIMES}


def test_a_record_is_on_the_disk_when_append_returns(tmp_path: Path) -> None:
    with Records(tmp_path / "new", check) as records:
        written = records.append(RECORD)
        assert read(tmp_path / "new", check) == [written]
        assert written.items() > RECORD.items()
        assert "time" in written
        assert records.has("windows", "rope", 0, 64)
        assert not records.has("windows", "rope", 0, 128)
        records.append({**SPEED, **ABOUT})
        assert records.has("speed", "rope", 0)
    with Records(tmp_path / "new", check) as records:
        assert records.has("windows", "rope", 0, 64)
        assert [record["kind"] for record in records] == ["windows", "speed"]
        assert not records.notice


@pytest.mark.parametrize("torn", [b'{"kind": "windows", "sch', b'{"kind": "x"}', b"\0\0\0\0\n", b'{"kind\0\0\0}\n'])
def test_a_torn_last_line_is_cut_off_with_a_notice(tmp_path: Path, torn: bytes) -> None:
    with Records(tmp_path, check) as records:
        records.append(RECORD)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole + torn)
    assert len(read(tmp_path, check)) == 1
    with Records(tmp_path, check) as records:
        said = f"{FILE}, line 2, was not written to its end and has been removed ({len(torn)} bytes)"
        assert said in records.notice
        assert (tmp_path / FILE).read_bytes() == whole
        records.append({**RECORD, "length": 128})
    assert [record["length"] for record in read(tmp_path, check)] == [64, 128]


WRITTEN = {**RECORD, "time": "2026-01-01T00:00:00+00:00"}


def without(name: str) -> str:
    return json.dumps({key: value for key, value in WRITTEN.items() if key != name})


def having(**changes: Any) -> str:
    return json.dumps({**WRITTEN, **changes})


DAMAGED = [
    ("nonsense", "Expecting value at column 1"),
    (b"\xff".decode("latin-1"), "'utf-8' codec can't decode"),
    ('{"kind": "windows"', "Expecting ',' delimiter at column 19"),
    ("[" * 100_000, "nested too deeply"),
    ("\0\0\0\0\n{", "Expecting value at column 1"),  # more than what was written last
    ("{}", "kind is missing"),
    (without("fingerprint"), "fingerprint is missing"),
    (without("length"), "length is missing"),
    (without("bits"), "bits is missing"),
    (having(kind=["windows"]), 'kind must be text, got ["windows"]'),
    (having(seed=True), "seed must be a whole number, got true"),
    (having(length="64"), 'length must be a whole number, got "64"'),
    (having(bits=1.5), "bits must be a list of finite numbers and nulls, got 1.5"),
    (having(bits=[1.5, "1.5"]), 'bits must be a list of finite numbers and nulls, got [1.5, "1.5"]'),
    (having(bits=["x" * 99]), 'bits must be a list of finite numbers and nulls, got ["' + "x" * 58 + "..."),
    (having(bits=[float("nan")]), "NaN is no number of JSON"),
    (having(bits=[1.5]).replace("1.5", "1e999"), "bits must be a list of finite numbers and nulls, got [Infinity]"),
    (having(versions="2.13"), 'versions must be an object, got "2.13"'),
    (having().replace('"tokens"', '"bits"'), "the name 'bits' comes twice"),
    (having(kind="training", diverged=["at step 1"]), 'diverged must be text, got ["at step 1"]'),
    (having(kind="training"), "learning_rate is missing"),
    (having(kind="training", learning_rate=1, multiplier="1"), 'multiplier must be a finite number or null, got "1"'),
    (having(kind="training", learning_rate=1, multiplier=None, tuned=1), "tuned must be true or false, got 1"),
    ('{"about": 1}', "about must be text, got 1"),
    (having(about="a"), "no line before it says what about 'a' is"),
    (having(), "it repeats the measurement of line 1"),
]


@pytest.mark.parametrize(("line", "reason"), DAMAGED, ids=[reason[:30] for _, reason in DAMAGED])
def test_a_line_that_is_not_a_record_is_an_error_that_names_it(tmp_path: Path, line: str, reason: str) -> None:
    after = having(length=256) + "\n"
    end = "" if line.endswith("{") else "\n"
    (tmp_path / FILE).write_text(f"{having()}\n{having(length=128)}\n{line}{end}{after}", encoding="latin-1")
    before = (tmp_path / FILE).read_bytes()
    message = re.escape(f"{FILE}, line 3, is not a record ({reason}")
    with pytest.raises(ValueError, match=message + ".*: mend or remove that line$"):
        Records(tmp_path, check)
    with pytest.raises(ValueError, match=message):
        read(tmp_path, check)
    assert (tmp_path / FILE).read_bytes() == before


@pytest.mark.skipif(os.name != "posix", reason="Windows has no pipes of that kind")
@pytest.mark.parametrize("kind", ["a pipe", "too large"])
@pytest.mark.parametrize("reads", [Records, read])
def test_what_no_tool_has_written_is_named(reads: Any, kind: str, tmp_path: Path) -> None:
    if kind == "a pipe":
        os.mkfifo(tmp_path / FILE)
    else:
        with (tmp_path / FILE).open("wb") as file:
            file.truncate(2**30 + 1)  # takes no space
    with pytest.raises(ValueError, match=f"{FILE} must be a file of at most 1073741824 bytes, got "):
        reads(tmp_path)


@pytest.mark.parametrize("takes", [0, 1, 40])
def test_a_record_that_the_disk_does_not_take_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes: int
) -> None:
    with Records(tmp_path, check) as records:
        records.append(RECORD)
        before = (tmp_path / FILE).read_bytes()
        with monkeypatch.context() as patched:
            fill_disk(patched, takes)
            with pytest.raises(OSError, match=r"No space left on device: '.*records.jsonl"):
                records.append({**RECORD, "length": 128})
        assert (tmp_path / FILE).read_bytes() == before
        assert not records.has("windows", "rope", 0, 128)
        records.append({**RECORD, "length": 256})  # there is space again
    assert [record["length"] for record in read(tmp_path, check)] == [64, 256]


@pytest.mark.parametrize("change", [b"", b"x"])
def test_nothing_is_added_to_a_file_that_something_else_changed(tmp_path: Path, change: bytes) -> None:
    with Records(tmp_path, check) as records:
        records.append(RECORD)
        changed = (tmp_path / FILE).read_bytes() + change
        if not change:  # another file in its place
            (tmp_path / FILE).unlink()
        (tmp_path / FILE).write_bytes(changed)
        with pytest.raises(
            OSError, match=r"records.jsonl was changed by something else during the run, so nothing is ad"
        ):
            records.append({**RECORD, "length": 128})
    assert (tmp_path / FILE).read_bytes() == changed


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with Records(tmp_path, check), pytest.raises(ValueError, match="is in use by another run"):
        Records(tmp_path, check)
    with Records(tmp_path, check):
        pass


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    with (
        Records(tmp_path, check) as records,
        pytest.raises(ValueError, match=r"^bits must be a list of finite numbers and nul"),
    ):
        records.append({**RECORD, "bits": [float("nan")]})
    assert read(tmp_path, check) == []
