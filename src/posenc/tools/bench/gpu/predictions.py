"""What is expected of the kernels, written down before any of them has run on a GPU; and what `auto` is to take.

A prediction is a ratio of two times of the same text and phase. Those of goals are inverses of the speeds that were
wanted, relative to FlashAttention-2. Those of counts come from instructions compiled for sm_90, of a block of 128
queries and 64 keys by eight warps.
"""

from dataclasses import asdict, dataclass
from typing import Any

from posenc.tools.bench.gpu import ways
from posenc.tools.bench.gpu.place import PHASES, REAL, Sizes
from posenc.tools.bench.gpu.plans import MINUTES, VARIANTS
from posenc.tools.bench.gpu.variants import TAKEN

FORWARD, TRAINING = PHASES
SHORT, LONG = REAL.lengths
GOAL = "goal"
# A multiprocessor takes 512 clocks for the products of a tile of 128 x 64, of 64 channels, 512 for its exponentials,
# and 780 to issue 390 instructions of each of 8 warps. That is 900 to 1,250 clocks, or 390 to 540 TFLOP/s of an H100.
# PyTorch's flash is taken to have 300 to 400 of them.
COUNTED = "390 instructions in the far loop: 390 to 540 TFLOP/s, and flash some 350"
PLAIN = ways.PLAIN


@dataclass(frozen=True)
class Prediction:
    """The time of ``of`` over that of ``over`` is between ``low`` and ``high``, at the length and in the phase."""

    of: str
    over: str
    length: int
    phase: str
    low: float
    high: float
    why: str


def _both(of: str, over: str, phase: str, low: float, high: float, why: str) -> tuple[Prediction, ...]:
    return tuple(Prediction(of, over, length, phase, low, high, why) for length in (SHORT, LONG))


PREDICTIONS: tuple[Prediction, ...] = (
    *_both(ways.AGAIN, ways.FLASH, FORWARD, 0.97, 1.03, "the same call: what the device's clocks add"),
    *_both(ways.CUDNN, ways.FLASH, FORWARD, 0.5, 0.8, "asynchronous products, which PyTorch's flash has not"),
    *_both(PLAIN, ways.FLASH, FORWARD, 0.65, 1.1, COUNTED),
    *_both(PLAIN, ways.FLASH, TRAINING, 1.0, 1.6, "seven products for five: queries and keys have a kernel each"),
    *_both("alibi, triton", ways.FLASH, FORWARD, 0.9, 1.11, f"{GOAL}: 0.9 to 1.1 of its speed"),
    *_both("alibi, triton", ways.FLASH, TRAINING, 1.11, 1.43, f"{GOAL}: 0.7 to 0.9 of its speed"),
    *_both("alibi, triton", PLAIN, FORWARD, 1.0, 1.15, "a line is an addition per score and a column per tile"),
    Prediction("alibi, triton", ways.CUDNN, LONG, FORWARD, 0.3, 1.0, f"{GOAL}: below dense, with 28 % computed"),
    *_both("alibi, triton", "alibi, flex", FORWARD, 0.5, 0.9, "flex computes each bias from indices"),
    *_both("alibi, sdpa with a mask", ways.FLASH, FORWARD, 3.0, 12.0, "a mask of two bytes a pair is made and read"),
    *_both("learned t5, triton", PLAIN, TRAINING, 1.0, 1.3, f"{GOAL}: 1.3 times a plain step, deterministic"),
    *_both("learned t5, triton", "learned t5, flex", TRAINING, 0.05, 0.5, "flex adds far pairs to one address"),
    *_both("shaw, triton", ways.FLASH, FORWARD, 1.0, 2.0, "near tiles have more products and spill, but are few"),
    *_both("transformer_xl, triton", ways.FLASH, FORWARD, 1.8, 2.5, f"{GOAL}: half its speed; all pairs are near"),
    *_both("transformer_xl, triton", ways.FLASH, TRAINING, 2.5, 3.5, f"{GOAL}: 0.35 of its speed"),
    *_both(ways.FLEX_STATIC, ways.FLASH, FORWARD, 0.9, 1.3, "published for causal masks"),
    *_both(ways.FLEX_DYNAMIC, ways.FLEX_STATIC, FORWARD, 1.0, 1.1, "bounds of loops are arguments"),
    *_both("rope, auto", ways.FLASH, FORWARD, 1.02, 1.3, "one kernel turns both, at the speed of a copy"),
    *_both("nothing added, triton, 1 stage", PLAIN, FORWARD, 1.1, 1.5, "loads wait for products"),
    *_both("nothing added, triton, 2 stages", PLAIN, FORWARD, 1.1, 1.6, "as measured"),
    *_both("shaw, triton, near in 2 stages", "shaw, triton", FORWARD, 1.0, 1.5, "near kernels spill already"),
    Prediction("rope", "copy", LONG, "rotation", 1.0, 1.3, "read and written once"),
    *(
        Prediction(f"{name}, auto", "plain", keys, "decoding", 0.8, 2.0, "the cache is read once, split over programs")
        for keys in REAL.lengths
        for name in ("alibi", "t5", "fire")
    ),
)  # fmt: skip

