"""Text: the next byte of a text, in bits per byte, at the training length and at other lengths.

Everything is measured on the same evaluation windows, each of the longest test length and inside one file, for every
scheme and seed, and each measurement gives one number per window. So lengths, schemes and seeds can be paired window
by window, and an interval over windows is one over pieces of text that do not overlap, also where the length measured
is short and a window holds many pieces of it. A model always sees positions that start at 0.

At a length L, of windows of M bytes, in which a byte is scored by the model's prediction from the bytes before it:

- ``windows``: cut into pieces of L bytes, side by side from the end; every byte of a piece is scored, from the piece's
  bytes before it: 1 to L of them. What is left over at the window's beginning, M mod L bytes, is not scored: lengths
  that divide M score the same bytes, others a few less. Longer pieces do better because fewer bytes stand at a
  beginning of a piece (the early-token curse).
- ``sliding``: the last half of the window is scored, in strides of L/2, each from the L bytes that end there: every
  byte is predicted from L/2 to L bytes. The same bytes are scored at every L.
- ``final_tokens``: the last F bytes of the window alone, from one piece of the L bytes that end there: each is
  predicted from L - F + 1 to L bytes. F is a quarter of the training length T, or fewer where windows are shorter than
  T + F - 1. The same bytes are scored at every L, but for an L below F, where there are only L.
- ``truncated``, once, at the training length: the same F bytes, each predicted from exactly the T bytes before it. The
  gain of longer context is this loss minus that of ``final_tokens`` at the longest length.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from posenc_lab.compare import data
from posenc_lab.compare.config import MIN_WINDOWS, CompareConfig
from posenc_lab.compare.data import Bytes
from posenc_lab.compare.task import BITS, Kind, Loaded, Measures, Task, Tick
from posenc_lab.compare.train import loss_of
from posenc_lab.kit.files import rounded

MAX_REPEATED_SHARE = 0.2  # share of a window's pieces that may also be in the training text: licences, imports, tables
CANDIDATES = 4  # candidates per evaluation window

RESULT = {"length": int, "bits": list[float | None], "tokens": int}


class Text(Task):
    """The next byte of a text."""

    multiples: ClassVar[tuple[float, ...]] = (0.5, 1, 2, 4, 8)
    called = "plain text"
    lengths = "bytes"
    unit = BITS
    kinds: ClassVar = {
        "sliding": Kind("sliding windows", RESULT),
        "windows": Kind("separate windows", RESULT),
        "truncated": Kind("the truncated baseline", RESULT),
        "final_tokens": Kind("the final bytes", RESULT),
    }
    score = "bits"
    title = "Train short, test long"
    figures: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]] = (
        ("sliding", "windows"),
        ("final_tokens", "training"),
    )
    others = "Use of context"
    how_to_read: ClassVar[tuple[str, ...]] = (
        "Bits per byte is the average loss on the next byte of held-out text, in bits.",
        "Sliding windows score the same bytes at every length, so only the context before them differs. Separate "
        "windows score every byte. The first bytes of a window have almost no context, so the loss decreases with "
        "the length for that reason alone (the early-token curse).",
        "Final bytes are the last of a window, the same at every length. Dashed: the same bytes, each predicted from "
        "exactly as many bytes before it as in training. A scheme below its dashed line uses the longer context; one "
        "above it is harmed by it.",
    )
    not_concluded: ClassVar[tuple[str, ...]] = (
        "A low loss beyond the training length does not show that the model uses the far context: a scheme that "
        "attends only to near bytes has it too. Compare the final bytes with their dashed lines.",
    )

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return loss_of(model, batch)

    def plan(self, lengths: Sequence[int], train_length: int) -> list[tuple[str, int]]:
        return plan(lengths, train_length)

    def load(self, config: CompareConfig) -> Loaded:
        lengths = config.test_lengths
        corpus, windows, notice = self.split(config)
        return Loaded(
            corpus.train.draw,
            corpus.tuning.draw,
            lambda model, device, tick: Evaluator(model, windows, lengths, config.train_length, device, tick),
            tokens_to_score(lengths, len(windows), config.train_length),
            corpus.about,
            corpus.digest,
            notice,
        )

    def split(self, config: CompareConfig) -> tuple[data.Corpus, Bytes, str]:
        """The split text, its evaluation windows, and a description of them. ValueError if there is too little."""
        longest = config.test_lengths[-1]
        # A window has one more byte, which is only predicted.
        least = (config.batch_size, config.train_length + 1), (MIN_WINDOWS, longest + 1), (MIN_WINDOWS, longest + 1)
        held_out = config.windows * (longest + 1)
        corpus = data.load(config.text, held_out=held_out, tuned=held_out, least=least)
        data.require(corpus, least if config.tune else least[:2])
        return corpus, *fresh(corpus, config.windows, longest + 1)


def fresh(corpus: data.Corpus, count: int, size: int) -> tuple[Bytes, str]:
    """Up to ``count`` evaluation windows of ``size`` bytes, evenly spread over the candidates that are not mostly
    repeated in the training or tuning text, and a description of what was left out and what is still repeated."""
    candidates = corpus.validation.spread(CANDIDATES * count, size)
    shares = data.repeated(candidates, (corpus.train, corpus.tuning))
    kept = np.flatnonzero(shares <= MAX_REPEATED_SHARE)
    if len(kept) < MIN_WINDOWS:
        raise ValueError(
            f"text must not repeat itself: of {len(candidates)} windows of {size:,} bytes to test on, {len(kept)} have "
            f"at most {MAX_REPEATED_SHARE:.0%} of their pieces of {data.PIECE} bytes in the training text too, and "
            f"{MIN_WINDOWS} are needed"
        )
    chosen = kept[np.arange(min(count, len(kept))) * len(kept) // min(count, len(kept))]
    share = f"{shares[chosen].mean():.1%} of the {data.PIECE}-byte pieces of test windows"
    said = [f"{share} stand in text for training or tuning too"]
    if left_out := len(candidates) - len(kept):
        said.append(f"{left_out} of {len(candidates)} windows with more than {MAX_REPEATED_SHARE:.0%} are left out")
    if len(chosen) < count:
        said.append(f"room for {len(chosen)} of {count} evaluation windows")
    return candidates[chosen], "; ".join(said)


Bits = NDArray[np.float64]


def plan(lengths: Sequence[int], train_length: int) -> list[tuple[str, int]]:
    """Every (kind, length) to measure for a trained model, in an order that reuses forward passes."""
    kinds = [(kind, length) for length in lengths for kind in ("windows", "final_tokens", "sliding")]
    return [*kinds, *([("truncated", train_length)] if lengths[-1] > train_length else [])]


def tokens_to_score(lengths: Sequence[int], windows: int, train_length: int) -> int:
    """The approximate number of tokens in all forward passes of the plan."""
    truncated = final_tokens(lengths, train_length) * train_length if lengths[-1] > train_length else 0
    return ((2 * len(lengths) - 1) * lengths[-1] + truncated) * windows


def final_tokens(lengths: Sequence[int], train_length: int) -> int:
    """F: the number of bytes at the end of a window that are scored, so that each has a training length before it."""
    quarter, room = max(train_length // 4, 1), lengths[-1] - train_length + 1
    return min(quarter, room) if lengths[-1] > train_length else quarter


class Evaluator(Measures):
    """Measures one model on evaluation windows (windows, longest length + 1 bytes): ``bits`` per byte for each window
    and the ``tokens`` scored in each."""

    def __init__(
        self,
        model: nn.Module,
        windows: Bytes,
        lengths: Sequence[int],
        train_length: int,
        device: torch.device | str = "cpu",
        tick: Tick = lambda tokens: None,
    ) -> None:
        super().__init__(model, tick)
        self.windows = torch.from_numpy(windows.astype(np.int64)).to(device)
        self.longest = lengths[-1]
        self.final = final_tokens(lengths, train_length)
        self.train_length = train_length
        self._passes: dict[tuple[str, int], Bits] = {}
        assert self.windows.size(1) == self.longest + 1

    def _measure(self, kind: str, length: int) -> dict[str, Any]:
        bits = {
            "windows": lambda: self._side_by_side(length),
            "final_tokens": lambda: self._side_by_side(length)[:, -min(self.final, length) :],
            "sliding": lambda: self._sliding(length),
            "truncated": self._truncated,
        }[kind]()
        return {"bits": list(map(rounded, bits.mean(axis=1))), "tokens": bits.shape[1]}

    def _side_by_side(self, length: int) -> Bits:
        stops = range(self.longest, length - 1, -length)
        return self._pass("windows", length, [(stop - length, stop - length, stop) for stop in stops])

    def _sliding(self, length: int) -> Bits:
        begin = self.longest - max(self.longest // 2, 1)
        stride = max(length // 2, 1)
        stops = range(self.longest, begin, -stride)
        pieces = [(max(stop - length, 0), max(stop - stride, begin), stop) for stop in stops]
        if pieces == [(0, begin, self.longest)]:  # one piece, which side by side has as well
            return self._side_by_side(self.longest)[:, begin:]
        return self._pass("sliding", length, pieces)

    def _truncated(self) -> Bits:
        """Bits of the final bytes, each predicted from its own row of the training length."""
        rows = self.windows.unfold(1, self.train_length + 1, 1)[:, -self.final :].flatten(0, 1)

        def nats(part: Tensor) -> Tensor:
            logits: Tensor = self.model(part[:, :-1])[:, -1]
            return F.cross_entropy(logits.float(), part[:, -1], reduction="none").double().cpu()

        found = self._run(nats, rows, self.train_length) / math.log(2)
        return np.asarray(found.view(-1, self.final).numpy())

    def _pass(self, kind: str, length: int, pieces: list[tuple[int, int, int]]) -> Bits:
        """Bits (windows, bytes) of all scored bytes. Pieces are (begin, first to score, stop), the last piece first."""
        if (kind, length) not in self._passes:
            self._passes[kind, length] = np.concatenate(
                [self._score(self.windows, *piece) for piece in reversed(pieces)], axis=1
            )
        return self._passes[kind, length]

    def _score(self, rows: Tensor, begin: int, first: int, stop: int) -> Bits:
        """Bits of the bytes of rows after ``first`` up to ``stop``, for a model that sees those from ``begin``."""

        def nats(part: Tensor) -> Tensor:
            logits: Tensor = self.model(part[:, begin:stop])[:, first - begin :]
            target = part[:, first + 1 : stop + 1]
            each = F.cross_entropy(logits.flatten(0, 1).float(), target.flatten(), reduction="none")
            return each.view(target.shape).double().cpu()

        return np.asarray(self._run(nats, rows, stop - begin).numpy() / math.log(2))
