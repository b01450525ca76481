"""Which method ``"auto"`` takes for a call of attention, and what each would cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from posenc.distributed.cost import H100, Machine, Price, Sample, Sizes, price
from posenc.distributed.sharding import Sharding
from posenc.encoding.encoding import Encoding
from posenc.encoding.pieces import gives_weights
from posenc.positions.tiles import Visibility

Method = Literal["auto", "gather", "ring", "ulysses"]
METHODS: tuple[str, ...] = get_args(Method)
LAYERS = 32
"""The layers of a model, each of which keeps its keys and values until the backward pass."""
SHARE = 0.25
"""The share of a device's memory that keys and values may take."""


@dataclass(frozen=True)
class Explanation:
    """The method that ``"auto"`` takes for a call, why, why others cannot run it, and the `Price` of each that can.

    Scores, bytes sent and bytes held are counted; seconds are modelled for ``machine``, not measured.
    """

    method: str
    why: str
    refusals: Mapping[str, str]
    prices: Mapping[str, Price] = field(default_factory=dict)
    machine: Machine = H100

    def __str__(self) -> str:
        lines = [f"{self.method}: {self.why}"]
        lines += [f"price of {name}: {each}" for name, each in self.prices.items()]
        lines += [f"not {name}: {reason}" for name, reason in self.refusals.items()]
        return "\n".join(lines)


NOTHING: Mapping[str, str] = {}


def refusals(encoding: Encoding, sharding: Sharding, sizes: Sizes, dropout_p: float = 0.0) -> dict[str, str]:
    """The methods that cannot run a call, and why."""
    found = {}
    if any(piece.reads_rows for piece in encoding.pieces) or gives_weights(encoding.pieces):
        found["ring"] = "a score term needs whole rows of scores"
    elif dropout_p:
        found["ring"] = "with dropout, blocks that are computed twice would be dropped differently"
    of_heads = {"ulysses": sharding.world, "ring": 1 if sharding.within is None else sharding.within.world}
    for method, world in of_heads.items():
        if sizes.kv_heads < world:
            least = f"at least one head of keys for each of {world} processes"
            found[method] = f"an exchange of heads needs {least}, got {sizes.kv_heads}"
    return found


def groups(sharding: Sharding, refused: Mapping[str, str] = NOTHING) -> dict[str, Sequence[Tensor]]:
    """For each method that is not refused, the tokens of each group of processes that exchange heads, or of each
    process."""
    ring = sharding if sharding.across is None else sharding.across
    every = {"gather": sharding.indices, "ring": ring.indices, "ulysses": [torch.arange(len(sharding.whole))]}
    return {name: held for name, held in every.items() if name not in refused}


def choose(
    sharding: Sharding,
    sizes: Sizes,
    visibility: Visibility,
    chunk: int | None = None,
    refused: Mapping[str, str] = NOTHING,
    machine: Machine = H100,
) -> Explanation:
    """The method that ``"auto"`` takes: of those that are not refused, the fastest by the model of time, if the keys
    and values of 32 layers (of one, without gradients) take at most a quarter of a device's memory; otherwise the one
    that holds the least.

    It follows from facts that every process has, so that all take the same: sizes, whether gradients are computed, and
    the positions of a sample of tokens. Devices are taken to be those of ``machine``, whatever they are.
    """
    if sharding.world == 1:
        return Explanation("gather", "there is one process", refused, {}, machine)
    refused = dict(refused)
    found = {}
    for name, held in groups(sharding, refused).items():
        found[name] = price(Sample(sharding.whole, held, visibility, chunk), sharding.counts, sizes, name, machine)
    layers = LAYERS if sizes.trains else 1
    most = {name: max(each.held) * layers for name, each in found.items()}
    room = machine.memory * SHARE
    fit = [name for name in found if most[name] <= room]
    if not fit:
        method = min(found, key=most.__getitem__)
        why = f"it holds the fewest keys and values, {most[method] / 1e9:.3g} GB in {layers} layers"
        return Explanation(method, why, refused, found, machine)
    for name in sorted(set(found) - set(fit)):
        refused[name] = f"keys and values of {layers} layers would take {most[name] / 1e9:.3g} GB of {room / 1e9:.3g}"
    method = min(fit, key=lambda name: found[name].seconds)
    return Explanation(method, f"the fastest by the model of time ({machine.name})", refused, found, machine)
