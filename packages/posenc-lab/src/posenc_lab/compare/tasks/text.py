"""Text: the next byte of a text, in bits per byte, at the training length and at other lengths."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from torch import Tensor, nn

from posenc_lab.compare import data
from posenc_lab.compare.config import MIN_WINDOWS, CompareConfig
from posenc_lab.compare.evaluate import Evaluator, plan, tokens_to_score
from posenc_lab.compare.task import Kind, Loaded, Task
from posenc_lab.compare.train import loss_of

MOST_REPEATED = 0.2  # share of a window's pieces that may also be in the training text: licences, imports, tables
CANDIDATES = 4  # candidates per evaluation window

BITS = {"length": int, "bits": list[float | None], "tokens": int}
BUCKETS = {"length": int, "edges": list[int], "bits": list[float | None], "stderr": list[float | None]}


class Text(Task):
    """The next byte of a text."""

    multiples = (0.5, 1, 2, 4, 8)
    called = "plain text"
    lengths = "bytes"
    unit = "bits per byte"
    kinds: ClassVar = {
        "windows": Kind("separate windows", BITS),
        "sliding": Kind("sliding windows", BITS),
        "truncated": Kind("the truncated baseline", BITS),
        "final_tokens": Kind("the final bytes", BITS),
        "by_position": Kind("loss by position", BUCKETS),
    }
    score = "bits"

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return loss_of(model, batch)

    def tuning_lengths(self, config: CompareConfig) -> tuple[int, ...]:
        return config.train_length, config.test_lengths[-1]

    def plan(self, lengths: Sequence[int], train_length: int) -> list[tuple[str, int]]:
        return plan(lengths, train_length)

    def load(self, config: CompareConfig) -> Loaded:
        lengths, longest = config.test_lengths, config.test_lengths[-1]
        # A window has one more byte, which is only predicted.
        least = (config.batch_size, config.train_length + 1), (MIN_WINDOWS, longest + 1), (MIN_WINDOWS, longest + 1)
        held_out = config.windows * (longest + 1)
        corpus = data.load(config.text, held_out=held_out, tuned=held_out, least=least)
        data.require(corpus, least if config.tune else least[:2])
        windows, notice = fresh(corpus, config.windows, longest + 1)
        return Loaded(
            corpus.train.draw,
            corpus.tuning.draw,
            lambda model, device, tick: Evaluator(model, windows, lengths, config.train_length, device, tick),
            tokens_to_score(lengths, len(windows), config.train_length),
            corpus.about,
            corpus.digest,
            notice,
        )


def fresh(corpus: data.Corpus, count: int, size: int) -> tuple[data.Bytes, str]:
    """Up to ``count`` evaluation windows of ``size`` bytes, evenly spread over the candidates that are not mostly
    repeated in the training or tuning text, and a description of what was left out and what is still repeated."""
    candidates = corpus.validation.spread(CANDIDATES * count, size)
    shares = data.repeated(candidates, (corpus.train, corpus.tuning))
    kept = np.flatnonzero(shares <= MOST_REPEATED)
    if len(kept) < MIN_WINDOWS:
        raise ValueError(
            f"text must not repeat itself: of {len(candidates)} windows of {size:,} bytes to test on, {len(kept)} have "
            f"at most {MOST_REPEATED:.0%} of their pieces of {data.PIECE} bytes in the training text too, and "
            f"{MIN_WINDOWS} are needed"
        )
    chosen = kept[np.arange(min(count, len(kept))) * len(kept) // min(count, len(kept))]
    share = f"{shares[chosen].mean():.1%} of the {data.PIECE}-byte pieces of test windows"
    said = [f"{share} stand in text for training or tuning too"]
    if left_out := len(candidates) - len(kept):
        said.append(f"{left_out} of {len(candidates)} windows with more than {MOST_REPEATED:.0%} are left out")
    if len(chosen) < count:
        said.append(f"room for {len(chosen)} of {count} evaluation windows")
    return candidates[chosen], "; ".join(said)


TASK = Text()
