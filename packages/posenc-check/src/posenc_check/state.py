"""Restores the global state that a subject may change."""

import contextlib
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch


def _generators() -> list[tuple[Any, Any]]:
    """The setter and the state of the global random generators: Python's, torch's, and NumPy's and GPUs' if in use."""
    found: list[tuple[Any, Any]] = [(random.setstate, random.getstate()), (torch.set_rng_state, torch.get_rng_state())]
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"].random
        found.append((numpy.set_state, numpy.get_state()))
    if torch.cuda.is_initialized():
        found.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    return found


@contextlib.contextmanager
def restored_state(with_torch: bool = True) -> Iterator[None]:
    """Restores the standard streams and the folder; and, if asked for, the generators and the settings of torch."""
    settings: tuple[tuple[Any, Any], ...] = (
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.is_grad_enabled, torch.set_grad_enabled),
    )
    streams, generators = (sys.stdin, sys.stdout, sys.stderr), _generators() if with_torch else []
    before = [get() for get, _ in settings] if with_torch else []
    folder = None
    with contextlib.suppress(FileNotFoundError):  # it was deleted
        folder = os.getcwd()
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        for put, state in generators:
            put(state)
        for (get, put), value in zip(settings, before, strict=False):
            if get() != value:  # setting the same number of threads has side effects
                put(value)
        with contextlib.suppress(FileNotFoundError):
            if folder is not None:
                os.chdir(folder)
