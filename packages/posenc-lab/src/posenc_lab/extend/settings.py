"""Defines the configuration of an extension: every choice that changes a measurement."""

from collections.abc import Iterator
from dataclasses import dataclass

from posenc_lab.kit.configuration import ConfigError, Configuration, option

# Names of the command line, in the order of reports.
SCALINGS = ("none", "linear", "ntk", "dynamic", "yarn", "llama3", "dynamic_yarn", "base")
PLAIN = "none"
CROPPED = "cropped"  # the unscaled model, given no more tokens than it was trained on


@dataclass(frozen=True)
class Extension(Configuration):
    """The configuration of ``posenc extend``."""

    EXTENSIBLE = ("scalings", "lengths", "text")

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
    trained_length: int | None = option(None, "trained length of the model (default: from its configuration)")
    base: float | None = option(None, "RoPE base that the scaling base gives the model, above its own", above=1)
    dtype: str = option("float32", "float32, bfloat16 or float16", choices=("float32", "bfloat16", "float16"))
    attention: str = option("posenc", "posenc or sdpa", choices=("posenc", "sdpa"))
    device: str = option("cpu", "cpu, cuda, cuda:1")

    def check(self) -> None:
        """ConfigError for values that do not fit together; lengths are put in order."""
        fine = bool(self.scalings) and len(set(self.scalings)) == len(self.scalings)
        self.require("scalings", fine, "one or more different values")
        object.__setattr__(self, "lengths", tuple(sorted(set(self.lengths))))
        if self.final is not None and self.lengths:
            shortest = self.lengths[0]
            self.require("final", self.final <= shortest, f"at most the shortest length ({shortest})")
        if "base" in self.scalings and self.base is None:
            raise ConfigError("scalings", "base needs the number: add --base N, such as --base 1000000")
        self.require("base", self.base is None or "base" in self.scalings, "omitted unless scalings have base")

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

    def plan(self, scaling: str) -> Iterator[tuple[str, int, int]]:
        """(kind, number of the piece, length) of all measurements of a scaling, or of the cropped text: the baseline of
        longer lengths."""
        assert self.windows is not None
        lengths, longest = self.lengths, self.lengths[-1]
        if scaling == CROPPED:
            lengths = (self.trained,) if self.trained <= longest else ()
        for length in lengths:
            for number in range(self.windows):
                yield "final", number, length
                if length == longest and scaling != CROPPED:
                    yield "by_position", number, length
