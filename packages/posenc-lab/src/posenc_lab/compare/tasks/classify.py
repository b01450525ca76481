"""Classify: which of two marked words comes first, and whether they are near or far.

A sequence has random words of a small vocabulary, and two marked words A and B, once each. A classifier on the mean of
the model's vectors of the two marked words answers two questions:

- ``order``: does A come before B?
- ``distance``: are they far apart (T/4 to T/2 - 1 words, where T is the training length) or near (1 to T/8)?

Sequences come in groups of four with *the same counts of words*: a near one, a far one, and both reversed. So a bag of
words has each answer equally often, and a model that sees only the bag is right in exactly half of the sequences.
Reversal keeps every distance and reverses every order: a scheme that is blind to direction gives both the same answer,
and is right in half of them on order, however long it is trained.

At other lengths the marked words are as far apart as in training; their distance from the beginning and the number of
other words change. The first half of a sequence is segment 0, the second half segment 1.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.models import Encoder
from posenc.positions.positions import Positions
from posenc.schedule import Schedule
from posenc.scheme import Scheme
from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.data import Bytes
from posenc_lab.compare.task import ANSWERS, Answers, Kind, Loaded, OfRows, Tick, listed
from posenc_lab.kit.files import digest_of

Ints = NDArray[np.int64]

WORDS = 16  # others than the marked ones
A, B = WORDS, WORDS + 1
QUESTIONS = ("order", "distance")
GROUP = 4
TEST_STREAM = 2**31  # above all training seeds


def groups(rng: np.random.Generator, count: int, length: int, train_length: int) -> Bytes:
    """``count`` groups (count, 4, length + 1): words and, last, the label: 1 if A is first, plus 2 if they are far."""
    others = rng.integers(WORDS, size=(count, length - 2))
    near = _place(rng, others, rng.integers(1, train_length // 8 + 1, size=count))
    mixed = rng.permuted(others, axis=1)
    far = _place(rng, mixed, rng.integers(train_length // 4, train_length // 2, size=count))
    rows = np.stack((near, near[:, ::-1], far, far[:, ::-1]), axis=1)
    first = (rows == A).argmax(-1) < (rows == B).argmax(-1)
    labels = first + 2 * np.array([0, 0, 1, 1])
    return np.concatenate((rows, labels[..., None]), axis=-1).astype(np.uint8)


def _place(rng: np.random.Generator, others: Ints, apart: Ints) -> Ints:
    """Rows with the two marked words ``apart`` words from each other, at a random place and in random order."""
    count, length = len(others), others.shape[1] + 2
    left = rng.integers(length - apart)
    marks = np.full((count, length), -1, dtype=np.int64)
    pair = np.where(rng.random(count) < 0.5, A, B)
    marks[np.arange(count), left] = pair
    marks[np.arange(count), left + apart] = A + B - pair
    marks[marks < 0] = others.ravel()
    return marks


class Reader(nn.Module):
    """An encoder, the mean over the two marked words, and a score for each question."""

    def __init__(self, encoder: Encoder, dim: int) -> None:
        super().__init__()
        self.head = nn.Linear(dim, len(QUESTIONS))
        self.encoder = encoder

    def forward(self, words: Tensor) -> Tensor:
        """(batch, words) to (batch, questions); above zero: yes."""
        length = words.size(1)
        segment = (torch.arange(length, device=words.device) >= length // 2).long()
        positions = Positions.arange(length, device=words.device).with_segment(segment[None])
        marked = (words >= WORDS)[..., None]
        vectors = self.encoder(words, positions)
        return self.head((vectors * marked).sum(1) / marked.sum(1))


class Classify(Answers):
    """The order and the distance of two marked words."""

    defaults: ClassVar = {
        "schemes": ("nope", "learned", "sinusoidal", "rope", "alibi", "shaw", "distance_aware"),
        "train_length": 32,
        "steps": 300,
        "layers": 2,
        "dim": 48,
        "batch_size": 64,
        "windows": 128,
    }
    multiples = (0.5, 1, 2, 4)
    called = "a sequence of words"
    lengths = "words"
    segments = True
    kinds: ClassVar = {
        "order": Kind(
            "order",
            ANSWERS,
            "Order: which comes first",
            "Share of sequences in which the model tells which marked word comes first, against their length. Bars: "
            "95 % intervals.",
        ),
        "distance": Kind(
            "distance",
            ANSWERS,
            "Distance: near or far",
            "Share of sequences in which it tells whether they are near or far, at the same distances throughout.",
        ),
    }
    title = "Which word comes first, and how far apart"
    axis = "sequence length (words)"
    units = "groups of four sequences"
    chance = 0.5
    how_to_read = (
        "Sequences come in groups of four with the same words: near and far, each also read backwards. A model "
        "that sees the words and not where they stand gives all four one answer, and is right in two.",
        "Reading backwards turns the order and keeps the distance. A scheme that is blind to direction cannot tell "
        "the two readings apart, so it guesses on order and may still tell near from far.",
        "At every length the marked words are as far apart as in training: what grows is the distance from the "
        "beginning, and the number of other words.",
    )
    not_concluded = (
        "The task is made so that nothing but positions helps. It shows what a scheme can tell, not what it is "
        "worth in language, where words give most of it away.",
    )

    def observed(self, guessing: Mapping[str, Sequence[str]], telling: Mapping[str, Sequence[str]]) -> str:
        """A sentence on the schemes that are blind to direction."""
        blind = [scheme for scheme in guessing["order"] if scheme in telling["distance"]]
        tell, guess = ("tell", "guess") if blind[1:] else ("tells", "guesses")
        said = f"{listed(blind)} {tell} near from far and {guess} which comes first"
        return f"{said}, as whatever is blind to direction must." if blind else ""

    def check(self, config: CompareConfig) -> None:
        """Near and far fit into every length."""
        config.require("train_length", config.train_length % 8 == 0, "a multiple of 8")
        half = config.train_length // 2
        config.require("test_lengths", config.test_lengths[0] >= half, f"at least {half} each, half of train_length")

    def model(self, config: CompareConfig, scheme: str, position: Scheme | Schedule) -> nn.Module:
        return Reader(Encoder(WORDS + 2, **self.sizes(config, position)), config.dim)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Binary cross-entropy, the mean of both questions."""
        return F.binary_cross_entropy_with_logits(model(batch[:, :-1]).float(), answers(batch).float())

    def plan(self, scheme: str, lengths: Sequence[int], train_length: int) -> list[tuple[str, int]]:
        return [(question, length) for length in lengths for question in QUESTIONS]

    def load(self, config: CompareConfig) -> Loaded:
        """Test sequences, ``windows`` groups for each length, that no training draws."""
        tests = {
            n: groups(np.random.default_rng((TEST_STREAM, n)), config.windows, n, config.train_length)
            for n in config.test_lengths
        }

        def draw(rng: np.random.Generator, count: int, size: int) -> Bytes:
            """Rows of ``size - 1`` words and a label, in whole groups as far as they fit."""
            return groups(rng, -(-count // GROUP), size - 1, config.train_length).reshape(-1, size)[:count]

        # There are so many sequences that two streams practically never draw the same one.
        return Loaded(
            draw,
            draw,
            lambda model, device, tick: _Answers(model, tests, device, tick),
            GROUP * config.windows * sum(config.test_lengths),
            f"made up: {WORDS} words and two marked ones; {GROUP * config.windows:,} test sequences of each length",
            digest_of(b"".join(rows.tobytes() for rows in tests.values())),
        )


def answers(batch: Tensor) -> Tensor:
    """The right answers, (rows, questions)."""
    label = batch[:, -1]
    return torch.stack((label % 2, label // 2), -1).bool()


class _Answers(OfRows):
    """Tests one model; a group is a unit, since its four sequences have the same words."""

    def __init__(self, model: nn.Module, tests: dict[int, Bytes], device: torch.device, tick: Tick) -> None:
        super().__init__(model, tests, device, tick)
        self._found: dict[int, Tensor] = {}  # by length, since one pass answers both questions

    def _right(self, kind: str, length: int) -> Tensor:
        if length not in self._found:
            rows = self._rows(length).flatten(0, 1)
            right = (self._run(self.model, rows[:, :-1], length) > 0) == answers(rows)
            self._found[length] = right.view(-1, GROUP, len(QUESTIONS))
        return self._found[length][..., QUESTIONS.index(kind)]


TASK = Classify()
