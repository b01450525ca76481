"""Reads a text and splits its bytes into training, tuning and test data.

Bytes are the tokens, so every text is readable and bits per byte compare across texts.

- **No leak.** Several files are split by file, in the order of a hash of their path; duplicate files are removed. Of a
  single file, the end is held out. So is the end of the largest file if whole files would leave too little room on a
  side; files that repeat that file or its end are then left out. Tuning text is split off from the rest in the same
  way. Evaluation windows that are mostly repeated in the other sides are left out (`repeated`).
- **No seams.** A window lies inside one file. In bytes joined from two files, a long context would look useless for
  reasons that have nothing to do with positions. Files shorter than a window are not used.
- **The same for all schemes.** Training windows depend only on seed and step, evaluation windows only on the text.
"""

import glob
import hashlib
import os
import sysconfig
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from posenc_lab.kit.files import digest_of

Bytes = NDArray[np.uint8]

HELD_OUT = 1 / 10  # of the text, or more where the evaluation needs it
MAX_HELD_OUT_SHARE = 1 / 3
HEAD_BYTES = 8192  # bytes of a file; a zero among them shows that it is binary
MAX_ENTROPY = 7.5  # of entropy per byte: Python's own sources have 4.7, random and compressed bytes nearly 8
BYTES_AT_A_TIME = 2**20  # bytes at a time
PIECE = 50  # bytes; equal sequences of this length are hardly chance

Least: TypeAlias = Sequence[tuple[int, int]]
"""The minimum (number of windows, bytes of a window) for training, evaluation and, optionally, tuning."""

# Excluded from Python's standard library: installed packages, and generated or repetitive files that would be on both
# sides of the split (tests from one template, character tables, generated topics).
NOT_TEXT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data", "__pycache__"}
)


