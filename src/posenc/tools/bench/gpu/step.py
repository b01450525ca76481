"""What a step is, and an item of it in the process that runs it."""

import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from posenc.tools.bench.gpu.journal import AGAIN
from posenc.tools.bench.gpu.place import Place
from posenc.tools.bench.measure import LeftOutError

HELD = 2**32  # bytes that an item may leave behind

Result: TypeAlias = dict[str, Any]
Answer: TypeAlias = Callable[[str, Result], None]
"""Hands over the result of an item."""


@dataclass(frozen=True)
class Step:
    """Items that are run one by one in a process, or in several.

    ``items`` names them, the most valuable first. ``limit`` are the seconds of the step and ``each`` those of an item.
    ``serve`` runs those whose names come from an iterator, after it has called ``ready``. ``workers`` is the number of
    processes; 0 is one per core.
    """

    name: str
    title: str
    limit: float
    each: float
    items: Callable[[Place], Sequence[str]]
    serve: Callable[[Place, Iterator[str], Callable[[], None], Answer], None]
    workers: int = 1

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
        found = {"failed": f"out of memory: {first_line(error)}", AGAIN: True}
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


def answer_each(place: Place, run: Callable[[str], Result], names: Iterator[str], answer: Answer) -> None:
    """Runs items as they are named, until the device takes no more calls."""
    for name in names:
        found = answered(place, lambda name=name: run(name))  # type: ignore[misc]
        answer(name, found)
        if found.get("broken"):
            os._exit(0)


def called(run: Callable[[Place, str], Result]) -> Callable[..., None]:
    """The ``serve`` of a step that calls ``run`` with each name. It returns what the line has, with ``passed`` if it is
    a check, and raises LeftOutError where there is nothing to run."""

    def serve(place: Place, names: Iterator[str], ready: Callable[[], None], answer: Answer) -> None:
        if not place.is_dry:
            torch.empty(1, device=place.device)  # begins with the device
        ready()
        answer_each(place, lambda name: run(place, name), names, answer)

    return serve
