"""Defines the configuration of a benchmark: every choice that changes a measurement."""

from dataclasses import dataclass
from typing import Any

from posenc_lab.kit.configuration import Configuration, option

AUTO = "auto"
DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class Settings(Configuration):
    """The configuration of ``posenc bench``."""

    EXTENSIBLE = ("lengths", "schemes")

    mine: str | None = option(
        None,
        "time your attention and posenc's instead: my_module:attention or path/to/file.py:attention, called as "
        "attention(query, key, value), each (1, heads, tokens, head_dim), and with scheme= if it has that parameter; "
        "it must return causal attention with the one scheme of --schemes (default: nope)",
    )
    regret: bool = option(
        False,
        "how much longer auto takes than the fastest backend that can run the call: causal and both directions, "
        "forward and training, with encodings bound before; eight schemes, 64 to 4,096 tokens, unless others are given",
    )
    lengths: tuple[int, ...] = option(
        (512, 1024, 2048, 4096, 8192, 16384, 32768), "powers of two (quick: 512,2048)", least=64
    )
    schemes: tuple[str, ...] = option(
        (), "catalog names, combined by +, my.py:MyScheme, or shaw_keys (default: the whole catalog)"
    )
    backends: tuple[str, ...] = option((), "auto, or backend names (default: auto and all; quick: auto)")
    dtype: str = option("float32", choices=DTYPES)  # of queries, keys and values
    device: str = option("cpu", "cpu, cuda, cuda:1")
    rounds: int = option(
        5, "minimum rounds per group; more follow until every ratio is known within a tenth (quick: 3)"
    )
    # Seconds: ``budget`` limits the additional rounds, and calls expected to last over ``longest`` are skipped.
    budget: float = option(30.0, above=0)
    longest: float = option(60.0, above=0)
    heads: int = option(8)
    head_dim: int = option(64)

    def check(self) -> None:
        """ConfigError for values that do not fit together; lengths are sorted."""
        one = self.mine is None or len(self.schemes) <= 1
        self.require("schemes", one, "the one scheme that --mine implements")
        self.require("regret", not (self.regret and self.mine), "False with --mine")
        self.require("lengths", bool(self.lengths), "one or more")
        self.require("lengths", all(n & (n - 1) == 0 for n in self.lengths), "powers of two from 64 on")
        object.__setattr__(self, "lengths", tuple(sorted(set(self.lengths))))


QUICK: dict[str, Any] = {
    "lengths": (512, 2048),
    "rounds": 3,
    "budget": 1.0,
    "longest": 2.0,
    "backends": (AUTO,),
}

REGRET: dict[str, Any] = {
    "lengths": (64, 128, 256, 512, 1024, 2048, 4096),
    "schemes": ("nope", "rope", "alibi", "t5", "shaw", "transformer_xl", "fire", "fox"),
    "rounds": 3,
    "budget": 1.0,
    "longest": 2.0,
}
