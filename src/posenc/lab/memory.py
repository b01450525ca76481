"""How much memory a computation needs at its peak."""

import os
from collections.abc import Callable

import torch
from torch.autograd.profiler import profile


def peak_bytes(function: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """The most bytes of tensors that ``function()`` holds at any one time, beyond what was there before.

    On CUDA the allocator counts. On the CPU nobody does, so the profiler notes every allocation and release of one
    call, and the peak is that of their running sum.
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        function()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler greets on stderr, in the middle of a progress bar
    with profile(profile_memory=True) as profiler:
        function()
    assert profiler.kineto_results is not None
    events = [(e.start_ns(), e.nbytes()) for e in profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    # Stable: of events in the same nanosecond, the profiler's own order stands.
    for _, change in sorted(events, key=lambda event: event[0]):
        held += change
        peak = max(peak, held)
    return peak
