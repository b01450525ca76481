"""The methods of attention, and which of them cannot run a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from posenc.distributed.sharding import Sharding
from posenc.encoding.encoding import Encoding
from posenc.encoding.pieces import gives_weights

Method = Literal["ring", "gather", "ulysses"]
METHODS: tuple[str, ...] = get_args(Method)


def refusals(encoding: Encoding, sharding: Sharding, kv_heads: int, dropout_p: float = 0.0) -> dict[str, str]:
    """The methods that cannot run a call, and why."""
    found = {}
    if any(piece.reads_rows for piece in encoding.pieces) or gives_weights(encoding.pieces):
        found["ring"] = "a score term needs whole rows of scores"
    elif dropout_p:
        found["ring"] = "with dropout, blocks that are computed twice would be dropped differently"
    of_heads = {"ulysses": sharding.world, "ring": 1 if sharding.within is None else sharding.within.world}
    for method, world in of_heads.items():
        if kv_heads < world:
            least = f"at least one head of keys for each of {world} processes"
            found[method] = f"an exchange of heads needs {least}, got {kv_heads}"
    return found


def groups(sharding: Sharding, refused: Mapping[str, str] | None = None) -> dict[str, Sequence[Tensor]]:
    """For each method that is not refused, the tokens of each group of processes that exchange heads, or of each
    process."""
    ring = sharding if sharding.across is None else sharding.across
    every = {"gather": sharding.indices, "ring": ring.indices, "ulysses": [torch.arange(len(sharding.whole))]}
    return {name: held for name, held in every.items() if name not in (refused or {})}
