"""`work`: what each process computes and sends in one call of attention, from positions alone: no process is needed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from posenc.arguments import check_choice
from posenc.distributed.cost import Sizes, price
from posenc.distributed.needs import Needs, mask_of
from posenc.positions.orders import Order, indices
from posenc.positions.positions import Positions
from posenc.positions.tiles import Window


@dataclass(frozen=True)
class Work:
    """What one process does: ``pairs`` of a query and a key that may attend to one another, counted in each head and
    batch row, and the bytes that it sends in the forward pass and in the backward pass."""

    pairs: int
    sent: int
    sent_backward: int


def work(
    whole: Positions,
    world: int,
    order: Order = "zigzag",
    *,
    method: str,
    num_heads: int,
    head_dim: int,
    kv_heads: int | None = None,
    value_dim: int | None = None,
    batch: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    is_causal: bool = True,
    window: Window = None,
) -> list[Work]:
    """The work of each of ``world`` processes in a call of `attention` by ``"gather"``, ``"ring"`` or ``"ulysses"``.

    The bytes are those of queries, keys, values and outputs, and in the backward pass of their gradients, which are
    float32 for keys and values but under ``"ulysses"``. Nothing is counted for masks, features and the log-sum-exp.

    >>> [each.pairs for each in work(Positions.arange(8), 2, method="ring", num_heads=1, head_dim=4)]
    [18, 18]
    """
    check_choice("method", method, ("gather", "ring", "ulysses"))
    kv_heads = num_heads if kv_heads is None else kv_heads
    value_dim = head_dim if value_dim is None else value_dim
    visibility, chunk = mask_of(is_causal, window)
    shards = [whole[index] for index in indices(whole.layout, world, order)]
    batch = whole.rows if batch is None else batch
    if batch != whole.rows != 1:
        raise ValueError(f"batch must be {whole.rows}, the rows of the positions, got {batch}")
    counts = [len(shard) for shard in shards]
    shards = [whole] if method == "ulysses" else shards
    needs = Needs(shards if chunk is None else [shard.in_chunks(chunk) for shard in shards], visibility)
    sizes = Sizes(batch, num_heads, kv_heads, head_dim, value_dim, dtype.itemsize, whole.rows)
    found = price(needs, counts, sizes, method)
    return [Work(*each) for each in zip(found.scores, found.sent, found.sent_back, strict=True)]
