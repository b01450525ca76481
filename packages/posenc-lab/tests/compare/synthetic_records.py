"""Records as a comparison would leave them, from a formula: every kind of trouble at once, and nothing trained."""

import math
from typing import Any

import numpy as np

from posenc_lab.compare.text import plan

TRAIN_LENGTH = 128
LENGTHS = (64, 128, 256, 512, 1024)
WINDOWS = 24
SCHEMES = ("nope", "learned", "sinusoidal", "rope", "alibi")

# How a scheme's loss goes on past the training length, in bits per doubling of it.
GROWTH = {"nope": 0.45, "learned": 0.0, "sinusoidal": 1.6, "rope": 0.8, "alibi": -0.02, "rope+alibi": -0.025}
LEVEL = {"nope": 2.62, "learned": 2.52, "sinusoidal": 2.49, "rope": 2.38, "alibi": 2.39, "rope+alibi": 2.37}
POSITION_PARAMETERS = {"learned": TRAIN_LENGTH * 96}


def records(
    schemes: tuple[str, ...] = SCHEMES, seeds: tuple[int, ...] = (0,), lengths: tuple[int, ...] = LENGTHS
) -> list[dict[str, Any]]:
    """A finished comparison: sinusoidal explodes, learned is undefined past the training length, rope and alibi tie."""
    about = {
        "fingerprint": "0123456789abcdef",
        "configuration": {
            "schemes": list(schemes),
            "text": ["poems"],
            "train_length": TRAIN_LENGTH,
            "test_lengths": list(lengths),
            "steps": 400,
            "seeds": list(seeds),
            "layers": 3,
            "dim": 96,
            "heads": 4,
            "batch_size": 16,
            "learning_rate": 0.005,
            "windows": WINDOWS,
            "device": "cpu",
        },
        "text": {"about": "poems: 1,234,567 bytes in 3 files, 123,456 held out (whole files)", "digest": "fedcba98"},
        "versions": {"posenc": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6", "python": "3.11.7"},
        "machine": {"processor": "An Example 9000", "cores": 2, "memory_bytes": 8 * 2**30, "device": "cpu"},
        "time": "2026-01-02T03:04:05+00:00",
    }
    made = []
    for seed in seeds:
        for scheme in schemes:
            named = {"scheme": scheme, "seed": seed}
            made.append({"kind": "training", **named, **_training(scheme, seed), **about})
            for kind, length in plan(lengths, TRAIN_LENGTH):
                result = _measured(kind, scheme, seed, length, lengths[-1])
                made.append({"kind": kind, **named, "length": length, **result, **about})
        for scheme in schemes:
            ratio = 1.0 + 0.03 * schemes.index(scheme) + 0.01 * seed
            speed = {
                "relative_to": "nope",
                "step_ratio": ratio,
                "step_seconds": 0.04 * ratio,
                "low": ratio - 0.01,
                "high": ratio + 0.02,
            }
            made.append({"kind": "speed", "scheme": scheme, "seed": seed, **speed, **about})
    return made


def diverge(records: list[dict[str, Any]], scheme: str, seed: int = 0) -> list[dict[str, Any]]:
    """The same comparison, had this training diverged."""
    results = {
        "bits",
        "tokens",
        "accuracy",
        "examples",
        "undefined",
        "curve",
        "final_bits",
        "seconds",
        "peak_bytes",
        "use",
    }
    results |= {"parameters", "position_parameters", "tokens_per_second"}
    made = []
    for record in records:
        if (record["scheme"], record["seed"]) == (scheme, seed) and record["kind"] != "speed":
            record = {name: value for name, value in record.items() if name not in results}
            record["diverged"] = "the loss is nan at step 40"
        made.append(record)
    return made


def _loss(scheme: str, context: float) -> float:
    """Mean bits per byte of a byte with this much context."""
    near = LEVEL[scheme] + 2.5 / (1 + min(context, TRAIN_LENGTH) / 3) - 2.5 / (1 + TRAIN_LENGTH / 3)
    return near + GROWTH[scheme] * max(math.log2(max(context, 1) / TRAIN_LENGTH), 0)


def _measured(kind: str, scheme: str, seed: int, length: int, longest: int) -> dict[str, Any]:
    if scheme == "learned" and length > TRAIN_LENGTH and kind != "truncated":
        return {"undefined": f"learned has {TRAIN_LENGTH} positions, 0 to 127; got position {length - 1}"}
    context = {"windows": length / 2, "sliding": 0.75 * length}.get(kind, length)
    # The text makes a window hard for all schemes alike; the scheme and the seed add a little of their own.
    text = np.random.default_rng(7).normal(0, 0.25, WINDOWS)
    own = np.random.default_rng([seed, SCHEMES.index(scheme) if scheme in SCHEMES else 9]).normal(0, 0.02, WINDOWS)
    per_window = _loss(scheme, context) + text + own + 0.01 * seed
    return {"bits": [round(float(b), 6) for b in per_window], "tokens": 32 if kind == "final_tokens" else longest // 2}


def _training(scheme: str, seed: int) -> dict[str, Any]:
    steps = range(8, 401, 8)
    noise = np.random.default_rng(seed).normal(0, 0.03, len(steps))
    curve = [
        [n, LEVEL[scheme] + 5 * math.exp(-n / 40) + 0.6 * math.exp(-n / 200) + e]
        for n, e in zip(steps, noise, strict=True)
    ]
    return {
        "learning_rate": 0.005,
        "multiplier": None,
        "tuned": False,
        "parameters": 360_000 + POSITION_PARAMETERS.get(scheme, 0),
        "position_parameters": POSITION_PARAMETERS.get(scheme, 0),
        "tokens_per_second": 41_234.5 - 1_000 * len(scheme) + 10 * seed,
        "peak_bytes": 50_000_000 + 1_000_000 * len(scheme),
        "seconds": 19.7,
        "curve": curve,
        "final_bits": curve[-1][1],
    }
