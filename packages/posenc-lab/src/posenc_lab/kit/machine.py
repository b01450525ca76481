"""Describes what a measurement was made with: software versions and the machine."""

import os
import platform
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import torch

import posenc

CPUINFO = Path("/proc/cpuinfo")
# The vector instructions that the speed of attention depends on: x86's, then Arm's.
UNITS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "asimd", "sve", "sve2", "bf16")
UNKNOWN = "not known"


def versions() -> dict[str, str]:
    """The versions of the packages that results may depend on."""
    import numpy  # not needed to describe the machine

    return {
        "posenc": posenc.__version__,
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def version_of(package: str) -> str:
    """The version of an installed package, or "not installed"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def device_of(name: str) -> torch.device:
    """The device of that name. ValueError if it is not available."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device must be one that is here, got {name!r}: {str(error).splitlines()[0]}") from None
    return device


def clock_of(device: torch.device) -> Callable[[Callable[[], object]], float]:
    """The seconds that a call takes. On a GPU, synchronises before and after it."""

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
    """The facts that times depend on; "not known" if the system does not report one."""
    processors = _processors()
    physical = {(each.get("physical id"), each["core id"]) for each in processors if "core id" in each}
    return {
        "processor": _first(processors, "model name") or platform.processor() or platform.machine(),
        "vector units": _vector_units(processors),
        # A bias that falls with distance produces many.
        "denormal numbers": "kept"
        if (torch.tensor(torch.finfo(torch.float32).tiny) / 2).item() > 0
        else "flushed to zero",
        "cores": os.cpu_count(),
        "physical cores": len(physical) or UNKNOWN,
        "memory_bytes": memory_bytes(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
    }


def _processors() -> list[dict[str, str]]:
    """The entry of each logical core in Linux's /proc/cpuinfo; empty elsewhere."""
    try:
        text = CPUINFO.read_text(encoding="utf-8")
    except OSError:
        return []
    lines = [[line.partition(":") for line in block.splitlines()] for block in text.split("\n\n")]
    return [{name.strip(): value.strip() for name, _, value in block} for block in lines if block]


def _first(processors: list[dict[str, str]], name: str) -> str:
    return next((each[name] for each in processors if each.get(name)), "")


def _vector_units(processors: list[dict[str, str]]) -> str:
    """The vector instructions that torch uses, and those of the processor."""
    flags = (_first(processors, "flags") or _first(processors, "Features")).split()
    there = ", ".join(unit for unit in UNITS if unit in flags) or "none"
    return f"torch uses {torch.backends.cpu.get_cpu_capability()}; there: {there if flags else UNKNOWN}"


def memory_bytes() -> int | None:
    """The memory of the machine; None if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a Unix, or it does not report them
        return None
