"""A puzzle: rows of synthetic text, a prompt and its answer, that require distant characters.

A decoder is trained on rows of every length up to the training length, drawn uniformly, with a loss on the characters
of the answer only. It is tested at one length at a time, by *exact match*: a row is right only if the most likely
character is at every place of the answer. A hash of its characters assigns a row to training, tuning or testing.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.data import Bytes
from posenc_lab.compare.task import ACCURACY, Kind, Loaded, Measures, Task, Tick
from posenc_lab.kit.files import digest_of

ANSWER_OFFSET = 128  # added to the characters of answers
PARTS = ("testing", "tuning", *["training"] * 6)  # the use of each eighth of all rows
TEST_STREAM = 2**31  # above all training seeds


class Recall(Task):
    """Pairs of a key and a value with filler between them, and then keys again, each with its value:
    ``..gD.....aH..fB.cB..=fBgDcBfBaHgDgDaH``.

    This is multi-query associative recall (MQAR, Arora et al. 2023, Zoology, arXiv 2312.04927) with 8 keys and 8 values
    for its 8,192 tokens, and with a fixed number of pairs: what grows with the length is the filler, so the distance to
    a value and nothing else. The keys of a row differ, its values may not. Keys are asked for at random and are given.
    Where one comes again its value stands nearer, but a row is right only if the first time is right too. In the paper,
    attention solves it at its training lengths; here it is tested beyond them.
    """

    PAIRS, QUESTIONS = 4, 8

    defaults: ClassVar = {
        "schemes": ("nope", "learned", "sinusoidal", "rope", "alibi", "t5"),
        "train_length": 16,
        "steps": 800,
        "layers": 2,
        "dim": 64,
        "batch_size": 64,
        "learning_rate": 3e-3,
        "windows": 256,
    }
    multiples = (1, 2, 4, 8)
    unit = "bits per character"
    characters = 128
    kinds: ClassVar = {"accuracy": Kind("accuracy", {"length": int, "accuracy": list[float], "examples": int})}
    score = "accuracy"
    measure = ACCURACY
    higher = True
    examples = "rows"
    figures = ("accuracy",), ("training",)
    others = "How they learned"
    solved: ClassVar[float] = 0.95  # the mean accuracy from which a training has solved it
    least = 2 * PAIRS  # the shortest length
    called = "a row of keys and values among filler"
    lengths = "characters"
    title = "The values of keys"
    how_to_read: ClassVar = (
        "1 is every answer right.",
        f"A row has {PAIRS} pairs of a key and a value with filler between them, and then {QUESTIONS} times a key "
        "whose value is asked for. All of them must be right.",
        "There are as many pairs at every length: what grows is the filler, and so the distance to the values.",
    )
    not_concluded: ClassVar = (
        "The filler is one character over and over, and easy to pass over. In text what lies between is more like what "
        "is looked for.",
    )

    def pieces(self, rng: np.random.Generator, length: int) -> Sequence[str]:
        """A random row: prompt and answer, alternating. All rows of a length have the same number of characters."""
        keys = some_of("abcdefgh", self.PAIRS, rng, again=False)
        values = some_of("ABCDEFGH", self.PAIRS, rng)
        filler = length - 2 * self.PAIRS
        gaps = np.diff(np.sort(rng.integers(filler + 1, size=self.PAIRS)), prepend=0, append=filler)
        pairs = [key + value for key, value in zip(keys, values, strict=True)]
        text = "".join("." * gap + pair for gap, pair in zip(gaps, [*pairs, "="], strict=True))
        asked = [character for n in rng.integers(self.PAIRS, size=self.QUESTIONS) for character in pairs[n]]
        return [text + asked[0], *asked[1:]]

    def check(self, config: CompareConfig) -> None:
        """`ConfigError` for lengths that do not hold the pairs."""
        for name, lengths in (("train_length", (config.train_length,)), ("test_lengths", config.test_lengths)):
            config.require(name, min(lengths) >= self.least, f"at least {self.least} {self.lengths}")

    def tokens(self, config: CompareConfig) -> int:
        return self._width(config.train_length) - 1  # the last character is only predicted

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """The mean cross-entropy over the characters of the answer."""
        logits = model(batch[:, :-1] % ANSWER_OFFSET)
        told = torch.where(batch < ANSWER_OFFSET, -1, batch - ANSWER_OFFSET)[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1).float(), told.flatten(), ignore_index=-1)

    def targets(self, batch: Tensor) -> int:
        """The characters of answers: rows have different numbers of them."""
        return int((batch >= ANSWER_OFFSET).sum())

    def plan(self, lengths: Sequence[int], train_length: int) -> list[tuple[str, int]]:
        return [("accuracy", length) for length in lengths]

    def load(self, config: CompareConfig) -> Loaded:
        """``windows`` test rows of each length."""
        tests = {length: self.tests(length, config.windows) for length in config.test_lengths}
        return Loaded(
            partial(self.draw, "training"),
            partial(self.draw, "tuning"),
            lambda model, device, tick: _Completed(model, tests, device, tick),
            sum(rows.size for rows in tests.values()),
            f"made up: {self.called}; {config.windows:,} test rows of each length, and no training draws them",
            digest_of(b"".join(rows.tobytes() for rows in tests.values())),
        )

    def draw(self, part: str, rng: np.random.Generator, count: int, size: int) -> Bytes:
        """``count`` rows of a part, of lengths below ``size``, padded with zeros at the end."""
        lengths = (int(rng.integers(self.least, size)) for _ in itertools.count())
        rows = np.zeros((count, self._width(size - 1)), dtype=np.uint8)
        for filled, row in zip(rows, self._rows(part, rng, lengths), strict=False):
            filled[: len(row)] = row
        return rows

    def tests(self, length: int, count: int) -> Bytes:
        """``count`` test rows of one length."""
        rng = np.random.default_rng((TEST_STREAM, length))
        return np.stack(list(itertools.islice(self._rows("testing", rng, itertools.repeat(length)), count)))

    def _rows(self, part: str, rng: np.random.Generator, lengths: Iterable[int]) -> Iterator[Bytes]:
        """A random row of each length, if it belongs to the part."""
        rows = (row_of(self.pieces(rng, length)) for length in lengths)
        return (row for row in rows if PARTS[hashlib.sha256(row.tobytes()).digest()[0] % len(PARTS)] == part)

    def _width(self, length: int) -> int:
        return sum(map(len, self.pieces(np.random.default_rng(0), length)))


def row_of(pieces: Sequence[str]) -> Bytes:
    """The characters of all pieces; `ANSWER_OFFSET` is added to those of the answers, every second piece.

    >>> row_of(["ab=", "b"]).tolist()
    [97, 98, 61, 226]
    """
    given = itertools.cycle((0, ANSWER_OFFSET))
    return np.array(
        [ord(c) + asked for piece, asked in zip(pieces, given, strict=False) for c in piece], dtype=np.uint8
    )


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
        likeliest = self.model(rows[:, :-1] % ANSWER_OFFSET).argmax(-1)
        return ((likeliest + ANSWER_OFFSET == rows[:, 1:]) | (rows[:, 1:] < ANSWER_OFFSET)).all(1)