@dataclass(frozen=True)
class Text:
    """One side of the split: the concatenated bytes of files, and the offsets where each begins and the last one
    ends."""

    data: Bytes
    bounds: NDArray[np.int64]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each file."""
        return np.diff(self.bounds)

    def room(self, size: int) -> int:
        """How many windows of ``size`` bytes there are side by side, each inside one file."""
        return int((self.sizes // size).sum())

    def draw(self, rng: np.random.Generator, count: int, size: int, step: int = 1) -> Bytes:
        """``count`` random windows (count, size), uniformly from all places inside files, ``step`` bytes apart."""
        places = np.maximum((self.sizes - size) // step + 1, 0)
        return self._windows(self._at(rng.integers(places.sum(), size=count), places, step), size)

    def spread(self, count: int, size: int) -> Bytes:
        """Up to ``count`` windows (windows, size) side by side, evenly spread over the whole text."""
        room = self.room(size)
        chosen = np.arange(min(count, room)) * room // max(min(count, room), 1)
        return self._windows(self._at(chosen, self.sizes // size, size), size)

    def _at(self, index: NDArray[np.int64], per_file: NDArray[np.int64], step: int) -> NDArray[np.int64]:
        """Where the windows numbered ``index`` begin, if file f has ``per_file[f]`` of them, ``step`` bytes apart."""
        ends = np.cumsum(per_file)
        file = np.searchsorted(ends, index, side="right")
        return self.bounds[file] + (index - (ends[file] - per_file[file])) * step

    def _windows(self, starts: NDArray[np.int64], size: int) -> Bytes:
        return self.data[starts[:, None] + np.arange(size)]


@dataclass(frozen=True)
class Corpus:
    """A split text. ``about`` describes it in one line; ``digest`` identifies its bytes and the split. ``tuning`` may
    be empty."""

    train: Text
    validation: Text
    tuning: Text
    about: str
    digest: str
    origins: tuple[tuple[str, int], ...] = ()
    """For each file of ``validation``, its path below the common folder, and the offset where its part begins."""


def load(text: Sequence[str] = (), *, held_out: int = 0, tuned: int = 0, least: Least = ((0, 1), (0, 1))) -> Corpus:
    """Reads and splits a text: files, folders or globs; by default the running Python's own standard library.

    A tenth is held out, or ``held_out`` bytes if that is more, but at most a third. Whole files are held out, or the
    end of the largest one if only that leaves room for ``least`` on both sides. Of the rest, ``tuned`` bytes are split
    off for tuning in the same way, at most a third of it.

    Raises ValueError for what is not text: a name that matches no file, a folder without files, an unreadable file,
    binary files, random bytes, or nothing to split.
    """
    paths = _files(text) if text else _standard_library()
    root = os.path.commonpath([path.parent for path in paths])
    contents: dict[bytes, str] = {}
    for path in paths:
        contents.setdefault(_read(path), path.relative_to(root).as_posix())
    contents.pop(b"", None)
    files = sorted(contents, key=lambda data: _hash(contents[data].encode()))
    total = sum(map(len, files))
    wanted = max(int(total * HELD_OUT), min(held_out, int(total * MAX_HELD_OUT_SHARE)))
    if not wanted:
        raise ValueError(f"text must be of some bytes to split, got {total} in {' '.join(text) or 'the library'}")
    _require_text(files, text)
    train, validation, how = _split(files, wanted, least[:2])
    tuning: list[bytes] = []
    if tuned:
        part = min(tuned, int(sum(map(len, train)) * MAX_HELD_OUT_SHARE))
        train, tuning, _ = _split(train, part, (least[0], least[-1]))
    sides = _text(train), _text(validation), _text(tuning)
    total = sum(len(side.data) for side in sides)
    where = " ".join(text) if text else "the standard library of this Python"
    count = "1 file" if len(files) == 1 else f"{len(files):,} files"
    about = f"{where}: {total:,} bytes in {count}, {len(sides[1].data):,} held out ({how})"
    if tuning:
        about += f", {len(sides[2].data):,} kept for tuning"
    digest = digest_of(b"".join(_hash(side.bounds.tobytes() + side.data.tobytes()) for side in sides))
    return Corpus(*sides, about, digest, origins=_origins(sides[1], contents))


def _origins(side: Text, contents: Mapping[bytes, str]) -> tuple[tuple[str, int], ...]:
    """The origins of the files of a held-out side, each of which is a whole file or the end of one."""
    found = []
    for begin, end in pairwise(side.bounds):
        data = side.data[begin:end].tobytes()
        whole = data if data in contents else next(file for file in contents if file.endswith(data))
        found.append((contents[whole], len(whole) - len(data)))
    return tuple(found)


def _split(files: list[bytes], wanted: int, least: Least) -> tuple[list[bytes], list[bytes], str]:
    """The remaining files in order, the held-out files, and a description of how they were chosen."""
    total = sum(map(len, files))
    if len(files) == 1:
        cut_at = _at_letter(files[0], total - wanted)
        return [files[0][:cut_at]], [files[0][cut_at:]], "its end"
    left: list[bytes] = []
    held: list[bytes] = []
    for data in files:
        there = sum(map(len, held))
        # Holding out one large file must not leave too little to train on.
        (held if there < wanted and there + len(data) <= total // 2 else left).append(data)
    if _fits((_text(left), _text(held)), least):
        return left, held, "whole files"
    largest = max(files, key=len, default=b"")
    end = _at_letter(largest, len(largest) - min(wanted, int(len(largest) * MAX_HELD_OUT_SHARE)))
    begin, held_end = largest[:end], largest[end:]
    # Files that are parts of it, or that contain its end, would be on both sides.
    others = [data for data in files if data not in largest and held_end not in data]
    cut = [*others, begin], [held_end]
    if not _fits((_text(cut[0]), _text(cut[1])), least):
        return left, held, "whole files"
    how = "the end of the largest file, as whole files leave too little room"
    if left_out := len(files) - 1 - len(others):
        how += f"; {left_out} that repeat it left out"
    return *cut, how


def _at_letter(data: bytes, at: int) -> int:
    """The beginning of the UTF-8 character at offset ``at``; ``at`` itself if the data is not UTF-8."""
    begin = at
    while begin > max(at - 4, 0) and data[begin] & 0xC0 == 0x80:
        begin -= 1
    return begin if data[begin] & 0xC0 != 0x80 else at


def repeated(windows: Bytes, elsewhere: Sequence[Text]) -> NDArray[np.float64]:
    """The share of each window's pieces of 50 bytes, at every 25th offset, that also occur in one of these texts."""
    starts = np.arange(0, windows.shape[1] - PIECE + 1, PIECE // 2)
    if not len(starts):
        return np.zeros(len(windows))
    pieces = windows[:, starts[:, None] + np.arange(PIECE)].reshape(-1, PIECE)
    names = _names(pieces.ravel())[::PIECE]
    known = np.unique(names)
    found = np.zeros(len(known), dtype=bool)
    step = 2**20
    for text in elsewhere:
        for begin in range(0, len(text.data) - PIECE + 1, step):
            there = _names(text.data[begin : begin + step + PIECE - 1])
            place = np.searchsorted(known, there).clip(max=len(known) - 1)
            found[place[known[place] == there]] = True
    return np.asarray(found[np.searchsorted(known, names)].reshape(len(windows), -1).mean(axis=1))


def _names(data: Bytes) -> NDArray[np.uint64]:
    """A rolling hash, modulo 2^64, of the 50 bytes at every offset.

    It is the sum of c(byte k) M^k over the bytes k, with random c: a difference of two prefix sums, times a power of
    the inverse of M.
    """
    rng = np.random.default_rng(50)
    codes = rng.integers(2**64, size=256, dtype=np.uint64)
    base = 6364136223846793005  # odd, so that it has an inverse
    inverse = pow(base, -1, 2**64)
    with np.errstate(over="ignore"):
        powers = np.cumprod(np.full(len(data), base, dtype=np.uint64))
        sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(codes[data] * powers)))
        back = np.cumprod(np.full(len(data) - PIECE + 1, inverse, dtype=np.uint64))
        return np.asarray((sums[PIECE:] - sums[:-PIECE]) * back)


