"""The smallest comparison that is one, and text for it."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.tasks import complete
from posenc_lab.kit.records import Record, key

SCHEMES = ("nope", "learned", "alibi")
TIMES = {"time", "seconds", "tokens_per_second", "peak_bytes", "step_ratio", "low", "high", "step_seconds"}


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
    return complete(CompareConfig(**{**values, **changes}))


def untimed(records: list[Record]) -> list[Record]:
    """What does not depend on how busy the machine was, in an order of its own."""
    ordered = sorted(records, key=lambda record: str(key(record)))
    return [{name: value for name, value in record.items() if name not in TIMES} for record in ordered]


def fill_disk(monkeypatch: pytest.MonkeyPatch, takes: int) -> None:
    """The disk takes so many bytes more, as a disk does: a part of a write first, and an error at the next."""
    write, left = os.write, takes

    def writing(descriptor: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        part = data[:left]
        left -= len(part)
        return write(descriptor, part)

    monkeypatch.setattr(os, "write", writing)
