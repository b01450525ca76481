"""What is expected of the kernels, and what `auto` is to take.

A prediction is a ratio of two times of the same text and phase. Goals are inverses of the speeds that were wanted,
relative to FlashAttention-2. Those of counts come from instructions compiled for sm_90, of a block of 128 queries and
64 keys by eight warps. Those of FlexAttention, of biases made before and of wide heads were written after the first run
on a GPU, all others before; docs/gpu.md says what came.
"""

from dataclasses import asdict, dataclass
from typing import Any

from posenc.tools.bench.gpu.place import DECODING, PHASES, REAL, ROTATION, Sizes
from posenc.tools.bench.gpu.plans import MINUTES, QUICK
from posenc.tools.bench.gpu.timing import BIASED, DENSE, FLEX, LINE, TABLE, VECTORS
from posenc.tools.bench.gpu.ways import AGAIN, ANY, COPY, CUDNN, FLASH, PLAIN

FORWARD, TRAINING = PHASES
SHORT, LONG = REAL.lengths
GOAL = "goal"
# A multiprocessor takes 512 clocks for the products of a tile of 128 x 64, of 64 channels, 512 for its exponentials,
# and 780 to issue 390 instructions of each of 8 warps. That is 900 to 1,250 clocks, or 390 to 540 TFLOP/s of an H100.
# PyTorch's flash is taken to have 300 to 400 of them.
COUNTED = "390 instructions in the far loop: 390 to 540 TFLOP/s, and flash some 350"
DENSELY = "no pair is left out, and two bytes are read for each"


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
    Prediction(AGAIN, FLASH, SHORT, FORWARD, 0.97, 1.03, "the same call: what the device's clocks add"),
    *_both(CUDNN, FLASH, FORWARD, 0.5, 0.8, "asynchronous products, which PyTorch's flash has not"),
    *_both(PLAIN, FLASH, FORWARD, 0.65, 1.1, COUNTED),
    *_both(PLAIN, FLASH, TRAINING, 1.0, 1.6, "seven products for five: queries and keys have a kernel each"),
    *_both(LINE, FLASH, FORWARD, 0.9, 1.11, f"{GOAL}: 0.9 to 1.1 of its speed"),
    *_both(LINE, FLASH, TRAINING, 1.11, 1.43, f"{GOAL}: 0.7 to 0.9 of its speed"),
    *_both(LINE, PLAIN, FORWARD, 1.0, 1.15, "a line is an addition per score and a column per tile"),
    Prediction(LINE, CUDNN, LONG, FORWARD, 0.3, 1.0, f"{GOAL}: below dense, with 28 % computed"),
    *_both(LINE, "alibi, flex", FORWARD, 0.5, 0.9, "flex computes each bias from indices"),
    *(Prediction(way, FLASH, SHORT, FORWARD, 2.0, 8.0, DENSELY) for way in BIASED),
    *_both(TABLE, PLAIN, TRAINING, 1.0, 1.3, f"{GOAL}: 1.3 times a plain step, deterministic"),
    Prediction(TABLE, "learned t5, flex", SHORT, TRAINING, 0.05, 0.5, "flex adds far pairs to one address"),
    *_both(VECTORS, FLASH, FORWARD, 1.0, 2.0, "near tiles have more products and spill, but are few"),
    *_both(DENSE, FLASH, FORWARD, 1.8, 2.5, f"{GOAL}: half its speed; all pairs are near"),
    *_both(DENSE, FLASH, TRAINING, 2.5, 3.5, f"{GOAL}: 0.35 of its speed"),
    *_both(FLEX, FLASH, FORWARD, 0.9, 1.3, "published for causal masks"),
    *_both("rope, auto", FLASH, FORWARD, 1.02, 1.3, "one kernel turns both, at the speed of a copy"),
    Prediction("rope", COPY, LONG, ROTATION, 1.0, 1.3, "read and written once"),
    *(
        Prediction(f"{name}, auto", ANY, keys, DECODING, 0.8, 2.0, "the cache is read once, split over programs")
        for keys in REAL.lengths
        for name in ("alibi", "t5", "fire")
    ),
    *(
        Prediction(way, FLASH, SHORT, f"{phase}/{REAL.wide}", 0.7, 1.6, "twice the products for each exponential")
        for way in (PLAIN, LINE, TABLE)
        for phase in PHASES
    ),
)  # fmt: skip


# Choices of ``auto``: the way whose line says what it takes now, and the backends as they are called here. It takes the
# fastest that was measured, of the device's own time, but keeps what it takes now unless another is faster by more than
# the margin; where that differs by length or phase, so does the choice.
MARGIN = 0.05
RULES: dict[str, tuple[str, dict[str, str]]] = {
    "nothing added": (PLAIN, {"sdpa": ANY, "triton": PLAIN, "flex": FLEX}),
    "a line in distance (ALiBi)": (LINE, {"triton": LINE, "flex": "alibi, flex"}),
    "a learned table (T5)": (TABLE, {"triton": TABLE, "flex": "learned t5, flex"}),
}


def told(plan: str, sizes: Sizes) -> dict[str, Any]:
    """All of it as data, for the first line of a file of results; of a dry run, at its lengths."""
    if plan not in (MINUTES, QUICK):
        return {"predictions": [], "rules": []}
    at = dict(zip(REAL.lengths, sizes.lengths, strict=True))
    wide = {f"{phase}/{REAL.wide}": f"{phase}/{sizes.wide}" for phase in PHASES}
    here = [
        asdict(each) | {"length": at[each.length], "phase": wide.get(each.phase, each.phase)} for each in PREDICTIONS
    ]
    rules = [{"name": name, "now": now, "ways": ways, "margin": MARGIN} for name, (now, ways) in RULES.items()]
    return {"predictions": here, "rules": rules}
