"""Defines puzzles: rows of synthetic text, a prompt and its answer, that require distant characters.

In natural text the last few words largely determine the next, so the loss depends little on distant tokens. Here it
depends on them entirely.

A decoder is trained on rows of every length up to the training length, drawn uniformly, with a loss on the characters
of the answer only. It is tested at one length at a time, by *exact match*: a row counts as right only if the whole
answer is. One forward pass over the right answer decides that: greedy decoding gives the whole answer if and only if
the most likely character is the right one at every place.

A hash of its characters assigns a row to training, tuning or testing, so no row is in two of them, however few rows
there are.
"""

import hashlib
import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.data import Bytes
from posenc_lab.compare.task import Kind, Loaded, Measures, Task, Tick, listed
from posenc_lab.kit.files import digest_of

ASKED = 128  # added to the characters of answers
PARTS = ("testing", "tuning", *["training"] * 6)  # the use of each eighth of all rows
TEST_STREAM = 2**31  # above all training seeds
DRAWS = 20  # attempts per test row to find different ones


class Puzzle(Task):
    """Rows of ASCII to be completed. Each puzzle defines its rows in ``pieces``, and has the texts of its report."""

    defaults: ClassVar = {
        "schemes": ("nope", "learned", "sinusoidal", "rope", "alibi", "t5"),
        "train_length": 20,
        "steps": 800,
        "layers": 2,
        "dim": 64,
        "batch_size": 64,
        "learning_rate": 3e-3,
        "windows": 256,
    }
    multiples: ClassVar[tuple[float, ...]] = (1, 1.25, 1.5, 2)
    unit = "bits per character"
    characters = 128
    kinds: ClassVar = {"accuracy": Kind("accuracy", {"length": int, "accuracy": list[float], "examples": int})}
    score = "accuracy"
    solved: ClassVar[float] = 0.95  # the mean accuracy from which a training has solved it
    title: ClassVar[str]
    axis: ClassVar[str]  # of lengths
    how_to_read: ClassVar[tuple[str, ...]]
    not_concluded: ClassVar[tuple[str, ...]]
    shortest: ClassVar[int] = 1  # in training
    least: ClassVar[int] = 4  # the shortest length of a configuration, at which some rows are for testing

    @abstractmethod
    def pieces(self, rng: np.random.Generator, length: int) -> Sequence[str]:
        """A random row: prompt and answer, alternating. All rows of a length have the same number of characters."""

    def check(self, config: CompareConfig) -> None:
        """`ConfigError` for lengths that have too few rows."""
        for name, lengths in (("train_length", (config.train_length,)), ("test_lengths", config.test_lengths)):
            config.require(name, min(lengths) >= self.least, f"at least {self.least} {self.lengths}")

    def tokens(self, config: CompareConfig) -> int:
        return self._width(config.train_length) - 1  # the last character is only predicted

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """The mean cross-entropy over the characters of the answer."""
        logits = model(batch[:, :-1] % ASKED)
        told = torch.where(batch < ASKED, -1, batch - ASKED)[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1).float(), told.flatten(), ignore_index=-1)

    def targets(self, batch: Tensor) -> int:
        """The characters of answers: rows have different numbers of them."""
        return int((batch >= ASKED).sum())

    def plan(self, lengths: Sequence[int], train_length: int) -> list[tuple[str, int]]:
        return [("accuracy", length) for length in lengths]

    def load(self, config: CompareConfig) -> Loaded:
        """``windows`` test rows of each length."""
        tests = {length: self.tests(length, config.windows) for length in config.test_lengths}
        fewer = (f"{len(rows)} of {length}" for length, rows in tests.items() if len(rows) < config.windows)
        return Loaded(
            partial(self.draw, "training"),
            partial(self.draw, "tuning"),
            lambda model, device, tick: _Completed(model, tests, device, tick),
            sum(rows.size for rows in tests.values()),
            f"made up: {self.called}; {config.windows:,} test rows of each length, and no training draws them",
            digest_of(b"".join(rows.tobytes() for rows in tests.values())),
            f"different test rows: {words}" if (words := listed(fewer)) else "",
        )

    def draw(self, part: str, rng: np.random.Generator, count: int, size: int) -> Bytes:
        """``count`` rows of a part, of lengths below ``size``, padded with zeros at the end."""
        lengths = (int(rng.integers(self.shortest, size)) for _ in itertools.count())
        rows = np.zeros((count, self._width(size - 1)), dtype=np.uint8)
        for filled, row in zip(rows, self._rows(part, rng, lengths), strict=False):
            filled[: len(row)] = row
        return rows

    def tests(self, length: int, count: int) -> Bytes:
        """``count`` distinct test rows of one length, or about as many as exist: duplicates are not independent."""
        rng = np.random.default_rng((TEST_STREAM, length))
        found: dict[bytes, Bytes] = {}
        for row in itertools.islice(self._rows("testing", rng, itertools.repeat(length)), DRAWS * count):
            found.setdefault(row.tobytes(), row)
            if len(found) == count:
                break
        return np.stack(list(found.values()))

    def _rows(self, part: str, rng: np.random.Generator, lengths: Iterable[int]) -> Iterator[Bytes]:
        """A random row of each length, if it belongs to the part."""
        rows = (row_of(self.pieces(rng, length)) for length in lengths)
        return (row for row in rows if part_of(row) == part)

    def _width(self, length: int) -> int:
        return sum(map(len, self.pieces(np.random.default_rng(0), length)))


def row_of(pieces: Sequence[str]) -> Bytes:
    """The characters of all pieces; `ASKED` is added to those of the answers, every second piece.

    >>> row_of(["ab=", "b"]).tolist()
    [97, 98, 61, 226]
    """
    given = itertools.cycle((0, ASKED))
    return np.array(
        [ord(c) + asked for piece, asked in zip(pieces, given, strict=False) for c in piece], dtype=np.uint8
    )


def part_of(row: Bytes) -> str:
    """Whether a row is for training, tuning or testing."""
    return PARTS[hashlib.sha256(row.tobytes()).digest()[0] % len(PARTS)]


def some_of(characters: str, count: int, rng: np.random.Generator, *, again: bool = True) -> str:
    """Random characters, with replacement if ``again``."""
    return "".join(characters[n] for n in rng.choice(len(characters), size=count, replace=again))


class _Completed(Measures):
    """Measures the share of right rows: ``accuracy`` of each, 0 or 1, and ``examples``, one in each."""

    def __init__(self, model: nn.Module, tests: Mapping[int, Bytes], device: torch.device, tick: Tick) -> None:
        super().__init__(model, tick)
        self._tests, self._device = tests, device

    def _measure(self, kind: str, length: int) -> dict[str, Any]:
        rows = torch.from_numpy(self._tests[length].astype(np.int64)).to(self._device)
        return {"accuracy": self._run(self._as_told, rows, rows.size(1) - 1).double().tolist(), "examples": 1}

    def _as_told(self, rows: Tensor) -> Tensor:
        """The rows in which the most likely character is right at every place of the answer."""
        likeliest = self.model(rows[:, :-1] % ASKED).argmax(-1)
        return ((likeliest + ASKED == rows[:, 1:]) | (rows[:, 1:] < ASKED)).all(1)
