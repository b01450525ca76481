"""What a step is, and an item of it in the process that runs it."""

import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from posenc.tools.bench.gpu.place import Place
from posenc.tools.bench.measure import LeftOutError

HELD = 2**32  # bytes that an item may leave behind

Result: TypeAlias = dict[str, Any]
Answer: TypeAlias = Callable[[str, Result], None]
"""Hands over the result of an item."""


@dataclass(frozen=True)
class Step:
    """Items that are run one by one in a process, or in several.

    ``items`` names them, the most valuable first. ``run`` is called with a name, and returns what its line has, with
    ``passed`` if it is a check; it raises LeftOutError where there is nothing to run. ``limit`` are the seconds of the
    step and ``each`` those of an item. ``workers`` is the number of processes; 0 is one per core. ``serve`` is for
    items that are not called one by one: it takes their names from an iterator, after ``ready``.
    """

    name: str
    title: str
    limit: float
    each: float
    items: Callable[[Place], Sequence[str]]
    run: Callable[[Place, str], Result]
    workers: int = 1
    serve: Callable[[Place, Iterator[str], Callable[[], None], Answer], None] | None = None

    def count(self, place: Place) -> int:
        """The number of processes."""
        return min(self.workers or place.cores, place.cores)


def answered(place: Place, run: Callable[[], Result]) -> Result:
    """What an item has found, or why it found nothing: ``left_out`` or ``failed``; ``broken`` says that the device
    takes no more calls of this process."""
    try:
        found = run()
        place.finish()
    except LeftOutError as error:
        found = {"left_out": str(error)}
    except torch.OutOfMemoryError as error:
        found = {"left_out": f"out of memory: {first_line(error)}"}
    except Exception as error:
        if type(error).__name__ == "OutOfResources":  # Triton's: no module of it is imported here
            return {"left_out": first_line(error)}
        traceback.print_exc(file=sys.stderr)
        found = {"failed": f"{type(error).__name__}: {first_line(error)}"}
    try:
        place.finish()
        if not place.is_dry:
            if torch.cuda.memory_allocated() > HELD:
                gc.collect()  # takes a good part of a second
            torch.cuda.empty_cache()
    except Exception as error:
        found = {"failed": f"{type(error).__name__}: {first_line(error)}"} | found | {"broken": True}
    return found


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:300]


def one_by_one(step: Step, place: Place, names: Iterator[str], ready: Callable[[], None], answer: Answer) -> None:
    """Runs items as they are named."""
    if not place.is_dry:
        torch.empty(1, device=place.device)  # begins with the device
    ready()
    for name in names:
        found = answered(place, lambda name=name: step.run(place, name))  # type: ignore[misc]
        answer(name, found)
        if found.get("broken"):
            os._exit(0)
