"""Text in which far tokens decide: a piece of the text stands twice in a row of other text.

The loss on plain text depends little on far tokens, so a scheme that ignores them has a low loss too. Here one piece of
48 bytes, or of a quarter of the training length if that is less, is repeated, and between its two places is text of
which nothing follows. The bytes of the second one, the *copy*, are predicted far better by a model that looks back at
the first, the *source*. The first 8 bytes of the copy, by which the source is recognised, are not scored.

The *use of the source* is the loss on the copy in a row without the source less that in the same row with it, in bits
per byte: 0 for a model that does not look back. Rows end with the copy, and a length has the same copies after the same
last bytes as the others. It is measured

- ``far``: with the source at the beginning of the row: the gap between the two grows with the length;
- ``near``: with the source 64 bytes before the copy (one and a third pieces) at every length, so that a scheme which
  fails in long rows is told from one which does not look far;
- ``shuffled``, the negative control: the far source with its bytes in random order, which must be of no use;
- ``match``, the positive control: of a model that attends by construction to the last place with the same 8 bytes
  before it, in the same rows. It must be high at every length.

``sliding`` is the loss on the plain text of the same rows, as in `posenc_lab.compare.text`. In training the mean
use of a near and a far source is measured at every point of the curve, in 16 rows of the training length: when it
begins is a question apart from how far it carries.

In training the copy stands near the end of a row, and the gap is drawn uniformly. With ``copies`` sources and copies
are not equal: those files have pairs of a source and a copy of 48 bytes each, and nothing else.
"""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc_lab.compare import data
from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.data import Bytes
from posenc_lab.compare.task import BEGUN, IN_A_ROW, Kind, Loaded
from posenc_lab.compare.text import RESULT, Bits, Evaluator, Text, tokens_to_score
from posenc_lab.kit.files import digest_of, rounded

PIECE, CUE = 48, 8  # bytes of a piece, and of its beginning, which is not scored
PAIR = 2 * PIECE
SOURCE, SHUFFLED, COPY = range(3)
PROBED_ROWS = 16  # at each point of the training curve
MATCHED = 4  # bits per byte that the match by construction must gain: half of what is to be gained
TEST_STREAM = 2**31  # above all training seeds
DRAWS = 100  # attempts to find a piece of which no half stands in its row

USE = {"length": int, "gap": int, "bits": list[float | None], "with_source": float | None, "without": float | None}


