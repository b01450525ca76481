"""Dual chunk attention with other chunks, other places of queries, or chunks that are run wrongly."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posenc import DualChunk, Positions
from posenc.backends import bands
from posenc.backends.call import Call
from posenc.encoding.encoding import Context
from posenc.encoding.rotation import Band, Rotation
from posenc.rotation.phases import turned_to
from tests.backends import test_parity
from tests.hard.wrong import NO_WORDS, Row, each, numbers, sizes
from tests.mutants import Mutant, oracles


def rotation(
    step: Callable[[int, int], int] = lambda chunk, local: chunk - local,
    before: Callable[[Tensor, int, int], Tensor] = lambda within, c, chunk: (within + c).clamp(max=chunk),
    last: Callable[[int, int], int] = lambda c, chunk: min(2 * c - 1, chunk),
    reaches: tuple[int, int] = (1, 2),
    coords: Callable[[Tensor], Tensor] = lambda p: p,
    base: Callable[[float], float] = lambda base: base,
    layout: str | None = None,
) -> Callable[..., Rotation]:
    """The method as it is, but for one thing."""

    def wrong(
        self: DualChunk, positions: Positions, dtype: torch.dtype = torch.float32, context: Context | None = None
    ) -> Rotation:
        c = step(self.chunk, self.local)
        within = coords(positions.coords).double().remainder(c)
        own, succeeding, further = (
            turned_to(at, self.head_dim, base(self.base), layout or self.layout, dtype)  # type: ignore[arg-type]
            for at in (within, before(within, c, self.chunk), torch.full_like(within, last(c, self.chunk)))
        )
        far = (Band(reaches[0], succeeding, own), Band(reaches[1], further, own))
        return Rotation(own, own, bands=far, chunk=c)

    return wrong


RIGHT_CHUNKS = bands._by_chunks


def blind_to_causality(call: Call, start: int | None, end: int | None, counting: dict[str, Any]) -> Mapping[str, Any]:
    found = RIGHT_CHUNKS(call, start, end, counting)
    seen = found.get("visibility", call.visibility)
    return {**found, "visibility": replace(seen, is_causal=False)} if found else found


def of(bug: str, **wrong: object) -> Mutant:
    return Mutant(bug, DualChunk, "rotation", rotation(**wrong), oracles("dual_chunk"))  # type: ignore[arg-type]


RUN: Callable[[], Any] = partial(
    test_parity.check_run, ("dual_chunk", "text", "causal", 2, False), backends=("chunked",)
)
MUTANTS = (
    of("steps by a whole chunk", step=lambda chunk, local: chunk),
    of("lets queries of the next chunk stand past the chunk", before=lambda within, c, chunk: within + c),
    Mutant("sees ahead within a chunk", bands, "_by_chunks", blind_to_causality, RUN),
)


OF_CHUNKS = {"head_dim": 8, "chunk": 6, "local": 2}
REFUSED = {
    "DualChunk": [
        *sizes(DualChunk, OF_CHUNKS, "head_dim", "chunk"),
        *numbers(DualChunk, OF_CHUNKS, "base", 1),
        *each(DualChunk, OF_CHUNKS, "layout", NO_WORDS, "'half' or 'interleaved'"),
        Row(lambda: DualChunk(8, 6, 6), "local must be a whole number within 0..5, got 6"),
        Row(lambda: DualChunk(8, 6, -1), "local must be a whole number within 0..5, got -1"),
        Row(lambda: DualChunk(7, 6, 2), "head_dim must be even (channels come in pairs), got 7"),
        Row(
            lambda: DualChunk(8, 6, 2)(Positions.grid(2, 2)),
            "DualChunk takes one coordinate per token, got positions of 2 axes",
        ),
    ],
}
