"""`work`: what each process computes and sends in one call of attention, from positions alone: no process is needed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from posenc.arguments import check_choice
from posenc.distributed.needs import Needs
from posenc.positions.orders import Order, indices
from posenc.positions.positions import Positions
from posenc.positions.tiles import Chunk, Visibility, Window, check_window


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
    left, right = (None, None) if isinstance(window, Chunk) else check_window(window)
    shards = [whole[index] for index in indices(whole.layout, world, order)]
    if isinstance(window, Chunk):
        shards = [shard.in_chunks(window.size) for shard in shards]
    needs = Needs(shards, Visibility(is_causal, left, right))
    ranks, counts = range(world), [len(shard) for shard in shards]
    batch = whole.rows if batch is None else batch
    if batch != whole.rows != 1:
        raise ValueError(f"batch must be {whole.rows}, the rows of the positions, got {batch}")
    rows = batch // whole.rows
    pairs = [rows * sum(needs.pairs(rank, source) for source in ranks) for rank in ranks]
    size, wide = batch * dtype.itemsize, batch * max(dtype.itemsize, 4)
    a_token = head_dim + value_dim
    if method == "ulysses":
        of_keys = _shares(kv_heads, world)
        of_queries = [count * (num_heads // kv_heads) for count in of_keys]
        found = []
        for rank in ranks:
            mine, others = counts[rank], sum(counts) - counts[rank]
            heads, other_heads = of_queries[rank], num_heads - of_queries[rank]
            keys, other_keys = of_keys[rank], kv_heads - of_keys[rank]
            # Heads of others for this process's tokens leave, and other tokens' outputs; gradients the other way.
            sent = mine * (other_heads * head_dim + other_keys * a_token) + others * heads * value_dim
            back = mine * other_heads * value_dim + others * (heads * head_dim + keys * a_token)
            found.append(Work(heads * sum(pairs), size * sent, size * back))
        return found
    if method == "gather":
        # Collectives of tensors of equal sizes send the largest.
        there = [(world - 1) * max(counts)] * world
        home = [sum(counts) - count for count in counts]
        again = [0] * world
    else:
        keys_of = [[_length(needs.keys(rank, source)) for source in ranks] for rank in ranks]
        there = [sum(keys_of[target][rank] for target in ranks if target != rank) for rank in ranks]
        home = [sum(keys_of[rank][source] for source in ranks if source != rank) for rank in ranks]
        again = there
    token = kv_heads * a_token
    return [
        Work(num_heads * p, token * size * s, token * (size * a + wide * h))
        for p, s, a, h in zip(pairs, there, again, home, strict=True)
    ]


def _shares(heads: int, world: int) -> list[int]:
    """How many heads each process has."""
    return [len(part) for part in torch.arange(heads).tensor_split(world)]


def _length(keys: slice | None) -> int:
    return 0 if keys is None else keys.stop - keys.start
