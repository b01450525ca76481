"""The tasks of ``posenc compare``: text, and those that are not."""

from collections.abc import Sequence
from typing import Literal, cast

from torch import Tensor, nn

from posenc.lab import data
from posenc.lab.classify import Classify
from posenc.lab.config import MIN_WINDOWS, CompareConfig
from posenc.lab.digits import Digits
from posenc.lab.evaluate import Evaluator, plan, tokens_to_score
from posenc.lab.task import Loaded, Task
from posenc.lab.train import loss_of
from posenc.models import Decoder
from posenc.scheme import Scheme
from posenc.schemes.entry import Shape


class Text(Task):
    """The next byte of a text."""

    called = "plain text"
    unit = "bits per byte"

    def shape(self, config: CompareConfig, scheme: str) -> Shape:
        """One line of bytes, each of which sees those before it."""
        return Shape(config.dim, config.heads, config.dim // config.heads, config.train_length)

    def model(self, config: CompareConfig, scheme: str, position: Scheme) -> nn.Module:
        """A decoder of bytes."""
        return Decoder(
            256,
            config.dim,
            config.layers,
            config.heads,
            config.kv_heads,
            position=position,
            inject=cast(Literal["input", "every_layer"], config.inject),
            per_layer=config.per_layer,
        )

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Cross-entropy of every byte after the first."""
        return loss_of(model, batch)

    def plan(self, scheme: str, lengths: Sequence[int], train_length: int) -> list[tuple[str, int]]:
        """See `posenc.lab.evaluate`."""
        return plan(lengths, train_length)

    def load(self, config: CompareConfig) -> Loaded:
        """The text, split."""
        longest = config.test_lengths[-1]
        sizes = {"train_length": config.train_length, "batch_size": config.batch_size, "longest": longest}
        least = data.least(**sizes, windows=MIN_WINDOWS)
        corpus = data.load(config.text, held_out=config.windows * (longest + 1), least=least)
        data.require(corpus, **sizes, windows=MIN_WINDOWS)
        windows = corpus.validation.spread(config.windows, longest + 1)
        few = len(windows) < config.windows
        return Loaded(
            corpus.train,
            lambda model, device, tick: Evaluator(
                model, windows, config.test_lengths, config.train_length, device, tick
            ),
            tokens_to_score(config.test_lengths, len(windows)),
            corpus.about,
            corpus.digest,
            f"room for {len(windows)} of {config.windows} evaluation windows" if few else "",
        )


TASKS: dict[str, Task] = {"text": Text(), "digits": Digits(), "classify": Classify()}
