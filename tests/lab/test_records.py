import json
from pathlib import Path

import pytest

from posenc.lab.records import FILE, Records, read

RECORD = {"kind": "windows", "scheme": "rope", "seed": 0, "length": 64, "bits": [1.5]}


def test_a_record_is_on_the_disk_when_append_returns(tmp_path: Path) -> None:
    with Records(tmp_path / "new") as records:
        written = records.append(RECORD)
        assert read(tmp_path / "new") == [written]
        assert written.items() > RECORD.items()
        assert "time" in written
        assert records.has("windows", "rope", 0, 64)
        assert not records.has("windows", "rope", 0, 128)
        records.append({"kind": "training", "scheme": "rope", "seed": 0})
        assert records.has("training", "rope", 0)
    with Records(tmp_path / "new") as records:
        assert records.has("windows", "rope", 0, 64)
        assert [record["kind"] for record in records] == ["windows", "training"]
        assert not records.notice


@pytest.mark.parametrize("torn", [b'{"kind": "windows", "sch', b'{"kind": "x"}', b"\0\0\0\0\n", b"[1]\n"])
def test_a_torn_last_line_is_cut_off_with_a_notice(tmp_path: Path, torn: bytes) -> None:
    with Records(tmp_path) as records:
        records.append(RECORD)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole + torn)
    assert len(read(tmp_path)) == 1
    with Records(tmp_path) as records:
        assert f"the last line was not complete and has been removed ({len(torn)} bytes)" in records.notice
        records.append({**RECORD, "length": 128})
    assert [record["length"] for record in read(tmp_path)] == [64, 128]


def test_a_damaged_line_elsewhere_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(f"{json.dumps(RECORD)}\nnonsense\n{json.dumps(RECORD)}\n")
    with pytest.raises(ValueError, match=r"records.jsonl, line 2, is not a record"):
        Records(tmp_path)
    with pytest.raises(ValueError, match=r"records.jsonl, line 2, is not a record"):
        read(tmp_path)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with Records(tmp_path), pytest.raises(ValueError, match="is in use by another run"):
        Records(tmp_path)
    with Records(tmp_path):
        pass


def test_nothing_there(tmp_path: Path) -> None:
    assert read(tmp_path / "nowhere") == []


def test_what_json_cannot_say_is_not_written(tmp_path: Path) -> None:
    with Records(tmp_path) as records, pytest.raises(ValueError, match="JSON"):
        records.append({**RECORD, "bits": [float("nan")]})
    assert read(tmp_path) == []
