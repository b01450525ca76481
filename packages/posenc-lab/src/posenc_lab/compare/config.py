"""Defines the configuration of a comparison: every choice that changes a measurement."""

import math
from dataclasses import dataclass
from typing import Any

from posenc_lab.kit.configuration import ConfigError, Configuration, option

# Fewer evaluation windows than this give no useful interval.
MIN_WINDOWS = 8


@dataclass(frozen=True)
class Rate:
    """The peak learning rate of a training run, and the multiplier for positional parameters; None: that of the
    scheme's catalog entry."""

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
    """The configuration of ``posenc compare``; `posenc_lab.compare.tasks.complete` adds the task's defaults."""

    # The texts and the plan are identified by their bytes, not their paths; the rates by the records of each training.
    EXTENSIBLE = ("schemes", "seeds", "text", "copies", "rates", "reference", "timed", "plan")

    task: str = option("text", "the task; the defaults below are those of text")
    schemes: tuple[str, ...] = option(
        ("nope", "learned", "sinusoidal", "rope", "alibi"),
        "schemes to compare; + combines schemes: rope+alibi; ~ separates layers, @ sets a window: rope@32~nope; "
        "all: every scheme that supports the task",
    )
    text: tuple[str, ...] = option(
        (), "files, folders or globs to train and test on (default: Python's standard library)", commas=False
    )
    copies: tuple[str, ...] = option(
        (), "of pieces: files of pairs of a source and a copy of 48 bytes (default: pieces of the text)", commas=False
    )
    train_length: int = option(128, "training length in bytes (characters of a puzzle)", least=4)
    test_lengths: tuple[int, ...] = option(
        (), "test lengths (default: the task's own; for text 1/2, 1, 2, 4, 8 x train length)", least=2
    )
    steps: int = option(400, "training steps")
    seeds: tuple[int, ...] = option((0,), "seeds; each scheme is trained once per seed", least=0)
    batch_seed: int | None = option(None, "one seed for all batches (default: the seed of each training)", least=0)
    reference: str = option("", "scheme that the others are compared with (default: nope, or the first)")
    layers: int = option(3, "number of layers")
    dim: int = option(96, "width of the model")
    heads: int = option(4, "number of attention heads")
    kv_heads: int | None = option(None, "number of key and value heads (default: heads)")
    inject: str = option(
        "input", "where position vectors are added: input or every_layer", choices=("input", "every_layer")
    )
    per_layer: bool = option(False, "do not share a learned scheme's parameters between layers")
    batch_size: int = option(8, "windows or rows in a training batch")
    learning_rate: float = option(5e-3, "peak learning rate, unless --rates or --tune sets another", above=0)
    rates: tuple[str, ...] = option(
        (), "learning rates by scheme, with a multiplier for positional parameters: t5=0.005x30"
    )
    tune: bool = option(False, "first tune each scheme's learning rate and multiplier, on held-out text")
    tune_rates: tuple[float, ...] = option(
        (1.25e-3, 2.5e-3, 5e-3, 1e-2, 2e-2), "learning rates to try in tuning", above=0
    )
    tune_multipliers: tuple[float, ...] = option(
        (0.3, 1.0, 10.0, 30.0, 100.0),
        "learning rate multipliers to try for positional parameters; none: the catalog's",
        above=0,
    )
    tune_seeds: tuple[int, ...] = option(
        (0,), "seeds of tuning, used for no training; each scheme is tuned once per seed", least=0
    )
    warmup: float = option(0.1, "fraction of the steps used for warmup")
    weight_decay: float = option(0.1, "weight decay of matrices")
    clip: float = option(1.0, "maximum gradient norm", above=0)
    windows: int = option(32, "test windows, each of the longest test length (rows of each length)", least=MIN_WINDOWS)
    timed: bool = option(True, "time training steps")
    plan: str = option("", "a file with the hypotheses and how they are decided; its hash is stored in every record")
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
        self.require("copies", not self.copies or self.task == "pieces", "none unless the task is pieces")
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

    def identity(self, **made_with: Any) -> dict[str, Any]:
        identity = super().identity(**made_with)
        if self.task == "text":  # the first records have no task: all were of text
            del identity["task"]
        return identity
