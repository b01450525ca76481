"""What one comparison is: every choice that changes a measurement, in one frozen value."""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc.arguments import shown
from posenc.workbench.configuration import ConfigError, Configuration, option

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Fewer evaluation windows than this give no interval worth drawing.
MIN_WINDOWS = 8

# Fields that say what to measure and leave each single measurement as it is: schemes and seeds can be added later. The
# text counts by its bytes, wherever they lie.
EXTENSIBLE = ("schemes", "seeds", "text")

# Each task, with the values it begins with in place of those below.
TASKS: dict[str, dict[str, Any]] = {
    "text": {},
    "digits": {
        "schemes": ("nope", "learned", "sinusoidal", "rope", "alibi", "fourier_features", "relative_2d"),
        "train_length": 8,
        "steps": 400,
        "layers": 2,
        "dim": 48,
        "batch_size": 32,
        "learning_rate": 3e-3,
        "windows": 500,
    },
    "classify": {
        "schemes": ("nope", "learned", "sinusoidal", "rope", "alibi", "shaw", "distance_aware"),
        "train_length": 32,
        "steps": 300,
        "layers": 2,
        "dim": 48,
        "batch_size": 64,
        "windows": 128,
    },
}

# Where a task tests, in training lengths.
MULTIPLES = {"text": (0.5, 1, 2, 4, 8), "digits": (0.75, 1, 1.5, 2), "classify": (0.5, 1, 2, 4)}

# The table of a saved configuration that is not the user's to set.
MADE_WITH = "made_with"


@dataclass(frozen=True)
class CompareConfig(Configuration):
    """The configuration of ``posenc compare``.

    Checked when it is made: a wrong value is a `ConfigError` that names the field, what was expected and what came.

    >>> CompareConfig(train_length=64).test_lengths
    (32, 64, 128, 256, 512)
    """

    task: str = option(
        "text", "what to learn: text, digits or classify; defaults below are those of text", choices=tuple(TASKS)
    )
    schemes: tuple[str, ...] = option(
        ("nope", "learned", "sinusoidal", "rope", "alibi"),
        "schemes to compare, joined by + to compose: rope+alibi; all: every one that the task has positions for",
    )
    text: tuple[str, ...] = option(
        (), "files, folders or globs to train and test on (default: Python's own sources)", commas=False
    )
    train_length: int = option(128, "bytes (words, patches a side) the models see at once in training", least=4)
    test_lengths: tuple[int, ...] = option((), "as many in testing (default: 1/2, 1, 2, 4, 8 x train length)", least=2)
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
        if self.task == "digits":
            self.require("train_length", self.train_length in (4, 8), "4 or 8, patches along a side of 8 pixels")
        if self.task == "classify":
            self.require("train_length", self.train_length % 8 == 0, "a multiple of 8")
        if not self.test_lengths:
            lengths = tuple(int(times * self.train_length) for times in MULTIPLES[self.task])
            object.__setattr__(self, "test_lengths", lengths)
        object.__setattr__(self, "test_lengths", tuple(sorted(self.test_lengths)))
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        assert self.kv_heads is not None
        for name in ("schemes", "seeds", "test_lengths"):
            value = getattr(self, name)
            self.require(name, len(set(value)) == len(value) > 0, "one or more different values")
        if self.task == "classify":
            half = self.train_length // 2
            self.require("test_lengths", self.test_lengths[0] >= half, f"at least {half} each, half of train_length")
        self.require("dim", self.dim % self.heads == 0, f"a multiple of heads ({self.heads})")
        self.require("kv_heads", self.heads % self.kv_heads == 0, f"a divisor of heads ({self.heads})")
        self.require("warmup", 0 <= self.warmup < 1, "at least 0 and below 1")
        self.require("weight_decay", self.weight_decay >= 0, "at least 0")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "CompareConfig":
        """A configuration from names and values, with the task's own for those not given. `ConfigError` for a name it
        does not know, with the closest it does.

        >>> CompareConfig.from_mapping({"task": "digits"}).test_lengths
        (6, 8, 12, 16)
        """
        task = values.get("task", "text")
        return super().from_mapping({**(TASKS.get(task, {}) if isinstance(task, str) else {}), **values})

    @classmethod
    def from_toml(cls, path: str | Path, **overrides: Any) -> "CompareConfig":
        """A configuration from a TOML file, with ``overrides`` put over what the file says.

        ValueError, naming the line, for what is not TOML and for a wrong value that is the file's.
        """
        values = {name: value for name, value in _toml(path).items() if name != MADE_WITH}
        try:
            return cls.from_mapping({**values, **overrides})
        except ConfigError as error:
            if error.field in overrides or error.field not in values:
                raise
            raise ValueError(f"{_place(path, error.field)}: {error}") from None

    def to_toml(self, made_with: Mapping[str, str] | None = None) -> str:
        """The text of a TOML file that `from_toml` reads as this configuration, and what it was made with."""

        # JSON's strings, numbers, arrays and booleans are TOML's too; there is no null, since nothing here stays None.
        def lines(values: Mapping[str, Any]) -> str:
            return "".join(f"{k} = {json.dumps(v, ensure_ascii=False)}\n" for k, v in values.items())

        return lines(self.to_dict()) + (f"\n[{MADE_WITH}]\n{lines(made_with)}" if made_with else "")

    def identity(self, **made_with: str) -> dict[str, Any]:
        """What two measurements must share to be of one comparison: these fields, and what they were made with."""
        unsaid = {"task"} if self.task == "text" else set()  # there was no other when the first runs were recorded
        return {name: v for name, v in self.to_dict().items() if name not in {*EXTENSIBLE, *unsaid}} | made_with


def saved_identity(path: Path) -> dict[str, Any]:
    """The identity of a configuration that `CompareConfig.to_toml` has saved. ValueError as `from_toml` raises it."""
    made_with = _toml(path).get(MADE_WITH, {})
    if not isinstance(made_with, dict):
        raise ValueError(f"{_place(path, MADE_WITH)}: {MADE_WITH} must be a table, got {shown(made_with)}")
    return CompareConfig.from_toml(path).identity(**made_with)


def _toml(path: str | Path) -> dict[str, Any]:
    data = Path(path).read_bytes()
    try:
        text = data.decode()
        return tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}, is not TOML: {error}") from None
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        line = int(found[1]) if found else text.count("\n") + 1  # at the end of the document
        raise ValueError(f"{path}, line {line}, is not TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is not a configuration: nested too deeply") from None


def _place(path: str | Path, name: str) -> str:
    """The file, and the line of it in which a key of the first level is given."""
    key = re.compile(rf"""\s*\[*\s*["']?{re.escape(name)}["']?\s*[=.\]]""")
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    # None where the key is written with escapes.
    found = next((number for number, line in enumerate(lines, 1) if key.match(line)), None)
    return f"{path}, line {found}" if found else str(path)
