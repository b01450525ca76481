"""Dual chunk attention with other chunks, other places of queries, or chunks that are run wrongly."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from posenc import DualChunk, Positions
from posenc.backends import bands
from posenc.backends.call import Call
from tests.backends import test_parity
from tests.errors.wrong_calls import Row
from tests.mutants import Mutant, lines, oracles

RIGHT_CHUNKS = bands._by_chunks


def blind_to_causality(call: Call, start: int | None, end: int | None, counting: dict[str, Any]) -> Mapping[str, Any]:
    found = RIGHT_CHUNKS(call, start, end, counting)
    seen = found.get("visibility", call.visibility)
    return {**found, "visibility": replace(seen, is_causal=False)} if found else found


RUN: Callable[[], Any] = partial(
    test_parity.check_run, ("dual_chunk", "text", "causal", 2, False), backends=("chunked",)
)
MUTANTS = (
    *lines(
        oracles("dual_chunk"),
        ("steps by a whole chunk", DualChunk, "rotation", "c = self.chunk - self.local", "c = self.chunk"),
        ("stands past the chunk", DualChunk, "rotation", "(within + c).clamp(max=self.chunk)", "within + c"),
    ),
    Mutant("sees ahead within a chunk", bands, "_by_chunks", blind_to_causality, RUN),
)


REFUSED = {
    "DualChunk": [
        Row(lambda: DualChunk(8, 6, 6), "local must be a whole number within 0..5, got 6"),
        Row(lambda: DualChunk(8, 6, -1), "local must be a whole number within 0..5, got -1"),
        Row(lambda: DualChunk(7, 6, 2), "head_dim must be even (channels come in pairs), got 7"),
        Row(
            lambda: DualChunk(8, 6, 2)(Positions.grid(2, 2)),
            "DualChunk takes one coordinate per token, got positions of 2 axes",
        ),
    ]
}
