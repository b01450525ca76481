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
import string
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

ANSWER_OFFSET = 128  # added to the characters of answers
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
    """The characters of all pieces; `ANSWER_OFFSET` is added to those of the answers, every second piece.

    >>> row_of(["ab=", "b"]).tolist()
    [97, 98, 61, 226]
    """
    given = itertools.cycle((0, ANSWER_OFFSET))
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
        likeliest = self.model(rows[:, :-1] % ANSWER_OFFSET).argmax(-1)
        return ((likeliest + ANSWER_OFFSET == rows[:, 1:]) | (rows[:, 1:] < ANSWER_OFFSET)).all(1)


class Copy(Puzzle):
    """Letters, an equals sign, and the same letters again: ``qRtya=qRtya``.

    Letters are drawn uniformly from 52, so some are repeated: then the previous letter does not determine the next one,
    and the model needs two letters, or the distance to the original. The task is that of Kazemnejad et al. 2023 (arXiv
    2305.19466) and Jelassi et al. 2024 (arXiv 2402.01032). Over all tasks of the former, trained at up to 20 and tested
    at up to 40 (40,000 steps of 64 rows, learning rate 3e-5, 107 million parameters), the mean reciprocal rank of NoPE
    is 0.69, of T5's bias 0.55, of ALiBi 0.50, of RoPE 0.33 and of learned positions 0.22.
    """

    defaults: ClassVar = {**Puzzle.defaults, "steps": 1000}
    called = "a row of letters and their copy"
    lengths = "letters"
    title = "A copy of letters"
    axis = "letters to copy"
    how_to_read = (
        "A row is letters, an equals sign and the same letters again. Each letter of the copy stands as far from its "
        "original as the row is long, so a longer row asks for a distance that no training had.",
    )
    not_concluded = (
        "A small model copies here what it can find again among 52 letters. It does not show that a scheme copies text "
        "in a large one, where whole words are told from what stands around them.",
    )

    def pieces(self, rng: np.random.Generator, length: int) -> Sequence[str]:
        letters = some_of(string.ascii_letters, length, rng)
        return f"{letters}=", letters


class Addition(Puzzle):
    """Two binary numbers of as many digits, and their sum, which has one more: ``01101+01011=011000``.

    The most significant digit comes first; leading zeros give all rows of a length the same size. Numbers are binary
    because a model this small did not learn sums of four decimal digits in a minute, in either order of the digits.
    Published set-ups differ, and with them what generalises: Kazemnejad et al. 2023 add decimal numbers, the most
    significant digit first; Lee et al. 2023 (arXiv 2307.03381) and McLeish et al. 2024 (arXiv 2405.17399) put the least
    significant one first, so that a carry is known before the digit that takes it.
    """

    defaults: ClassVar = {**Puzzle.defaults, "train_length": 5, "steps": 2000}
    least = 5  # digits: of 1,024 rows there are enough to test with
    called = "a row of two numbers and their sum"
    lengths = "digits"
    title = "The sum of two numbers"
    axis = "digits of each number"
    how_to_read = (
        "A row is two binary numbers of as many digits and their sum, the most significant digit first. A digit of the "
        "sum follows from two digits that stand as far from each other as the numbers are long, and from the carry, "
        "which comes from the digits to the right.",
    )
    not_concluded = ("Decimal, or written from the least significant digit, the order of the schemes may be another.",)

    def pieces(self, rng: np.random.Generator, length: int) -> Sequence[str]:
        one, other = (some_of("01", length, rng) for _ in range(2))
        return f"{one}+{other}=", f"{int(one, 2) + int(other, 2):0{length + 1}b}"


