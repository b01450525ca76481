"""Runs a function in several processes that form a gloo group."""

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# Processes are forks of one that has imported what they need, and done nothing else: 0.1 s each, not 3.
METHOD = "forkserver" if "forkserver" in mp.get_all_start_methods() else "spawn"
if METHOD == "forkserver":
    mp.get_context(METHOD).set_forkserver_preload(
        [f"tests.distributed.{name}" for name in ("cases", "decoding", "far", "models", "saved", "sharded")]
    )


def _work(rank: int, world: int, store: str, function: Callable[..., Any], given: Any, answers: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        found, why = function(given), None
    except Exception:
        found, why = None, traceback.format_exc()
    answers.put((rank, found, why))
    # Without waiting for one another, a process that ends early would break the others' connections.
    dist.barrier() if why is None else None
    dist.destroy_process_group()


def in_processes(
    world: int, folder: Path, function: Callable[[Any], Any], given: Any, timeout: float = 240
) -> list[Any]:
    """What a function of a module returns in each of ``world`` processes. AssertionError with the traceback of the
    first that raised."""
    context = mp.get_context(METHOD)
    answers = context.Queue()
    store = folder / f"store-{world}"
    started = [
        context.Process(target=_work, args=(rank, world, str(store), function, given, answers), daemon=True)
        for rank in range(world)
    ]
    for process in started:
        process.start()
    found: dict[int, Any] = {}
    try:
        for _ in range(world):
            rank, answer, why = answers.get(timeout=timeout)
            assert why is None, f"process {rank} of {world}:\n{why}"
            found[rank] = answer
    finally:
        for process in started:
            process.join(5 if len(found) == world else 0)
            process.terminate()
    return [found[rank] for rank in range(world)]


def told(calls: Sequence[tuple[Callable[[], Any], str]]) -> list[tuple[str, str]]:
    """The message of the ValueError of each call, and what it must say."""
    found = []
    for call, expected in calls:
        try:
            call()
            found.append(("no error", expected))
        except ValueError as error:
            found.append((str(error), expected))
    return found
