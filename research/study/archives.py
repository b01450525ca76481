"""The records of the study: under version control as one archive for each text or puzzle, and unpacked into runs/study,
where they are read and added to. ``python -m study.archives`` packs what was added."""

import functools
import hashlib
import io
import lzma
import os
import tarfile
import tempfile
from pathlib import Path

from posenc.command.files import write_whole

ARCHIVES = Path(__file__).parent / "records"
RECORDS = Path(__file__).parents[2] / "runs" / "study"
STAMP = ".archive"  # in each folder: the digest of the archive that it was made of, or last packed into
MAX_ARCHIVE_BYTES = 2**28  # bytes of an archive, unpacked


@functools.cache
def unpack() -> None:
    """Unpacks each archive whose folder is not there. ValueError for a folder of another archive, which may hold
    records that were not packed."""
    for archive in sorted(ARCHIVES.glob("*.tar.xz")):
        folder = RECORDS / archive.name.removesuffix(".tar.xz")
        data = archive.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if folder.is_dir():
            if not (folder / STAMP).is_file() or (folder / STAMP).read_text() != digest:
                raise ValueError(f"{folder} must be of {archive}, got records of another: pack or delete that folder")
            continue
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:xz") as files:
            members = files.getmembers()
            if sum(member.size for member in members) > MAX_ARCHIVE_BYTES:
                raise ValueError(f"{archive} must hold at most {MAX_ARCHIVE_BYTES} bytes")
            RECORDS.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=RECORDS.parent) as made:
                files.extractall(made, members, filter="data")
                (Path(made) / STAMP).write_text(digest)
                _settle(Path(made), folder)


def _settle(made: Path, folder: Path) -> None:
    """Gives ``made`` the name ``folder``, unless another process was first."""
    try:
        os.rename(made, folder)
    except OSError:
        if not folder.is_dir():
            raise
    else:
        made.mkdir()  # which its owner removes


def pack() -> list[Path]:
    """Writes the archive of each folder in which something is new. The same records give the same bytes."""
    written = []
    for folder in sorted(path for path in RECORDS.iterdir() if path.is_dir()):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as files:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and path.name in ("config.toml", "records.jsonl"):
                    about = tarfile.TarInfo(path.relative_to(folder).as_posix())
                    about.size = path.stat().st_size
                    with path.open("rb") as stream:
                        files.addfile(about, stream)
        data = lzma.compress(buffer.getvalue(), preset=9)
        archive = ARCHIVES / f"{folder.name}.tar.xz"
        if not archive.is_file() or archive.read_bytes() != data:
            write_whole(archive, data)
            written.append(archive)
        write_whole(folder / STAMP, hashlib.sha256(data).hexdigest().encode())
    return written


if __name__ == "__main__":
    for path in pack():
        print(path)
