"""Records that nothing was measured for."""

from typing import Any

PHASES = ("forward", "training")
ABOUT: dict[str, Any] = {
    "settings": {"heads": 8, "head_dim": 64, "dtype": "float32", "rounds": 5, "budget": 30.0},
    "versions": {"torch": "2.13.0", "transformers": "not installed"},
    "kernel": {"kernel, float": "v4, by a compiler", "kernel, bfloat16": "none: nobody built it"},
    "machine": {"processor": "a made-up one", "memory_bytes": 8 * 2**30, "cores": 2, "threads": 2},
    "others": 0.125,
    "time": "2026-11-21T06:00:00+00:00",
}


def taking(seconds: float, ratio: float, low: float, high: float, mebibytes: float = 1.0) -> dict[str, Any]:
    return {"seconds": [seconds] * 3, "ratio": [ratio, low, high], "peak_bytes": int(mebibytes * 2**20)}


def record(kind: str, scheme: str, length: int, results: dict[str, Any], **facts: Any) -> dict[str, Any]:
    baseline = next(iter(results))
    return {"kind": kind, "scheme": scheme, "length": length, "rounds": 3, "baseline": baseline, "results": results} | {
        **facts,
        **ABOUT,
    }


def prices(
    schemes: tuple[str, ...] = ("nope", "alibi"), lengths: tuple[int, ...] = (512, 1024)
) -> list[dict[str, Any]]:
    """Of two phases; the i-th scheme costs i + 1 times plain attention with sdpa, and reference refuses."""
    found = []
    for length in lengths:
        for phase, step in (("forward", 1), ("training", 4)):
            for i, scheme in enumerate(schemes):
                plain = 1e-3 * step * (length / 512) ** 2
                results = {
                    "plain": taking(plain, 1, 1, 1, 0.5),
                    "sdpa": taking((i + 1) * plain, i + 1, i + 0.9, i + 1.2, length / 512),
                    "reference": {"left_out": "too slow for words"},
                }
                found.append(record(f"price {phase}", scheme, length, results, auto="sdpa", why="it is made up"))
    return found


def mine() -> list[dict[str, Any]]:
    """Two phases of an attention of one's own, three times as slow as posenc's."""
    results = {
        "plain": taking(0.002, 1, 1, 1),
        "posenc": taking(0.003, 1.5, 1.4, 1.6, 2),
        "mine": taking(0.009, 4.5, 4.2, 4.8, 64),
    }
    off = {"posenc": {"output": 3e-7}, "mine": {"output": 2e-7, "gradient of key": 1.2e-6}}
    compared = {"name": "my.py:attention", "auto": "native", "allowed": 1e-4, "off": off}
    return [record(f"mine {phase}", "alibi", 2048, results, **compared) for phase in PHASES]
