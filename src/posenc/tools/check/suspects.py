"""Compares what processes give with what one gives, and says what a difference is like. Plain PyTorch: scripts hold a
copy."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posenc.tools.check.calls import instead
from posenc.tools.check.heads import Attention
from posenc.tools.check.outcome import Outcome
from posenc.tools.check.subjects import VOCABULARY, Batch, NotApplicableError, Subject
from posenc.tools.check.world import Held, ProcessError, outputs, whole


def part_of_whole(x: Tensor, held: Held, dim: int = 1) -> Tensor:
    """What a process holds of outputs (rows, tokens[, heads], …), or of vectors with their tokens along ``dim``."""
    x = x.index_select(dim, torch.tensor(held.tokens, dtype=torch.int64))
    return x.movedim(3 - dim, 0)[held.heads].movedim(0, 3 - dim) if x.dim() == 4 else x


def agrees(expected: Tensor, came: Tensor, tolerance: float, held: Held, dim: int = 1) -> Outcome:
    """Whether a process gives what one alone does; else where, by token and head, it is furthest off."""
    if expected.shape != came.shape:
        return Outcome(False, f"shape {tuple(expected.shape)}", f"shape {tuple(came.shape)}")
    if not expected.numel():
        return Outcome(True, "nothing", "nothing")
    off = torch.where(came == expected, 0.0, (came.double() - expected.double()).abs()).nan_to_num(torch.inf)
    at = [int(n) for n in torch.unravel_index(off.argmax(), off.shape)]
    head = f", head {range(99_999)[held.heads][at[3 - dim]]}" if off.dim() == 4 else ""
    place = f"token {held.tokens[at[dim]]} of row {at[0]}{head}"
    said = f"{float(came[tuple(at)]):.6g}, off by {float(off.max()):.2g} (at most {tolerance:.2g})"
    return Outcome(bool(off.max() <= tolerance), f"{float(expected[tuple(at)]):.6g} for {place}", said)


def compared(expected: Tensor, came: list[Tensor], held: list[Held], tolerance: float) -> list[Outcome]:
    """Whether each process gives its part of the whole."""
    return [agrees(part_of_whole(expected, h), out, tolerance, h) for h, out in zip(held, came, strict=True)]


# -- what a difference is like: one process that makes the same mistake gives the same numbers -------------------------


def suspicion(subject: Subject, batch: Batch, held: list[Held], came: list[Tensor], tolerance: float) -> str:
    """What the outputs are as if, in words; else whether tokens see what they must."""
    for words, guess in suspects(subject, batch, held):
        try:
            if all(agrees(x, out, tolerance, h).ok for x, out, h in zip(guess(), came, held, strict=True)):
                return f". It is as if {words}"
        except (NotApplicableError, ProcessError):
            continue
    return sight(subject, batch, held, came, tolerance)


def suspects(subject: Subject, batch: Batch, held: list[Held]) -> Iterator[tuple[str, Callable[[], list[Tensor]]]]:
    """Mistakes, and the outputs that each process would give with them."""

    def parts(other: Subject, changed: Batch) -> Callable[[], list[Tensor]]:
        return lambda: [part_of_whole(whole(other, changed), h) for h in held]

    line = list(range(batch.tokens))
    local, joined = dict[int, int](), dict[int, int]()
    for h in held:
        for n, token in enumerate(h.tokens):
            local[token], joined[token] = n, len(joined)
    given = [subject.at(p) for p in line]
    of = batch.document[0] if batch.document else [0] * batch.tokens
    within = [sum(d == of[n] for d in of[:n]) for n in line]
    both = {
        token: sum(of[other] == of[token] for other in h.tokens[:n]) for h in held for n, token in enumerate(h.tokens)
    }
    places = {
        "positions began again at 0 in every process": [local[n] for n in line],
        "positions began again at 0 in every document": within,
        "positions began again at 0 in every document of every process": [both[n] for n in line],
        "the position of a token were its index when all shards are joined": [joined[n] for n in line],
    }
    if all(h.heads == slice(None) for h in held):
        for words, numbers in places.items():
            changed = replace(batch, positions=[[subject.at(p) for p in numbers]] * len(batch.ids))
            if changed.positions != (batch.positions or [given] * len(batch.ids)):
                yield words, parts(subject, changed)
    if subject.takes("query_positions"):
        words = "scores went by the index of a query in its process, and that of a key when all shards are joined"
        index = torch.tensor([[local[n] for n in line]] * len(batch.ids))
        keys = replace(batch, positions=[[joined[n] for n in line]] * len(batch.ids))

        def by_index(made: Any, *given: Any, **named: Any) -> Any:
            return subject.call(made, *given, **{**named, "query_positions": index})

        yield words, parts(instead(subject, by_index), keys)
    if isinstance(subject, Attention) and subject.heads % len(held) == 0:
        each = subject.heads // len(held)

        def of_few(made: Any, *given: Any, **named: Any) -> Any:
            pieces = [[x[:, n : n + each] for x in given] for n in range(0, subject.heads, each)]
            return torch.cat([subject.call(made, *piece, **named) for piece in pieces], 1)

        yield (
            f"the {each} heads of a process were heads 0 to {each - 1} of {each}",
            parts(instead(subject, of_few), batch),
        )


def sight(subject: Subject, batch: Batch, held: list[Held], came: list[Tensor], tolerance: float) -> str:
    """Whether a token changes what it changes in one process: the first of each process is tried."""
    one = whole(subject, batch)
    if not all(out.isfinite().all() for out in came):
        return ""
    for h in held:
        for token in h.tokens[:1]:
            ids = [[(x + 7) % VOCABULARY if n == token else x for n, x in enumerate(row)] for row in batch.ids]
            other = replace(batch, ids=ids)
            must = (whole(subject, other) - one).abs().flatten(2).amax(-1)
            for rank, (out, new) in enumerate(zip(came, outputs(subject, other, held), strict=True)):
                does = (new - out).abs().flatten(2).amax(-1)
                for n, seen in enumerate(held[rank].tokens):
                    if bool(((does[:, n] > tolerance) & (must[:, seen] == 0)).any()):
                        return f". Token {seen}, on rank {rank}, sees token {token}, and must not"
                    if bool(((does[:, n] == 0) & (must[:, seen] > tolerance)).any()):
                        return f". Token {seen}, on rank {rank}, does not see token {token}, and must"
    if not (subject.can("positions") or subject.takes("shard")):
        return ". Every token sees what it must, but call is told no positions: each process may count its own from 0"
    return ". Every token sees what it must, so the mask's indices are right, and those of scores or values are not"
