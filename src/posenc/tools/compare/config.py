"""What one comparison is: every choice that changes a measurement, in one frozen value."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posenc.tools.kit.configuration import ConfigError, Configuration, option

# Fewer evaluation windows than this give no interval worth drawing.
MIN_WINDOWS = 8

# Fields that say what to measure and leave each single measurement as it is: schemes and seeds can be added later. The
# text and the plan count by their bytes, wherever they lie, and the rates by what each scheme's trainings record.
EXTENSIBLE = ("schemes", "seeds", "text", "rates", "reference", "timed", "plan")

# The table of a saved configuration that is not the user's to set.
MADE_WITH = "made_with"


@dataclass(frozen=True)
class Rate:
    """The highest learning rate of a training, and what that of its positional parameters is times it; None: what the
    scheme's entry says."""

    learning_rate: float
    multiplier: float | None = None

    def __str__(self) -> str:
        return f"{self.learning_rate:g}" + ("" if self.multiplier is None else f"x{self.multiplier:g}")

    @property
    def valid(self) -> bool:
        """Whether both are finite and above 0."""
        multiplier = 1.0 if self.multiplier is None else self.multiplier
        return all(n > 0 and math.isfinite(n) for n in (self.learning_rate, multiplier))


@dataclass(frozen=True)
class CompareConfig(Configuration):
    """The configuration of ``posenc compare``; `posenc.tools.compare.tasks.complete` adds what its task has for it."""

    task: str = option("text", "what to learn; defaults below are those of text")
    schemes: tuple[str, ...] = option(
        ("nope", "learned", "sinusoidal", "rope", "alibi"),
        "schemes to compare, joined by + to compose: rope+alibi; by ~ layer for layer, with windows: rope@32~nope; "
        "all: every one that the task has positions for",
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
    batch_seed: int | None = option(None, "one seed for all batches (default: each training's own)", least=0)
    reference: str = option("", "the scheme that the others are compared with (default: nope, or the first)")
    layers: int = option(3, "layers of the model")
    dim: int = option(96, "width of the model")
    heads: int = option(4, "attention heads")
    kv_heads: int | None = option(None, "heads of keys and values (default: as many as heads)")
    inject: str = option(
        "input", "where vectors of position are added: input or every_layer", choices=("input", "every_layer")
    )
    per_layer: bool = option(False, "a learned scheme has parameters of its own in every layer")
    batch_size: int = option(16, "windows (images, sequences) in a training batch")
    learning_rate: float = option(5e-3, "highest learning rate, where rates and --tune say nothing else", above=0)
    rates: tuple[str, ...] = option(
        (), "learning rates of single schemes, and what their positional parameters' are times that: t5=0.005x30"
    )
    tune: bool = option(False, "first find each scheme's learning rate and multiplier, on text kept for that")
    tune_rates: tuple[float, ...] = option(
        (1.25e-3, 2.5e-3, 5e-3, 1e-2, 2e-2), "learning rates to try in tuning", above=0
    )
    tune_multipliers: tuple[float, ...] = option(
        (1.0, 10.0, 30.0), "what to multiply them by for a scheme's parameters; none: by what entries say", above=0
    )
    tune_seeds: tuple[int, ...] = option(
        (0,), "one tuning of every scheme per seed, with weights and batches that no training has", least=0
    )
    warmup: float = option(0.1, "share of the steps in which the learning rate rises")
    weight_decay: float = option(0.1, "weight decay of matrices")
    clip: float = option(1.0, "highest norm of the gradient", above=0)
    windows: int = option(
        64, "evaluation windows, each of the longest test length (images, groups of sequences)", least=MIN_WINDOWS
    )
    timed: bool = option(True, "time training steps")
    plan: str = option("", "a file that says what is asked and how it is decided; its digest enters every record")
    device: str = option("cpu", "where to train: cpu, cuda, cuda:1")

    def check(self) -> None:
        """ConfigError for sizes that do not fit together."""
        object.__setattr__(self, "test_lengths", tuple(sorted(self.test_lengths)))
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        assert self.kv_heads is not None
        for name in ("schemes", "seeds", "test_lengths", "tune_rates", "tune_multipliers", "tune_seeds"):
            value = getattr(self, name)
            # No lengths: those of the task. No multipliers: those of the entries. No seeds: tuning alone.
            none = name in ("test_lengths", "tune_multipliers") or (name == "seeds" and self.tune)
            some = bool(value) or none
            self.require(name, some and len(set(value)) == len(value), "one or more different values")
        try:
            self.given_rates()
        except ValueError as error:
            raise ConfigError("rates", str(error)) from None
        self.require("dim", self.dim % self.heads == 0, f"a multiple of heads ({self.heads})")
        self.require("kv_heads", self.heads % self.kv_heads == 0, f"a divisor of heads ({self.heads})")
        self.require("warmup", 0 <= self.warmup < 1, "at least 0 and below 1")
        self.require("weight_decay", self.weight_decay >= 0, "at least 0")

    def given_rates(self) -> dict[str, "Rate"]:
        """The ``rates`` by scheme. ValueError for one that is not written SCHEME=RATE or SCHEME=RATExMULTIPLIER."""
        found: dict[str, Rate] = {}
        for words in self.rates:
            scheme, _, numbers = words.rpartition("=")
            rate, times, multiplier = numbers.partition("x")
            try:
                value = Rate(float(rate), float(multiplier) if times else None)
            except ValueError:
                value = Rate(math.nan)
            if not (scheme and value.valid) or scheme in found:
                raise ValueError(f"rates must be SCHEME=RATE or SCHEME=RATExMULTIPLIER, once a scheme, got {words!r}")
            found[scheme] = value
        return found

    def to_toml(self, made_with: Mapping[str, str] | None = None) -> str:
        """The text of a TOML file that `from_toml` reads as this configuration, and what it was made with."""

        # JSON's strings, numbers, arrays and booleans are TOML's too; for null, which it has not, a field is left out.
        def lines(values: Mapping[str, Any]) -> str:
            return "".join(f"{k} = {json.dumps(v, ensure_ascii=False)}\n" for k, v in values.items() if v is not None)

        return lines(self.to_dict()) + (f"\n[{MADE_WITH}]\n{lines(made_with)}" if made_with else "")

    def identity(self, **made_with: str) -> dict[str, Any]:
        """What two measurements must share to be of one comparison: these fields, and what they were made with."""
        unsaid = {"task"} if self.task == "text" else set()  # there was no other when the first runs were recorded
        return {name: v for name, v in self.to_dict().items() if name not in {*EXTENSIBLE, *unsaid}} | made_with