def _fits(sides: Sequence[Text], least: Least) -> bool:
    return all(side.room(size) >= count for side, (count, size) in zip(sides, least, strict=True))


def require(corpus: Corpus, least: Least) -> None:
    """ValueError, with both numbers, unless each side has room for its ``least`` windows."""
    sides = (corpus.train, "training"), (corpus.validation, "evaluation"), (corpus.tuning, "tuning")
    for (side, name), (count, size) in zip(sides, least, strict=False):
        room = side.room(size)
        if room < count:
            raise ValueError(
                f"too little text: {name} needs {count} windows of {size:,} bytes, each inside one file, "
                f"{count * size:,} bytes in all; there are {room}, {room * size:,} bytes, "
                f"in the {len(side.data):,} bytes for {name} of {corpus.about}"
            )


def _files(text: Iterable[str]) -> list[Path]:
    """The distinct files of names, folders and globs, sorted by path."""
    found: set[Path] = set()
    for name in text:
        path = Path(name).expanduser()
        if path.is_file():
            there = [path]
        elif path.is_dir():
            there = _below(path)
        else:
            there = [p for p in map(Path, glob.glob(str(path), recursive=True)) if p.is_file()]
        if not there:
            if path.is_dir():
                raise ValueError(f"text must be of text files, got {name!r}, a folder without files")
            raise ValueError(f"text must be of files, folders or globs that match some, got {name!r}")
        new = [p for p in there if b"\0" not in _read(p, HEAD_BYTES)]
        if not new:
            count = "a binary file" if len(there) == 1 else f"{len(there):,} binary files"
            raise ValueError(
                f"text must be of text files, got {name!r}: {count}, with a zero byte among the first {HEAD_BYTES:,}"
            )
        found.update(p.resolve() for p in new)
    return sorted(found)


def _require_text(files: Sequence[bytes], names: Sequence[str]) -> None:
    """ValueError for bytes of which all values are about equally frequent, as no text has them."""
    counts = np.zeros(256, dtype=np.int64)
    for file in files:
        for start in range(0, len(file), BYTES_AT_A_TIME):  # np.bincount makes eight bytes of each
            counts += np.bincount(np.frombuffer(file[start : start + BYTES_AT_A_TIME], dtype=np.uint8), minlength=256)
    shares = counts[counts > 0] / counts.sum()
    bits = float(-(shares * np.log2(shares)).sum())
    if bits > MAX_ENTROPY:
        raise ValueError(
            f"text must be text, got {' '.join(names) or 'the library'}, whose bytes look random, compressed or "
            f"encrypted: {bits:.2f} bits per byte by their frequencies alone, where text has at most {MAX_ENTROPY:g}"
        )


def _below(folder: Path, suffix: str = "", skip: Set[str] = frozenset()) -> list[Path]:
    """The files below a folder, without hidden ones."""
    found: list[Path] = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in skip]
        found += [Path(parent, name) for name in files if not name.startswith(".") and name.endswith(suffix)]
    return sorted(path for path in found if path.is_file())


def _read(path: Path, most: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise ValueError(f"text must be of files that can be read, got {path}: {error.strerror}") from None


def _standard_library() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    # _sysconfigdata_* lists the paths of one machine.
    paths = [path for path in _below(root, ".py", NOT_TEXT) if not path.name.startswith("_sysconfigdata")]
    if not paths:
        raise ValueError(f"text must be given: this Python has no sources of its standard library in {root}")
    return paths


def _text(files: Sequence[bytes]) -> Text:
    bounds = np.cumsum([0, *map(len, files)], dtype=np.int64)
    return Text(np.frombuffer(b"".join(files), dtype=np.uint8), bounds)


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
