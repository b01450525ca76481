"""Several processes that train and measure together, as torchrun starts them; without it, there is one.

The first process *leads*: it alone decides what is done, reads and writes records, and shows progress. The others wait
for its jobs (`jobs`), so no two processes decide differently. Within a job all processes run the same code, and every
function below that exchanges something is called by all of them. If a process fails or is killed, the others fail at
their next exchange, and torchrun starts all of them again.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from posenc.distributed.sharding import gathered
from posenc_lab.kit.machine import device_of, machine

T = TypeVar("T")
R = TypeVar("R")

# The others wait while the first one works alone. A process that ends is noticed at once, however long this is.
COLLECTIVE_TIMEOUT = timedelta(days=1)


@contextmanager
def joined() -> Iterator[None]:
    """Joins the group of the processes that torchrun started, if it did."""
    if not dist.is_available() or not dist.is_torchelastic_launched() or dist.is_initialized():
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    store, number, count = next(rendezvous("env://", timeout=COLLECTIVE_TIMEOUT))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # torchrun keeps its store when it starts processes again, with addresses of those that were before
        # (https://github.com/pytorch/pytorch/issues/135712).
        store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)  # type: ignore[attr-defined]
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=number, world_size=count, timeout=COLLECTIVE_TIMEOUT)
    try:
        yield
    finally:
        dist.destroy_process_group()


def world() -> int:
    """The number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process; 0 leads."""
    return dist.get_rank() if world() > 1 else 0


def own_device(name: str) -> torch.device:
    """The device of that name; of several processes on GPUs, each has its own. ValueError if it is not available."""
    device = device_of(name)
    if world() == 1 or device.type != "cuda":
        return device
    if ":" in name:
        raise ValueError(f"device must be cpu or cuda with several processes, each of which has its own, got {name!r}")
    return torch.device("cuda", torch.cuda.current_device())


def machine_of_all(device: torch.device) -> dict[str, object]:
    """The facts that times depend on: the first process's machine, and the number of processes if there are several."""
    return machine(device) | ({"processes": world()} if world() > 1 else {})


class Lead:
    """The first process, while it has jobs for the others: a context manager, at whose end they end too."""

    def __init__(self) -> None:
        self._within = False

    @contextmanager
    def together(self, job: object, agreed: type[Exception] | tuple[()] = ()) -> Iterator[None]:
        """Tells the others to do ``job``, of which this process does its part inside the context. An error that is
        ``agreed`` is raised in all processes, and the others wait for the next job."""
        _told(job)
        self._within = True
        try:
            yield
        except agreed:
            self._within = False
            raise
        self._within = False

    def __enter__(self) -> "Lead":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._within:
            _told(None)


def jobs() -> Iterator[Any]:
    """The jobs that the first process tells this one, until it ends."""
    while (job := _told(None)) is not None:
        yield job


def _told(job: object) -> Any:
    """The first process's ``job``, in all processes."""
    if world() == 1:
        return job
    told = [job]
    dist.broadcast_object_list(told, src=0, device=torch.device("cpu"))
    return told[0]


def most(value: int) -> int:
    """The largest value of all processes."""
    if world() == 1:
        return value
    found = torch.tensor(int(value))
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found)


def require_same(what: str, value: int | str) -> None:
    """ValueError, in all processes, unless all have the same value."""
    if world() == 1:
        return
    found: list[int | str] = [value] * world()
    dist.all_gather_object(found, value)
    if len(set(found)) > 1:
        raise ValueError(
            f"{what} must be the same in all processes, got {', '.join(map(str, found))}: give files that "
            "all of them can read"
        )


def mean(x: Tensor) -> Tensor:
    """The mean over processes."""
    if world() == 1:
        return x
    total = x.clone()
    dist.all_reduce(total)
    return total / world()


def part_of(rows: Tensor, targets: Callable[[Tensor], int] = len) -> tuple[Tensor, float]:
    """This process's rows of a batch, and the weight of their mean loss, such that the mean over processes of weight
    times loss is the mean loss of the batch. ``targets`` counts the losses of which that of some rows is the mean."""
    if world() == 1:
        return rows, 1.0
    mine = rows.tensor_split(world())[rank()]
    # Every process takes part in the exchange of gradients, also one for which no row is left.
    return (mine, world() * targets(mine) / targets(rows)) if len(mine) else (rows[:1], 0.0)


def parallel(model: nn.Module, loss_of: Callable[[nn.Module], Tensor]) -> nn.Module:
    """The model, whose backward pass averages gradients over processes (DDP). ``loss_of`` gives any loss of it.

    A backward pass in advance, whose gradients are dropped, shows whether some parameters have none, of which DDP must
    be told. Otherwise DDP orders gradients anew after its first pass, and then sums are rounded differently; with this
    pass done in advance too, a training that is resumed equals one that is not, to the bit.
    """
    if world() == 1:
        return model
    loss_of(model).backward()
    unused = any(each.grad is None for each in model.parameters() if each.requires_grad)
    model.zero_grad(set_to_none=True)
    made = DistributedDataParallel(model, find_unused_parameters=unused)
    if not unused:
        loss_of(made).backward()
        model.zero_grad(set_to_none=True)
    return made


def divided(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """The results of ``function``, one for each row, in all processes; each computes those of some rows."""
    if world() == 1:
        return function(rows)
    parts = rows.tensor_split(world())
    mine = parts[rank()]
    made = function(mine) if len(mine) else function(rows[:1])[:0]
    return gathered(made, 0, [len(part) for part in parts], None)


def each(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """The results of ``function`` for at most as many items as there are processes, in all processes; each computes
    one."""
    assert len(items) <= world()
    made = function(items[rank()]) if rank() < len(items) else None
    if world() == 1:
        return [made] if items else []  # type: ignore[list-item]
    found: list[Any] = [None] * world()
    dist.all_gather_object(found, made)
    return found[: len(items)]


class Stop(ExitStack):
    """Catches the first SIGINT or SIGTERM, so that work can stop in a consistent state; a second one stops at once."""

    asked = False

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():  # no other thread may set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self.callback(signal.signal, number, signal.signal(number, self._note))
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def check(self) -> None:
        """KeyboardInterrupt if a signal came."""
        if self.asked:
            raise KeyboardInterrupt

    def check_all(self) -> None:
        """KeyboardInterrupt in all processes if a signal came to one of them."""
        if most(self.asked):
            raise KeyboardInterrupt
