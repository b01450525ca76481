"""What a measurement was made with: versions of what computes it, and the machine."""

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

import posenc


def versions() -> dict[str, str]:
    """Of everything that numbers can depend on."""
    import numpy  # what asks for nothing but the machine needs none

    return {
        "posenc": posenc.__version__,
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def device_of(name: str) -> torch.device:
    """The device of that name. ValueError for one that is not here."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device must be one that is here, got {name!r}: {str(error).splitlines()[0]}") from None
    return device


def clock_of(device: torch.device) -> Callable[[Callable[[], object]], float]:
    """The seconds that a call takes, with what a GPU was given to do; what it was given before is waited for."""

    def seconds(call: Callable[[], object]) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begin

    return seconds


def machine(device: torch.device) -> dict[str, object]:
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": _memory(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(terse=True),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a Unix, or not one that tells
        return None
