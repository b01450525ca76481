"""Measures the peak memory of a computation, and what it keeps."""

import gc
import os
from collections.abc import Callable
from itertools import accumulate

import torch
from torch.autograd.profiler import profile


def peak_bytes(function: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """The peak bytes of tensors that ``function()`` allocates beyond those before the call.

    On CUDA the allocator counts. On the CPU the profiler records every allocation and release of one call, and the peak
    is that of their running sum.
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        function()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    return max(accumulate(_changes(function), initial=0))


def kept_bytes(function: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """The bytes of tensors still allocated after ``function()``, not counting its result.

    On the CPU the release of a tensor is seen only if it was made within a call of this function or of `peak_bytes`.
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        function()
        gc.collect()
        return torch.cuda.memory_allocated(device) - before

    left = sum(_changes(function))
    # Collects reference cycles, which are freed only at some later time.
    return left + sum(_changes(gc.collect)) if left > 0 else left


def _changes(function: Callable[[], object]) -> list[int]:
    """Every allocation on the CPU (above 0) and every release (below) of one call, in their order."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes to stderr, in the middle of a progress bar
    with profile(profile_memory=True) as profiler:
        function()
    assert profiler.kineto_results is not None
    events = [(e.start_ns(), e.nbytes()) for e in profiler.kineto_results.events() if e.name() == "[memory]"]
    # A stable sort keeps the profiler's order of events in the same nanosecond.
    return [change for _, change in sorted(events, key=lambda event: event[0])]
