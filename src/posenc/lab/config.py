"""What one comparison is: every choice that changes a measurement, in one frozen value."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posenc.workbench.configuration import Configuration, option

# Fewer evaluation windows than this give no interval worth drawing.
MIN_WINDOWS = 8

# Fields that say what to measure and leave each single measurement as it is: schemes and seeds can be added later. The
# text counts by its bytes, wherever they lie.
EXTENSIBLE = ("schemes", "seeds", "text")

# The table of a saved configuration that is not the user's to set.
MADE_WITH = "made_with"


@dataclass(frozen=True)
class CompareConfig(Configuration):
    """The configuration of ``posenc compare``; `posenc.lab.tasks.complete` adds what its task has for it."""

    task: str = option("text", "what to learn; defaults below are those of text")
    schemes: tuple[str, ...] = option(
        ("nope", "learned", "sinusoidal", "rope", "alibi"),
        "schemes to compare, joined by + to compose: rope+alibi; all: every one that the task has positions for",
    )
    text: tuple[str, ...] = option(
        (), "files, folders or globs to train and test on (default: Python's own sources)", commas=False
    )
    train_length: int = option(128, "bytes (words, patches a side) the models see at once in training", least=4)
    test_lengths: tuple[int, ...] = option(
        (), "as many in testing (default: the task's own; of text 1/2, 1, 2, 4, 8 x train length)", least=2
    )
    steps: int = option(400, "training steps")
    seeds: tuple[int, ...] = option((0,), "one training of every scheme per seed", least=0)
    layers: int = option(3, "layers of the model")
    dim: int = option(96, "width of the model")
    heads: int = option(4, "attention heads")
    kv_heads: int | None = option(None, "heads of keys and values (default: as many as heads)")
    inject: str = option(
        "input", "where vectors of position are added: input or every_layer", choices=("input", "every_layer")
    )
    per_layer: bool = option(False, "a learned scheme has parameters of its own in every layer")
    batch_size: int = option(16, "windows (images, sequences) in a training batch")
    learning_rate: float = option(5e-3, "highest learning rate", above=0)
    warmup: float = option(0.1, "share of the steps in which the learning rate rises")
    weight_decay: float = option(0.1, "weight decay of matrices")
    clip: float = option(1.0, "highest norm of the gradient", above=0)
    windows: int = option(
        64, "evaluation windows, each of the longest test length (images, groups of sequences)", least=MIN_WINDOWS
    )
    device: str = option("cpu", "where to train: cpu, cuda, cuda:1")

    def check(self) -> None:
        """ConfigError for sizes that do not fit together."""
        object.__setattr__(self, "test_lengths", tuple(sorted(self.test_lengths)))
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        assert self.kv_heads is not None
        for name in ("schemes", "seeds", "test_lengths"):
            value = getattr(self, name)
            some = bool(value) or name == "test_lengths"  # none: those of the task
            self.require(name, some and len(set(value)) == len(value), "one or more different values")
        self.require("dim", self.dim % self.heads == 0, f"a multiple of heads ({self.heads})")
        self.require("kv_heads", self.heads % self.kv_heads == 0, f"a divisor of heads ({self.heads})")
        self.require("warmup", 0 <= self.warmup < 1, "at least 0 and below 1")
        self.require("weight_decay", self.weight_decay >= 0, "at least 0")

    def to_toml(self, made_with: Mapping[str, str] | None = None) -> str:
        """The text of a TOML file that `posenc.lab.saved` reads as this configuration, and what it was made with."""

        # JSON's strings, numbers, arrays and booleans are TOML's too; there is no null, since nothing here stays None.
        def lines(values: Mapping[str, Any]) -> str:
            return "".join(f"{k} = {json.dumps(v, ensure_ascii=False)}\n" for k, v in values.items())

        return lines(self.to_dict()) + (f"\n[{MADE_WITH}]\n{lines(made_with)}" if made_with else "")

    def identity(self, **made_with: str) -> dict[str, Any]:
        """What two measurements must share to be of one comparison: these fields, and what they were made with."""
        unsaid = {"task"} if self.task == "text" else set()  # there was no other when the first runs were recorded
        return {name: v for name, v in self.to_dict().items() if name not in {*EXTENSIBLE, *unsaid}} | made_with
