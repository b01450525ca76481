import os
import stat
from pathlib import Path

import pytest

from posenc.command.files import require_writable, write_whole
from posenc_lab.kit.files import packaged


def test_through_a_link_the_file_it_leads_to_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    link.symlink_to(Path("folder") / "target")
    for data in (b"first", b"second"):  # where the target is missing, and where it is there
        require_writable(link)
        write_whole(link, data)
        assert link.is_symlink()
        assert target.read_bytes() == data
    assert {path.name for path in tmp_path.rglob("*")} == {"folder", "target", "link"}


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe, path = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    path.symlink_to("pipe")
    before = set(tmp_path.iterdir())
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        require_writable(path)
        write_whole(path, b"data")
        assert os.read(reader, 100) == b"data"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)
    assert set(tmp_path.iterdir()) == before


def test_whether_a_file_can_be_written_is_known_without_a_change(tmp_path: Path) -> None:
    there, stopped = tmp_path / "there", tmp_path / "new.writing"
    there.write_bytes(b"before")
    stopped.write_bytes(b"a part")
    for name in ("there", "new", "folder/new"):
        require_writable(tmp_path / name)
    assert (there.read_bytes(), stopped.read_bytes()) == (b"before", b"a part")
    assert {path.name for path in tmp_path.rglob("*")} == {"there", "new.writing", "folder"}
    for name, message in {"folder": "Is a directory", "there/new": "Not a directory", "n" * 250: "too long"}.items():
        with pytest.raises(OSError, match=f"{message}: '.*{name}'"):
            require_writable(tmp_path / name)


def test_a_damaged_file_of_a_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "__init__.py").touch()
    (tmp_path / "damaged" / "laws.json").write_text('{"rope": ')
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"^laws.json of damaged cannot be read: Expecting value at column 10$"):
        packaged("damaged", "laws.json")
