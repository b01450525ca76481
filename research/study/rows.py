"""Rows of a text that was packed into one file: batches, and the tests of models that were trained on them."""

import json
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import posenc
from posenc_lab.compare import data
from posenc_lab.compare.pieces import Sourced, sources
from posenc_lab.compare.text import fresh

PACKED = Path("build/study/sizes.npz")
PACKAGES = ("torch", "sympy", "scipy", "numpy", "matplotlib", "networkx")  # of this environment, beside texts.txt
LINES, DIGITS = 4, 8  # lines to retrieve from in a row; letters of a name, and digits of a number
LEAST = 8  # rows of a batch, and test windows


def pack(path: Path, text: Sequence[str], called: str, trained: int, longest: int, windows: int) -> None:
    """Writes a text, its test windows and the pieces that are put into them, compressed, into one file."""
    least = (LEAST, trained + 1), (LEAST, longest + 1)
    corpus = data.load(text, held_out=4 * windows * (longest + 1), least=least)
    tests, notice = fresh(corpus, windows, longest + 1)
    told = {"about": f"{called}: {corpus.about.rpartition(': ')[2]}", "notice": notice, "digest": corpus.digest}
    about = np.frombuffer(json.dumps(told).encode(), np.uint8)
    pieces = sources(tests, None, min(48, trained // 4))
    path.parent.mkdir(parents=True, exist_ok=True)
    train = {"train": corpus.train.data, "bounds": corpus.train.bounds}
    np.savez_compressed(path, about=about, windows=tests, pieces=pieces, **train)  # type: ignore[arg-type]
    print(f"{path}, {path.stat().st_size / 1e6:.1f} MB: {told['about']}; {notice}")


def installed(toy: bool) -> tuple[list[str], str]:
    """The Python files of texts.txt and of packages of this environment or, for a toy, those of posenc; their names."""
    if toy:
        return [f"{posenc.__path__[0]}/**/*.py"], "posenc"
    from study.texts import FOLDER, fetch

    fetch()
    there = [f"{place}/**/*.py" for name in PACKAGES for place in find_spec(name).submodule_search_locations]  # type: ignore[union-attr]
    called = ", ".join(["Django 5.2.8, SQLAlchemy 2.0.44", *(f"{name} {version(name)}" for name in PACKAGES)])
    return [f"{FOLDER}/python/**/*.py", *there], called


class Rows:
    """A packed text, and batches of it on a device."""

    def __init__(self, path: Path, device: torch.device) -> None:
        with np.load(path) as found:
            self.train = data.Text(found["train"], found["bounds"])
            self.windows, self.pieces = found["windows"], found["pieces"]
            self.about: dict[str, str] = json.loads(found["about"].tobytes())
        self.device = device

    def draw(self, count: int, size: int, seed: int, step: int) -> Tensor:
        """The batch of a step, the same for every scheme."""
        rows = torch.from_numpy(self.train.draw(np.random.default_rng((seed, step)), count, size))
        rows = rows.pin_memory() if self.device.type == "cuda" else rows
        return rows.to(self.device, non_blocking=True).long()


class Evaluation(Sourced):
    """The tests of `posenc_lab.compare.pieces`, in bfloat16, and retrieval: a row has lines ``name = number``, the one
    asked for at its beginning and the others evenly spread, and ends with that line again. ``right`` is the share of
    rows of which every digit is the most probable next byte, and ``digits`` that of digits."""

    def _measure(self, kind: str, length: int) -> dict[str, Any]:
        with torch.autocast(self.windows.device.type, torch.bfloat16):
            return self._retrieval(length) if kind == "retrieval" else super()._measure(kind, length)

    def _retrieval(self, length: int) -> dict[str, Any]:
        rng, rows = np.random.default_rng(length), self._texts[:, -length - 1 :].astype(np.int64)
        for row in rows:
            for n in range(LINES):
                words = bytes(rng.integers(97, 123, DIGITS).tolist()), bytes(rng.integers(48, 58, DIGITS).tolist())
                line = [*b"\n%b = %b\n" % words]
                begin = n * (length - 2 * len(line)) // LINES
                row[begin : begin + len(line)] = line
            row[1 - len(line) :] = row[: len(line) - 1]

        def right(part: Tensor) -> Tensor:
            return (self.model(part[:, :-1])[:, -DIGITS:].argmax(-1) == part[:, -DIGITS:]).double().cpu()

        found = self._run(right, torch.from_numpy(rows).to(self.windows.device), length).numpy()
        return {"right": float(found.all(1).mean()), "digits": float(found.mean())}
