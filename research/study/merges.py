"""``python -m study.merges``: the text of the study in tokens of several bytes, for ``posenc compare --text``.

This is byte-pair encoding in its first form (Gage 1994, "A new algorithm for data compression"): the most frequent pair
of neighbours becomes a byte value that the text does not use, again and again. So tokens are still bytes, and what
reads a text reads this one. The table is learned on the whole text, test text too, and no pair crosses two files. Files
with bytes beyond ASCII, which use up the values, are left out.

What a report calls a byte is then a token: its bits per byte, over the bytes of a token that are printed here, are bits
per byte of the text, and its lengths, times that, are bytes.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FOLDER = Path("build/study")
TABLE = "merges.json"
Tokens = NDArray[np.uint8]


def merge(data: Tokens, bounds: NDArray[np.int64], pair: tuple[int, int], new: int) -> tuple[Tokens, NDArray[np.int64]]:
    """The text and the bounds of its files, with a token in the place of each pair inside a file, from the left."""
    at = np.flatnonzero((data[:-1] == pair[0]) & (data[1:] == pair[1]))
    at = at[~np.isin(at + 1, bounds)]
    if pair[0] == pair[1]:  # of three alike, the first two
        first = np.concatenate(([True], np.diff(at) != 1)) if len(at) else np.zeros(0, bool)
        at = at[(np.arange(len(at)) - np.maximum.accumulate(np.where(first, np.arange(len(at)), 0))) % 2 == 0]
    made = data.copy()
    made[at] = new
    return np.delete(made, at + 1), bounds - np.searchsorted(at + 1, bounds)


def learn(
    data: Tokens, bounds: NDArray[np.int64], count: int
) -> tuple[list[tuple[int, int, int]], Tokens, NDArray[np.int64]]:
    """The merges (left, right, new) in their order, and the text and bounds after them. ValueError for more of them
    than there are byte values that the text does not use; 0, which marks a file as binary, is none of them."""
    free = np.setdiff1d(np.arange(1, 256), data).tolist()
    if not 1 <= count <= len(free):
        raise ValueError(f"merges must be 1..{len(free)}, the byte values that the text does not use, got {count}")
    table: list[tuple[int, int, int]] = []
    for new in free[:count]:
        inside = np.ones(max(len(data) - 1, 0), bool)
        inside[bounds[1:-1][(bounds[1:-1] > 0) & (bounds[1:-1] < len(data))] - 1] = False
        counts = np.bincount((data[:-1].astype(np.int64) * 256 + data[1:])[inside], minlength=2**16)
        left, right = divmod(int(counts.argmax()), 256)
        data, bounds = merge(data, bounds, (left, right), new)
        table.append((left, right, new))
    return table, data, bounds


def expanded(tokens: bytes, table: Sequence[tuple[int, int, int]]) -> bytes:
    """The text of tokens."""
    for left, right, new in reversed(table):
        tokens = tokens.replace(bytes([new]), bytes([left, right]))
    return tokens


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m study.merges", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--text", type=Path, default=FOLDER / "python", help="a folder (default: build/study/python)")
    parser.add_argument("--out", type=Path, default=FOLDER / "merged", help="default: build/study/merged")
    parser.add_argument("--merges", type=int, default=96, help="tokens beside single bytes (default: 96)")
    of = parser.parse_args(words)
    every = {path: path.read_bytes() for path in sorted(of.text.rglob("*")) if path.is_file()}
    files = [path for path, text in every.items() if text and text.isascii()]
    texts = [every[path] for path in files]
    bounds = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    table, data, ends = learn(np.frombuffer(b"".join(texts), np.uint8), bounds, of.merges)
    begun = of.out.with_name(f"{of.out.name}.begun")
    shutil.rmtree(begun, ignore_errors=True)
    for path, begin, end in zip(files, ends[:-1], ends[1:], strict=True):
        place = begun / path.relative_to(of.text)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data[begin:end].tobytes())
    (begun / TABLE).write_text(json.dumps(table))
    shutil.rmtree(of.out, ignore_errors=True)
    begun.rename(of.out)
    size = f"{bounds[-1]:,} bytes in {len(data):,} tokens"
    print(f"{of.out}: {size}, {bounds[-1] / len(data):.3f} bytes a token; {len(every) - len(files)} files left out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