class Pieces(Text):
    """A repeated piece in a row of other text."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "schemes": ("nope", "rope", "alibi", "t5"),
        "train_length": 256,
        "steps": 1500,
        "batch_size": 16,
        "learning_rate": 3e-3,
    }
    multiples = (1, 2, 4, 8)
    called = "a row of text with a piece in it twice"
    kinds: ClassVar = {
        "far": Kind("the far source", USE),
        "near": Kind("the near source", USE),
        "shuffled": Kind("the far source, shuffled", USE),
        "match": Kind("a match by construction", USE),
        "sliding": Kind("loss on plain text", RESULT),
    }
    training: ClassVar = {"use": list[tuple[int, float | None]]}
    measure = "use of the source in bits per byte"
    higher = True
    examples = "rows"
    title = "Text in which far tokens decide"
    figures: ClassVar = (("far", "begins"), ("sliding", "training"))
    others = "Plain text, a near source, and controls"
    how_to_read = (
        "Use of the source: the loss on a repeated piece in a row without its first place (the source), less that in "
        "the same row with it. 0 is a model that does not look back.",
        "The source stands at the beginning of the row, so a longer row asks for a larger distance. Dashed: a source "
        "near the copy, a piece and a third before it in all rows; the figure has the bytes. If that fails too, the "
        "scheme fails at the length of the row.",
        f"A shuffled source must be of no use, at most {BEGUN} bits, and the match by construction, which attends to "
        f"the source without any training, must gain {MATCHED} bits or more.",
        f"A model begins to look back where use of the source is {BEGUN} bits or more at {IN_A_ROW} points in a row.",
    )
    not_concluded = (
        "A scheme whose models have not begun to look back says nothing about distance: it may with more training.",
        "What repeats here is a piece of text as it was. A model that copies it need not find a fact in a text.",
    )

    def check(self, config: CompareConfig) -> None:
        config.require("train_length", config.train_length >= 6 * CUE, f"at least {6 * CUE} bytes")
        piece = _piece(config.train_length)
        least = piece * 8 // 3
        config.require("test_lengths", min(config.test_lengths) >= least, f"at least {least} bytes, to hold two pieces")
        fits = not config.copies or piece == PIECE
        config.require("copies", fits, f"none with a train_length below {4 * PIECE}, as they have {PIECE} bytes")

    def plan(self, lengths: Sequence[int], train_length: int) -> list[tuple[str, int]]:
        return [(kind, length) for length in lengths for kind in self.kinds]

    def load(self, config: CompareConfig) -> Loaded:
        (corpus, windows, notice), natural, piece = self.split(config), _natural(config), _piece(config.train_length)
        pieces = sources(windows, natural.validation if natural else None, piece)
        lengths, trained = config.test_lengths, config.train_length
        match = cache(lambda device: Sourced(Matching(), windows, pieces, None, lengths, trained, device))

        def probe(model: nn.Module, device: torch.device) -> float:
            some = windows[:PROBED_ROWS, -trained - 1 :], pieces[:, :PROBED_ROWS], None
            short = Sourced(model, *some, (trained,), trained, device)
            return float(np.mean([short.use(trained, gap).mean() for gap in short.gaps(trained)]))

        return Loaded(
            partial(_draw, corpus.train, natural.train if natural else None, piece),
            partial(_draw, corpus.tuning, natural.tuning if natural else None, piece),
            lambda model, device, tick: Sourced(model, windows, pieces, match(device), lengths, trained, device, tick),
            4 * len(windows) * sum(lengths) + tokens_to_score(lengths, len(windows), trained),
            f"{corpus.about}{f'; copies from {natural.about}' if natural else ''}",
            digest_of((corpus.digest + natural.digest).encode()) if natural else corpus.digest,
            notice,
            probe,
        )


def _piece(train_length: int) -> int:
    return min(PIECE, train_length // 4)


def _natural(config: CompareConfig) -> data.Corpus | None:
    """The pairs of the files of ``copies``, split by file. ValueError for files of anything else."""
    if not config.copies:
        return None
    try:
        corpus = data.load(config.copies, held_out=1, tuned=int(config.tune), least=((1, PAIR),) * (2 + config.tune))
    except ValueError as error:
        raise ValueError(str(error).replace("text", "copies", 1)) from None
    if any((side.sizes % PAIR).any() for side in (corpus.train, corpus.validation, corpus.tuning)):
        raise ValueError(f"copies must be several files of pairs of {PAIR} bytes and nothing else, got {corpus.about}")
    return corpus


def _draw(
    text: data.Text, pairs: data.Text | None, piece: int, rng: np.random.Generator, count: int, size: int
) -> Bytes:
    """Random rows (count, size): windows of a text in which a piece stands twice, the second time up to a piece before
    the end."""
    rows, both = text.draw(rng, count, size), _pairs(text, pairs, piece, rng, count)
    second = size - piece - rng.integers(piece, size=count)
    for at, what in zip((second - rng.integers(piece, second + 1), second), both, strict=True):
        rows[np.arange(count)[:, None], at[:, None] + np.arange(piece)] = what
    return rows


def _pairs(text: data.Text, pairs: data.Text | None, piece: int, rng: np.random.Generator, count: int) -> Bytes:
    """Random sources and copies (2, count, piece)."""
    if pairs is None:
        return np.stack([text.draw(rng, count, piece)] * 2)
    return pairs.draw(rng, count, PAIR, PAIR).reshape(count, 2, PIECE).swapaxes(0, 1)


def sources(windows: Bytes, pairs: data.Text | None, piece: int) -> Bytes:
    """A source, its bytes in random order, and a copy for each window (3, rows, piece), of the other windows or of
    pairs. A copy has a quarter as many different bytes as it is long, and no half of it stands in the window.
    ValueError where none is found."""
    rng, chosen = np.random.default_rng(TEST_STREAM), []
    bounds = np.arange(len(windows)) * windows.shape[1]
    for row, window in enumerate(windows):
        others, there = data.Text(np.delete(windows, row, 0).ravel(), bounds), window.tobytes()
        for _ in range(DRAWS):
            source, copy = _pairs(others, pairs, piece, rng, 1)[:, 0]
            halves = (half.tobytes() for half in np.split(copy, [piece // 2]))
            if len(np.unique(copy)) >= piece // 4 and not any(half in there for half in halves):
                break
        else:
            raise ValueError(f"text must have pieces of {piece} bytes that differ, got windows without any")
        chosen.append(np.stack((source, rng.permutation(source), copy)))
    return np.stack(chosen, axis=1)


class Sourced(Evaluator):
    """Measures one model on windows (rows, longest length + 1) and what is put into them (3, rows, piece): ``bits``,
    the use of the source in each, its ``gap``, and the mean loss on copies ``with_source`` and ``without``; of plain
    text, what `Evaluator` does. ``match`` measures the match by construction in the same rows."""

    def __init__(self, model: nn.Module, windows: Bytes, pieces: Bytes, match: "Sourced | None", *about: Any) -> None:
        super().__init__(model, windows, *about)
        self._texts, self._pieces, self._match = windows, pieces, match
        self._losses: dict[tuple[int, int, int], Bits] = {}

    def gaps(self, length: int) -> tuple[int, int]:
        """From the source to the copy: near, a piece and a third, and far, which leaves as much of the row."""
        near = self._pieces.shape[2] * 4 // 3
        return near, length - near

    def use(self, length: int, gap: int, source: int = SOURCE) -> Bits:
        """Bits per byte of every row."""
        return np.asarray((self._copies(length, 0, SOURCE) - self._copies(length, gap, source)).mean(axis=1))

    def _measure(self, kind: str, length: int) -> dict[str, Any]:
        if kind == "sliding":
            return super()._measure(kind, length)
        if kind == "match" and self._match:
            return self._match._measure(kind, length)
        gap, source = self.gaps(length)[kind != "near"], SHUFFLED if kind == "shuffled" else SOURCE
        losses = {"with_source": self._copies(length, gap, source), "without": self._copies(length, 0, SOURCE)}
        found = {name: rounded(each.mean()) for name, each in losses.items()}
        return {"gap": gap, "bits": list(map(rounded, self.use(length, gap, source))), **found}

    def _copies(self, length: int, gap: int, source: int) -> Bits:
        """Bits (rows, bytes) of the scored bytes of copies, with a source or, for a gap of 0, without."""
        if (length, gap, source) not in self._losses:
            rows, piece = self._texts[:, -length - 1 :].copy(), self._pieces.shape[2]
            begin = length + 1 - piece - gap
            rows[:, begin : begin + piece] = self._pieces[source]
            rows[:, -piece:] = self._pieces[COPY]
            examples = torch.from_numpy(rows.astype(np.int64)).to(self.windows.device)
            self._losses[length, gap, source] = self._score(examples, 0, length - piece + CUE, length)
        return self._losses[length, gap, source]


class Matching(nn.Module):
    """Attends by construction, in the last places of a row, to the last place with the same 8 bytes up to it, and
    expects what follows there; all bytes alike where there is none."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (rows, tokens, 256) of tokens (rows, tokens)."""
        known = tokens.unfold(1, CUE, 1)
        places = torch.arange(1, known.size(1) + 1, device=tokens.device)
        alike = (known[:, -PIECE:, None] == known[:, None]).all(-1) & (places < places[-PIECE:, None])
        last = (alike * places).amax(-1)  # 0 where there is none
        expected = F.one_hot(tokens.gather(1, last + CUE - 1), 256) * (last > 0)[..., None]
        logits = 8.0 * expected.float()  # a probability of 0.92 among 256
        return F.pad(logits, (0, 0, tokens.size(1) - expected.size(1), 0))
