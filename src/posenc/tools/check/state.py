"""Saves and restores the global state that a subject may change."""

import contextlib
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

Setting = tuple[Callable[[], Any], Callable[[Any], object]]
"""A getter and a setter of global state."""


def _streams() -> dict[str, Any]:
    return {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}


def _generators() -> dict[str, Any]:
    """The states of the global random generators: Python's, torch's, and those of NumPy and GPUs if in use."""
    found = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        found["numpy"] = sys.modules["numpy"].random.get_state()
    if torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def _set_generators(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])


def _folder() -> str | None:
    """The working folder; None if it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _set_folder(folder: str | None) -> None:
    """Goes back to a folder, unless it was deleted."""
    if folder is not None:
        with contextlib.suppress(FileNotFoundError):
            os.chdir(folder)


OF_PYTHON: tuple[Setting, ...] = ((_streams, lambda streams: vars(sys).update(streams)), (_folder, _set_folder))
OF_TORCH: tuple[Setting, ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (_generators, _set_generators),
)


@contextlib.contextmanager
def kept(*settings: Setting) -> Iterator[None]:
    """Restores these settings, or all of them, if they were changed."""
    every = settings or OF_PYTHON + OF_TORCH
    before = [get() for get, _ in every]
    try:
        yield
    finally:
        for (get, put), value in zip(every, before, strict=True):
            if get is _generators or get() != value:  # setting the same number of threads has side effects
                put(value)
