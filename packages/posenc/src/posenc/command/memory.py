"""Measures the peak memory of a computation."""

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
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes to stderr, in the middle of a progress bar
    with profile(profile_memory=True) as profiler:
        function()
    assert profiler.kineto_results is not None
    events = [(e.start_ns(), e.nbytes()) for e in profiler.kineto_results.events() if e.name() == "[memory]"]
    # A stable sort keeps the profiler's order of events in the same nanosecond.
    return max(accumulate((change for _, change in sorted(events, key=lambda event: event[0])), initial=0))
