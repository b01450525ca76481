"""Runs a subject in several processes, each of which holds a part of the tokens. Plain PyTorch: scripts hold a copy."""

import io
import multiprocessing
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from traceback import walk_stack
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from posenc_check.calls import instead
from posenc_check.outcome import described, own_line
from posenc_check.subjects import Batch, NotApplicableError, Shard, Subject, applies, require

ORDERS = ("contiguous", "zigzag", "documents", "striped", "heads")
LIMIT = 10.0  # seconds in which processes that have not answered compute nothing: they wait for one another
LOOKS = 4  # in this time, at whether a process computes
LOST = 1.0  # seconds for the end of a process whose loss made another one raise an error


class ProcessError(Exception):
    """A process raised an error, ended, or gave no answer in time: the message says which and where."""


class Held(NamedTuple):
    """What a process holds: its tokens of all, in their order, and its heads; ``order`` says how both were divided."""

    tokens: list[int]
    heads: slice = slice(None)
    order: str = "contiguous"


def holdings_of(batch: Batch, world: int, order: str, heads: int = 0) -> list[Held]:
    """What each process holds. "contiguous": a run of tokens; "zigzag": the runs r and 2 world - 1 - r of 2 world;
    "documents": the same of each document; "striped": tokens r, r + world, …; "heads": all tokens, and a part of the
    heads. Runs are as even as may be, and may be empty."""
    everyone = list(range(batch.tokens))
    if order == "heads":
        return [Held(everyone, slice(r * heads // world, (r + 1) * heads // world), order) for r in range(world)]
    if order == "striped":
        return [Held(everyone[rank::world], order=order) for rank in range(world)]
    of = batch.document[0] if batch.document and order == "documents" else [0] * batch.tokens
    found: list[list[int]] = [[] for _ in range(world)]
    parts = world if order == "contiguous" else 2 * world
    for document in dict.fromkeys(of):
        tokens = [n for n, d in enumerate(of) if d == document]
        for part in range(parts):
            rank = min(part, parts - 1 - part) if parts > world else part
            found[rank] += tokens[part * len(tokens) // parts : (part + 1) * len(tokens) // parts]
    return [Held(tokens, order=order) for tokens in found]


def in_processes(world: int, work: Callable[[int], Any], limit: float = LIMIT) -> list[Any]:
    """What ``work(rank)`` gives in each of ``world`` forks, a gloo group. `ProcessError` for the first that fails."""
    applies(hasattr(os, "fork"), "this system cannot fork a process")
    applies(dist.is_available() and dist.is_gloo_available(), "torch was built without gloo")
    context: Any = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks of a process with threads: these are not used in the forks
        pipes, started = [], []
        try:
            for rank in range(world):
                mine, theirs = context.Pipe()
                given = (rank, world, os.path.join(folder, "store"), work, theirs, limit)
                pipes.append(mine)
                started.append(context.Process(target=_work, args=given, daemon=True))
                started[-1].start()
            return _answers(pipes, started, limit)
        finally:
            for process in started:
                process.kill()
                process.join()


def _work(rank: int, world: int, store: str, work: Callable[[int], Any], pipe: Connection, limit: float) -> None:
    torch.set_num_threads(1)  # the threads of the process that this one was forked from are not here
    main, answered, sending = threading.main_thread().ident, threading.Event(), threading.Lock()

    def watch() -> None:
        before, period = time.process_time(), limit / LOOKS
        while not answered.wait(period):
            now = time.process_time()
            idle = now - before < period / 50
            before = now
            where = own_line(reversed([*walk_stack(sys._current_frames().get(main or 0))]))
            with sending:
                pipe.send(("waits" if idle else "works", where))

    threading.Thread(target=watch, daemon=True).start()
    try:
        patience = timedelta(seconds=100 * limit)  # a process that is left alone ends by itself
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=patience)
        buffer = io.BytesIO()
        torch.save(work(rank), buffer)
        answer: tuple[str, Any] = ("answer", buffer.getvalue())
    except NotApplicableError as error:
        answer = ("not applicable", str(error))
    except (Exception, SystemExit) as error:
        answer = ("error", described(error))
    answered.set()
    with sending:
        pipe.send(answer)
    pipe.poll(100 * limit)  # until it is ended: the end of a process breaks the connections of the others
    os._exit(0)


def _answers(pipes: list[Connection], processes: list[Any], limit: float) -> list[Any]:
    world, found = len(pipes), dict[int, Any]()
    idle, place = dict.fromkeys(range(world), 0), dict.fromkeys(range(world), "")
    while len(found) < world:
        waiting = [rank for rank in range(world) if rank not in found]
        if all(idle[rank] >= LOOKS for rank in waiting):
            said = [f"rank {rank} of {world} waits{place[rank]}" for rank in waiting]
            said += [f"rank {rank} of {world} has answered" for rank in found]
            raise ProcessError(f"nothing was computed for {limit:g} s, and not all have answered: {'; '.join(said)}")
        wait([x for rank in waiting for x in (pipes[rank], processes[rank].sentinel)])
        for rank in waiting:
            kind, answer = _received(pipes[rank], processes[rank])
            if kind in ("waits", "works"):
                idle[rank], place[rank] = (idle[rank] + 1) * (kind == "waits"), answer
            elif kind == "not applicable":
                raise NotApplicableError(answer)
            elif kind == "ended":
                raise ProcessError(f"rank {rank} of {world} ended without an answer, with {answer}")
            elif kind == "error":
                others = [other for other in waiting if other != rank]
                if answer.startswith("RuntimeError") or "DistBackendError" in answer:  # a connection may be broken
                    wait([processes[other].sentinel for other in others], LOST)
                for other in others:
                    if wait([processes[other].sentinel], 0):
                        rank, (kind, answer) = other, _received(pipes[other], processes[other])
                how = "ended without an answer, with" if kind == "ended" else "raises"
                raise ProcessError(f"rank {rank} of {world} {how} {answer}")
            elif kind == "answer":
                found[rank] = torch.load(io.BytesIO(answer), weights_only=True)
    return [found[rank] for rank in range(world)]


def _received(pipe: Connection, process: Any) -> tuple[str, Any]:
    """What a process has sent, ("ended", how) if it has ended without an answer, or ("", None)."""
    with suppress(EOFError):
        if pipe.poll():
            return pipe.recv()
    if not wait([process.sentinel], 0):
        return "", None
    process.join()
    return "ended", f"signal {-process.exitcode}" if process.exitcode < 0 else f"exit code {process.exitcode}"


# -- a subject in them -------------------------------------------------------------------------------------------------


def in_part(subject: Subject, batch: Batch, held: list[Held], rank: int) -> tuple[Subject, Batch]:
    """The subject as the process of that rank calls it, and the batch of its tokens, with positions in the whole."""
    tokens, heads, order = held[rank]
    if not subject.takes("shard"):
        if not subject.can("positions"):
            subject.require_plain_positions(batch)
        require(batch.document is None or subject.can("document"), "let call take `document`, or a `shard`")
    part, places = batch.pick(tokens), subject.places(batch)
    part = replace(part, positions=places[:, tokens].tolist() if subject.can("positions") else None)
    part = part if subject.can("document") else replace(part, document=None)
    if subject.can("order") and (subject.causal or batch.order is not None):
        line = batch.order or [list(range(batch.tokens))] * len(batch.ids)
        part = replace(part, order=[[row[n] for n in tokens] for row in line])
    every = [torch.tensor(one.tokens, dtype=torch.int64) for one in held]
    document = torch.tensor(batch.document or [[0] * batch.tokens] * len(batch.ids))
    shard = Shard(rank, len(held), order, every, places, document)

    def call(made: Any, *given: Any, **named: Any) -> Any:
        if heads != slice(None) and len(given) == 3:  # query, key, value
            given = tuple(x[:, heads] for x in given)
        if subject.takes("shard"):
            named["shard"] = shard
        return subject.call(made, *given, **named)

    return instead(subject, call), part


def outputs(subject: Subject, batch: Batch, held: list[Held]) -> list[Tensor]:
    """The outputs of each process, (rows, its tokens, …)."""

    def work(rank: int) -> Tensor:
        mine, part = in_part(subject, batch, held, rank)
        return mine.run(mine.make(), part).detach()

    return in_processes(len(held), work)


def whole(subject: Subject, batch: Batch) -> Tensor:
    """The outputs of one process that holds all tokens."""
    return outputs(subject, batch, [Held(list(range(batch.tokens)))])[0]


def alone(subject: Subject) -> Subject:
    """The same subject, each run of which is a process of its own that is the only one of its group."""
    kind = type(subject)

    def run(self: Subject, made: Any, batch: Batch) -> Tensor:
        return whole(kind(**vars(self)), batch)

    members = {"run": run, "make": lambda self, **changed: None}
    return type(kind.__name__, (kind,), members)(**vars(subject))
