"""Records that nothing was measured for."""

from typing import Any

PHASES = ("forward", "training")
ABOUT: dict[str, Any] = {
    "settings": {
        "heads": 8,
        "head_dim": 64,
        "dtype": "float32",
        "rotated": [4, 16, 2048, 64],
        "rounds": 5,
        "budget": 30.0,
    },
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


def limit() -> dict[str, Any]:
    """Of the products the larger is the quicker: 100 × 10⁹ multiply-adds a second in its best round."""
    results = {"float32, 100 × 100": taking(1e-4, 1, 1, 1), "float32, 1,000 × 1,000": taking(0.02, 200, 200, 200)}
    results["float32, 1,000 × 1,000"]["seconds"] = [0.02, 0.01, 0.03]
    work = {"float32, 100 × 100": 10**6, "float32, 1,000 × 1,000": 10**9}
    return record("limit", "float32", 1000, results, multiply_adds=work)


def rotated() -> list[dict[str, Any]]:
    """RoPE in attention; the kernel runs it from 1,024 tokens on, and makes half of what the limit allows there."""
    found = []
    for length, plain, ours in ((128, 0.001, "sdpa"), (1024, 0.04, "native")):
        results = {
            "plain": taking(plain, 1, 1, 1),
            "rope": taking(0.5 * plain, 0.5, 0.4, 0.6),
            "rope by sdpa": taking(1.5 * plain, 1.5, 1.4, 1.6),
            "rope by native": {"left_out": "nobody built it"},
        }
        takes = {"rope": ours, "rope by sdpa": "sdpa", "rope by native": "native"}
        work = {"plain": 10**9, "rope by native": 10**9} | ({"rope": 10**9} if ours == "native" else {})
        found += [record(f"rotated {p}", "rope", length, results, takes=takes, multiply_adds=work) for p in PHASES]
    return found


def disturbed() -> list[dict[str, Any]]:
    """Neighbours double the time of plain attention, and triple that of ALiBi."""
    found = []
    for phase in PHASES:
        for kind, plain, ratio in (("quiet", 0.01, 1.0), ("busy", 0.02, 1.5)):
            results = {"plain": taking(plain, 1, 1, 1), "alibi": taking(ratio * plain, ratio, ratio, ratio)}
            about = {"takes": {"alibi": "native"}, "multiply_adds": {"plain": 1}}
            found.append(record(f"{kind} {phase}", "several", 1024, results, **about))
            if kind == "busy":
                found[-1]["others"] = None
    return found


def everything() -> list[dict[str, Any]]:
    """A few records of every section."""
    rope = {
        "clone": taking(0.010, 1, 1, 1),
        "posenc": taking(0.012, 1.2, 1.1, 1.4),
        "transformers": {"left_out": "No module named 'transformers'"},
    }
    peers = {
        "plain": taking(0.002, 1, 1, 1),
        "posenc": taking(0.003, 1.5, 1.4, 1.6),
        "x-transformers": {"left_out": "no"},
    }
    mine = {
        "plain": taking(0.002, 1, 1, 1),
        "posenc": taking(0.003, 1.5, 1.4, 1.6, 2),
        "mine": taking(0.009, 4.5, 4.2, 4.8, 64),
    }
    off = {"posenc": {"output": 3e-7}, "mine": {"output": 2e-7, "gradient of key": 1.2e-6}}
    compared = {"name": "my.py:attention", "auto": "native", "allowed": 1e-4, "off": off}
    decode = {"plain": taking(0.001, 1, 1, 1), "posenc": taking(0.002, 2, 1.9, 2.1)}
    return [
        limit(),
        *prices(),
        *rotated(),
        *disturbed(),
        *(record(f"rope {dtype}", "rope", 2048, rope, bytes=1_200_000_000) for dtype in ("float32", "bfloat16")),
        *(record(f"peers {phase}", "alibi", 2048, peers, auto="sdpa") for phase in ("forward", "training")),
        record("decode", "alibi", 16384, decode, auto="sdpa"),
        *(record(f"mine {phase}", "alibi", 2048, mine, **compared) for phase in ("forward", "training")),
    ]