# Of the second command: each over the sizes and stages that are taken.
VARIED: tuple[Prediction, ...] = tuple(
    Prediction(f"{scheme} {how}", f"{scheme} {TAKEN}", SHORT, phase, low, high, why)
    for how, phase, low, high, why in (
        ("128x64x64 8 2", FORWARD, 0.97, 1.03, "it is what is taken"),
        ("128x64x64 8 1", FORWARD, 1.1, 1.5, "loads wait for products"),
        ("128x64x64 4 2", FORWARD, 0.9, 1.3, "twice the registers a thread, half the warps"),
        ("128x128x64 8 2", FORWARD, 0.9, 1.2, "fewer steps, but more registers for scores"),
        ("64x64x64 8 2", FORWARD, 1.1, 1.6, "half the work for every load of keys"),
        ("128x64x64 8 1", TRAINING, 1.05, 1.4, "loads wait for products"),
        ("128x128x64 8 2", TRAINING, 1.0, 2.0, "the backward pass holds more blocks, and spills"),
    )
    for scheme in ("nope", "alibi")
)


@dataclass(frozen=True)
class Rule:
    """A choice of ``auto``: the backends and how each of them is called here, at ``lengths`` in ``phases``.

    It takes the fastest that was measured, of the device's own time. It keeps what it takes now unless another is
    faster by more than ``margin``; where that differs by length or phase, so does the choice.
    """

    name: str
    now: str  # a backend, or who says it: the way with this name
    ways: dict[str, str]
    phases: tuple[str, ...] = PHASES
    margin: float = 0.05


RULES: tuple[Rule, ...] = (
    Rule("nothing added", PLAIN, {"sdpa": ways.FLASH, "triton": PLAIN, "flex": ways.FLEX_DYNAMIC}),
    Rule("a line in distance (ALiBi)", "alibi, triton",
         {"triton": "alibi, triton", "flex": "alibi, flex", "sdpa": "alibi, sdpa with a mask"}),
    Rule("a learned table (T5)", "learned t5, triton",
         {"triton": "learned t5, triton", "tiled": "learned t5, tiled", "flex": "learned t5, flex"}),
    Rule("vectors by distance (Shaw)", "shaw, triton", {"triton": "shaw, triton", "tiled": "shaw, tiled"}),
    *(Rule(f"decoding with {name}", f"{name}, auto", {"triton": f"{name}, triton", "sdpa": f"{name}, sdpa"},
           ("decoding",)) for name in ("alibi", "t5")),
)  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """A number in the code that is taken unless ``other`` is faster than ``taken`` by more than ``margin``."""

    name: str
    taken: str
    other: str
    then: str
    phases: tuple[str, ...] = (FORWARD,)
    margin: float = 0.05


SETTINGS: tuple[Setting, ...] = (
    Setting("stages of far loops", PLAIN, "nothing added, triton, 1 stage", "FAR has 1 stage"),
    Setting("fewer stages of far loops", PLAIN, "nothing added, triton, 2 stages", "far loops have 2 stages"),
    Setting("stages of near kernels", "shaw, triton", "shaw, triton, near in 2 stages", "NEAR has 2 stages"),
    Setting("lengths of flex", ways.FLEX_DYNAMIC, ways.FLEX_STATIC, "flex is compiled for each length", PHASES),
    Setting("PyTorch's kernel", ways.FLASH, ways.CUDNN, "documentation names cuDNN first", PHASES),
)


def told(plan: str, sizes: Sizes) -> dict[str, Any]:
    """All of it as data, for the first line of a file of results; of a dry run, at its lengths."""
    predictions = {MINUTES: PREDICTIONS, VARIANTS: VARIED}.get(plan, ())
    at = dict(zip(REAL.lengths, sizes.lengths, strict=True))
    found: dict[str, Any] = {"predictions": [asdict(each) | {"length": at[each.length]} for each in predictions]}
    found |= {"rules": [], "settings": []}
    if plan == MINUTES:
        found |= {"rules": [asdict(each) for each in RULES], "settings": [asdict(each) for each in SETTINGS]}
    return found
