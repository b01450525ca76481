"""Defines the configuration of an extension: every choice that changes a measurement."""

from collections.abc import Iterator
from dataclasses import dataclass

from posenc_lab.kit.configuration import ConfigError, Configuration, option

# Names of the command line, in the order of reports.
SCALINGS = ("none", "linear", "ntk", "dynamic", "yarn", "llama3", "longrope", "dynamic_yarn", "base")
PLAIN = "none"
CROPPED = "cropped"  # the unscaled model, given no more tokens than it was trained on
PUZZLES = {"passkey": "a number that occurs once in a text", "item": "the word with a given number in a list"}
TASKS = ("text", *PUZZLES)


@dataclass(frozen=True)
class Extension(Configuration):
    """The configuration of ``posenc extend``."""

    EXTENSIBLE = ("scalings", "lengths", "tasks", "depths", "trials", "text")

    model: str = option("smollm2")
    scalings: tuple[str, ...] = option(
        ("none", "linear", "ntk", "dynamic", "yarn"),
        "scalings of the rotary frequencies: " + ", ".join(SCALINGS),
        choices=SCALINGS,
    )
    factor: float = option(4.0, "target context length of the scalings, as a multiple of the trained length", above=1)
    lengths: tuple[int, ...] = option(
        (), "context lengths in tokens (default: 1/2, 1, 2 .. times the trained length, up to factor)", least=16
    )
    text: tuple[str, ...] = option(
        (), "files, folders or globs to test on (default: Python's standard library)", commas=False
    )
    tasks: tuple[str, ...] = option(TASKS, "tasks to measure: " + ", ".join(TASKS), choices=TASKS)
    windows: int | None = option(
        None,
        "pieces of text, each of the longest length (default: the folder's, else 8, or as many as the text has)",
        least=2,
    )
    final: int | None = option(
        None,
        "tokens at the end of each piece that are scored at every length (default: the folder's, else 256, but at most "
        "the shortest length and the trained length)",
        least=8,
    )
    depths: tuple[int, ...] = option((10, 50, 90), "depths of passkey and item, in percent of the length", least=0)
    trials: int = option(2, "passkeys and lists per depth and length")
    trained_length: int | None = option(None, "trained length of the model (default: from its configuration)")
    factors: str | None = option(None, "JSON file with LongRoPE's short_factor and long_factor, which longrope needs")
    base: float | None = option(None, "RoPE base that the scaling base gives the model, above its own", above=1)
    train: int = option(0, "fine-tuning steps with each scaling before it is measured", least=0)
    train_length: int | None = option(
        None, "length of fine-tuning texts in tokens (default: the longest length)", least=16
    )
    train_batch: int = option(1, "texts in a fine-tuning step")
    lora: int = option(0, "rank of LoRA fine-tuning; 0: fine-tune all weights", least=0)
    learning_rate: float = option(2e-5, "peak learning rate of fine-tuning", above=0)
    seed: int = option(0, "seed of passkeys, lists, LoRA's initial weights and fine-tuning texts", least=0)
    dtype: str = option("float32", "float32, bfloat16 or float16", choices=("float32", "bfloat16", "float16"))
    attention: str = option("posenc", "posenc or sdpa", choices=("posenc", "sdpa"))
    device: str = option("cpu", "cpu, cuda, cuda:1")

    def check(self) -> None:
        """ConfigError for values that do not fit together; lengths and depths are put in order."""
        for name in ("scalings", "tasks", "depths"):
            value = getattr(self, name)
            self.require(name, bool(value) and len(set(value)) == len(value), "one or more different values")
        object.__setattr__(self, "lengths", tuple(sorted(set(self.lengths))))
        object.__setattr__(self, "depths", tuple(sorted(self.depths)))
        self.require("depths", self.depths[-1] <= 100, "percent, 0 to 100")
        if self.final is not None and self.lengths:
            shortest = self.lengths[0]
            self.require("final", self.final <= shortest, f"at most the shortest length ({shortest})")
        if "longrope" in self.scalings and self.factors is None:
            raise ConfigError("scalings", "longrope needs its factors: add --factors FILE")
        if "base" in self.scalings and self.base is None:
            raise ConfigError("scalings", "base needs the number: add --base N, such as --base 1000000")
        self.require("base", self.base is None or "base" in self.scalings, "omitted unless scalings have base")
        fine = self.train == 0 or self.lora > 0 or self.dtype == "float32"
        self.require("dtype", fine, "float32 where all weights are trained: half precision loses most small updates")
        if self.lora and not self.train:
            raise ConfigError("lora", f"lora needs --train N, got lora {self.lora} and nothing to train")

    @property
    def scored(self) -> int:
        """``final``, once it is resolved."""
        assert self.final is not None
        return self.final

    @property
    def trained(self) -> int:
        """``trained_length``, once it is resolved."""
        assert self.trained_length is not None
        return self.trained_length

    @property
    def pieces(self) -> int:
        """``windows``, once it is resolved."""
        assert self.windows is not None
        return self.windows

    @property
    def puzzles(self) -> tuple[str, ...]:
        """The puzzles among the tasks."""
        return tuple(kind for kind in PUZZLES if kind in self.tasks)

    def scored_at(self, scaling: str) -> tuple[int, ...]:
        """The lengths at which final tokens are scored. Longer ones are compared with the trained length: of the
        unscaled model, or of a fine-tuned model itself, since fine-tuning on the text changes more than the length."""
        if "text" not in self.tasks:
            return ()
        baseline = (self.trained,) if self.trained <= self.lengths[-1] else ()
        if scaling == CROPPED:
            return () if self.train else baseline
        return tuple(sorted({*self.lengths, *(baseline if self.train else ())}))

    def plan(self, scaling: str) -> Iterator[tuple[str, int, int]]:
        """(kind, number of the piece or puzzle, length) of all measurements of a scaling, or of the cropped text. A
        puzzle's number is 1000 times the trial, plus the depth in percent."""
        scored = self.scored_at(scaling)
        for length in sorted({*self.lengths, *scored}):
            for window in range(self.pieces if length in scored else 0):
                yield "final", window, length
                if length == self.lengths[-1] and scaling != CROPPED:
                    yield "by_position", window, length
            if scaling == CROPPED or length not in self.lengths:
                continue
            for kind in self.puzzles:
                yield from (
                    (kind, trial * 1000 + depth, length) for depth in self.depths for trial in range(self.trials)
                )

    def name(self, scaling: str) -> str:
        """The name of a scaling in records and reports, which says if it was fine-tuned."""
        return f"{scaling}, {self.train} steps" if self.train and scaling != CROPPED else scaling
