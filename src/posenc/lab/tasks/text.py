"""Text: the next byte, in bits per byte, at lengths that the models were and were not trained on."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from posenc.lab import data
from posenc.lab.config import MIN_WINDOWS, CompareConfig
from posenc.lab.evaluate import Evaluator, plan, tokens_to_score
from posenc.lab.task import Kind, Loaded, Task
from posenc.lab.train import loss_of
from posenc.models import Decoder
from posenc.scheme import Scheme

BITS = {"length": int, "bits": list[float | None], "tokens": int}
BUCKETS = {"length": int, "edges": list[int], "bits": list[float | None], "stderr": list[float | None]}


class Text(Task):
    """The next byte of a text."""

    multiples = (0.5, 1, 2, 4, 8)
    called = "plain text"
    lengths = "tokens"
    unit = "bits per byte"
    causal = True
    kinds: ClassVar = {
        "windows": Kind("separate windows", BITS),
        "sliding": Kind("sliding windows", BITS),
        "truncated": Kind("the truncated baseline", BITS),
        "final_tokens": Kind("the final tokens", BITS),
        "by_position": Kind("loss by position", BUCKETS),
    }
    score = "bits"

    def model(self, config: CompareConfig, scheme: str, position: Scheme) -> nn.Module:
        return Decoder(256, **self.sizes(config, position))

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return loss_of(model, batch)

    def plan(self, scheme: str, lengths: Sequence[int], train_length: int) -> list[tuple[str, int]]:
        return plan(lengths, train_length)

    def load(self, config: CompareConfig) -> Loaded:
        lengths, longest = config.test_lengths, config.test_lengths[-1]
        # A window has a byte more, which is only predicted.
        least = (config.batch_size, config.train_length + 1), (MIN_WINDOWS, longest + 1)
        corpus = data.load(config.text, held_out=config.windows * (longest + 1), least=least)
        data.require(corpus, least)
        windows = corpus.validation.spread(config.windows, longest + 1)
        return Loaded(
            corpus.train.draw,
            lambda model, device, tick: Evaluator(model, windows, lengths, config.train_length, device, tick),
            tokens_to_score(lengths, len(windows), config.train_length),
            corpus.about,
            corpus.digest,
            f"room for {len(windows)} of {config.windows} evaluation windows" if len(windows) < config.windows else "",
        )


TASK = Text()
