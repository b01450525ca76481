"""Defines the configuration of a benchmark: every choice that changes a measurement."""

from dataclasses import dataclass
from typing import Any

from posenc.tools.kit.configuration import Configuration, option

SECTIONS = {
    "price": "time of attention with each scheme and backend, relative to causal attention without positions",
    "growth": "time and peak memory against length",
    "rope": "rotating queries and keys, relative to cloning them; attention with RoPE, relative to that without "
    "positions",
    "busy": "slowdown when other processes keep every core busy",
    "peers": "ALiBi, T5 and Shaw's keys, compared with masks, FlexAttention and x-transformers",
    "decode": "decoding one token with a cache, relative to the same without positions",
    "mine": "your own attention compared with posenc's, once their outputs agree (with --mine)",
}
AUTO = "auto"
DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class Settings(Configuration):
    """The configuration of ``posenc bench``."""

    EXTENSIBLE = ("only", "lengths", "schemes")

    only: tuple[str, ...] = option(
        (), "sections to measure (default: all but mine; with --mine, only mine)", choices=tuple(SECTIONS)
    )
    mine: str | None = option(
        None,
        "my_module:attention or path/to/file.py:attention, called as attention(query, key, value), each (1, heads, "
        "tokens, head_dim), and with scheme= if it has that parameter; it must return causal attention with the one "
        "scheme of --schemes (default: nope)",
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
    compiled: bool = option(True)  # includes competitors that need torch.compile
    heads: int = option(8)
    head_dim: int = option(64)
    rotated: tuple[int, ...] = option((4, 16, 2048, 64))
    rotated_dtypes: tuple[str, ...] = option(("float32", "bfloat16"), choices=DTYPES)
    rotated_lengths: tuple[int, ...] = option((128, 1024, 4096))
    busy_lengths: tuple[int, ...] = option((1024, 4096))
    products: tuple[int, ...] = option((512, 1024, 2048))  # sizes of the square matrix products that measure the limit
    peer_lengths: tuple[int, ...] = option((2048, 4096))
    cache: int = option(16384)

    def check(self) -> None:
        """ConfigError for values that do not fit together; lengths are sorted."""
        if not self.only:
            rest = tuple(name for name in SECTIONS if name != "mine")
            object.__setattr__(self, "only", rest if self.mine is None else ("mine",))
        timed = "mine" in self.only
        self.require("mine", not timed or self.mine is not None, "the attention to time, such as my.py:attention")
        self.require("only", timed or self.mine is None, "sections that include mine where --mine is given")
        self.require("schemes", not timed or len(self.schemes) <= 1, "the one scheme that --mine implements")
        self.require("lengths", bool(self.lengths), "one or more")
        self.require("lengths", all(n & (n - 1) == 0 for n in self.lengths), "powers of two from 64 on")
        self.require("rotated", len(self.rotated) == 4, "(batch, heads, tokens, head_dim)")
        object.__setattr__(self, "lengths", tuple(sorted(set(self.lengths))))


QUICK: dict[str, Any] = {
    "lengths": (512, 2048),
    "rounds": 3,
    "budget": 1.0,
    "longest": 2.0,
    "backends": (AUTO,),
    "compiled": False,
    "peer_lengths": (1024,),
    "rotated_lengths": (128, 1024),
    "busy_lengths": (1024,),
}
