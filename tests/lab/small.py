"""The smallest comparison that is one, and text for it."""

from pathlib import Path
from typing import Any

import numpy as np

from posenc.lab.config import CompareConfig

SCHEMES = ("nope", "learned", "alibi")


def write_text(path: Path, size: int = 12_000, seed: int = 0) -> Path:
    """Words drawn from a small vocabulary: bytes that can be predicted a little."""
    rng = np.random.default_rng(seed)
    words = [b"one ", b"two ", b"three ", b"four\n", b"five ", b"six. "]
    path.write_bytes(b"".join(words[i] for i in rng.integers(len(words), size=size))[:size])
    return path


def small_config(text: Path, **changes: Any) -> CompareConfig:
    values: dict[str, Any] = {
        "schemes": SCHEMES,
        "text": (str(text),),
        "train_length": 16,
        "steps": 6,
        "layers": 1,
        "dim": 16,
        "heads": 2,
        "batch_size": 4,
        "windows": 8,
    }
    return CompareConfig(**{**values, **changes})