class Recall(Puzzle):
    """Pairs of a key and a value with filler between them, and then keys again, each with its value:
    ``..gD.....aH..fB.cB..=fBgDcBfBaHgDgDaH``.

    This is multi-query associative recall (MQAR, Arora et al. 2023, Zoology, arXiv 2312.04927) with 8 keys and 8 values
    for its 8,192 tokens, and with a fixed number of pairs: what grows with the length is the filler, so the distance to
    a value and nothing else. The keys of a row differ, its values may not. Keys are asked for at random and are given.
    Where one comes again its value stands nearer, but a row is right only if the first time is right too. In the paper,
    attention solves it at its training lengths; here it is tested beyond them.
    """

    PAIRS, QUESTIONS = 4, 8

    defaults: ClassVar = {**Puzzle.defaults, "train_length": 16}
    multiples = (1, 2, 4, 8)
    shortest = least = 2 * PAIRS
    called = "a row of keys and values among filler"
    lengths = "characters"
    title = "The values of keys"
    axis = "characters before the questions"
    how_to_read = (
        f"A row has {PAIRS} pairs of a key and a value with filler between them, and then {QUESTIONS} times a key "
        "whose value is asked for. All of them must be right.",
        "There are as many pairs at every length: what grows is the filler, and so the distance to the values.",
    )
    not_concluded = (
        "The filler is one character over and over, and easy to pass over. In text what lies between is more like what "
        "is looked for.",
    )

    def pieces(self, rng: np.random.Generator, length: int) -> Sequence[str]:
        keys = some_of("abcdefgh", self.PAIRS, rng, again=False)
        values = some_of("ABCDEFGH", self.PAIRS, rng)
        filler = length - 2 * self.PAIRS
        gaps = np.diff(np.sort(rng.integers(filler + 1, size=self.PAIRS)), prepend=0, append=filler)
        pairs = [key + value for key, value in zip(keys, values, strict=True)]
        text = "".join("." * gap + pair for gap, pair in zip(gaps, [*pairs, "="], strict=True))
        asked = [character for n in rng.integers(self.PAIRS, size=self.QUESTIONS) for character in pairs[n]]
        return [text + asked[0], *asked[1:]]


class Passkey(Puzzle):
    """A number said once in a text, and asked for at the end:
    ``the sky is blue. the s#40718un is yellow. here we go. the#40718``.

    The filler is that of Mohtashami & Jaggi 2023 (arXiv 2305.16300), the same sentences repeated, from a random place
    on. The number, of five digits, is at a random place between two signs, instead of the sentence "The pass key is",
    so that a small model can read it: ``#`` announces a number, and asks for it at the end. Large models trained on far
    longer text find the key at any depth within their trained length and, with RoPE as it is, hardly ever past it (Chen
    et al. 2023, arXiv 2306.15595).
    """

    DIGITS = 5
    FILLER = "the grass is green. the sky is blue. the sun is yellow. here we go. there and back again. "

    defaults: ClassVar = {**Puzzle.defaults, "train_length": 32, "steps": 900, "learning_rate": 2e-3}
    multiples = (1, 2, 4, 8)
    shortest = least = 16
    called = "a text with a number in it"
    lengths = "characters"
    title = "A number said once"
    axis = "characters before the question"
    how_to_read = (
        f"A row is a text of sentences that repeat, with a number of {DIGITS} digits anywhere in it, and the number "
        "again. At a greater length it stands, on average, as many times further back.",
    )
    not_concluded = (
        "The sentences repeat and no other number is in them, so the key stands out. This asks whether a scheme lets a "
        "model look that far back, not whether it finds one fact among many alike.",
    )

    def pieces(self, rng: np.random.Generator, length: int) -> Sequence[str]:
        key = some_of(string.digits, self.DIGITS, rng)
        size = length - self.DIGITS - 1
        begin, at = int(rng.integers(len(self.FILLER))), int(rng.integers(size + 1))
        text = (self.FILLER * (2 + size // len(self.FILLER)))[begin : begin + size]
        return f"{text[:at]}#{key}{text[at:]}#", key


PUZZLES = {"copy": Copy(), "addition": Addition(), "recall": Recall(), "passkey": Passkey()}
