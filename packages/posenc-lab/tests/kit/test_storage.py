"""Files at addresses of fsspec: in memory, and the local file system by its address."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from posenc_lab.kit import storage

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(params=["memory", "local"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "local":
        yield f"file://{tmp_path}/runs"
        return
    yield "memory://runs"
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


def test_a_file_is_written_once_and_whole(base: str) -> None:
    address = f"{base}/a/b/records.jsonl"
    assert storage.get(address) is None
    storage.put_once(address, b"first")
    storage.put_once(address, b"second")
    assert storage.get(address) == b"first"
    assert storage.find(base, "*/*/*") == [address.replace("memory://", "memory:///")]  # and nothing half written


def test_nothing_is_there_until_it_is_whole(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files, _ = fsspec.url_to_fs(base)

    def interrupted(self: object, path: str, there: str, **_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(files), "mv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        storage.put_once(f"{base}/records.jsonl", b"whole")
    assert storage.find(base, "*") == []


def test_a_folder_replaces_what_is_there(base: str, tmp_path: Path) -> None:
    folder = tmp_path / "report"
    (folder / "figures").mkdir(parents=True)
    for text in ("old", "new"):
        (folder / "report.html").write_text(text)
        (folder / "figures" / "a.png").write_text("picture")
        storage.put_folder(folder, base)
    assert storage.get(f"{base}/report.html") == b"new"
    assert storage.get(f"{base}/figures/a.png") == b"picture"


def test_an_address_that_nothing_reads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="nowhere://a must be an address of fsspec: Protocol not known: nowhere"):
        storage.get("nowhere://a")

    def missing(address: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(ValueError, match="s3://a cannot be opened: Install s3fs to access S3"):
        storage.get("s3://a")


def test_a_path_is_no_address() -> None:
    assert [storage.is_address(out) for out in ("runs/a", "/a:b", Path("c"), "s3://a")] == [False, False, False, True]
