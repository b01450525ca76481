"""What each method of attention computes, sends and holds, counted; and which of them cannot run a call.

The counts are those of the code of this room, and tests compare them with the bytes that real processes send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from posenc.arguments import check_choice
from posenc.distributed.sharding import Needs, Sharding, mask_of
from posenc.encoding.encoding import Encoding
from posenc.encoding.pieces import gives_weights
from posenc.positions.layout import Order, indices
from posenc.positions.positions import Positions
from posenc.positions.tiles import Window

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


@dataclass(frozen=True)
class Sizes:
    """The sizes of one call of attention, on all processes together. ``rows`` is the number of rows of positions: 1
    where all rows of the batch share them. ``trains``: a backward pass follows."""

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    itemsize: int = 2
    rows: int = 1
    trains: bool = True

    @property
    def width(self) -> int:
        """Channels of a key and a value."""
        return self.head_dim + self.value_dim

    @property
    def of_gradients(self) -> int:
        """Bytes of a number of the gradients of keys and values, which are added in float32 or wider."""
        return max(self.itemsize, 4)


@dataclass(frozen=True)
class Work:
    """What one call of attention takes. For each process: ``scores`` (visible pairs of query and key, of all heads and
    rows), the bytes that it sends in the forward pass (``sent``) and in the backward pass (``sent_back``), and the
    bytes of keys and values of which it holds the most at a time (``held``)."""

    scores: tuple[int, ...]
    sent: tuple[int, ...]
    sent_back: tuple[int, ...]
    held: tuple[int, ...]

    def __str__(self) -> str:
        most = max(map(sum, zip(self.sent, self.sent_back, strict=True)))
        return (
            f"{max(self.scores):.3g} scores, {most / 1e6:.4g} MB sent, "
            f"{max(self.held) / 1e6:.4g} MB of keys and values held"
        )


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
) -> Work:
    """What a call of `attention` by ``"gather"``, ``"ring"`` or ``"ulysses"`` takes on ``world`` processes, from
    positions alone: no process is needed.

    The bytes are those of queries, keys, values and outputs, and in the backward pass of their gradients, which are
    float32 for keys and values but under ``"ulysses"``. Nothing is counted for masks, features and the log-sum-exp.

    >>> work(Positions.arange(8), 2, method="ring", num_heads=1, head_dim=4).scores
    (18, 18)
    """
    check_choice("method", method, METHODS)
    kv_heads = num_heads if kv_heads is None else kv_heads
    value_dim = head_dim if value_dim is None else value_dim
    batch = whole.rows if batch is None else batch
    if batch != whole.rows != 1:
        raise ValueError(f"batch must be {whole.rows}, the rows of the positions, got {batch}")
    shards = [whole[index] for index in indices(whole.layout, world, order)]
    needs = Needs([whole] if method == "ulysses" else shards, *mask_of(is_causal, window))
    sizes = Sizes(batch, num_heads, kv_heads, head_dim, value_dim, dtype.itemsize, whole.rows)
    return count(needs, [len(shard) for shard in shards], sizes, method)


def count(needs: Needs, counts: Sequence[int], sizes: Sizes, method: str) -> Work:
    """The work of a method for processes that have these numbers of tokens.

    ``needs`` are those of each process, or, where groups of processes of consecutive ranks exchange tokens for heads,
    those of each group: with ``"ulysses"`` there is one, and on a mesh of two axes a ring of them.
    """
    return _gather(needs, counts, sizes) if method == "gather" else _ring(needs, counts, sizes)


def _scores(needs: Needs, sizes: Sizes, queries_of: int, keys_of: int) -> int:
    """The visible pairs of a head, of all rows."""
    return needs.pairs(queries_of, keys_of) * sizes.batch // sizes.rows


def _gather(needs: Needs, counts: Sequence[int], sizes: Sizes) -> Work:
    world, tokens, most = len(counts), sum(counts), max(counts)
    number = sizes.batch * sizes.kv_heads * sizes.width  # of numbers of a token
    every = range(world)
    scores = [sum(_scores(needs, sizes, r, other) for other in every) * sizes.heads for r in every]
    sent = (world - 1) * most * number * sizes.itemsize
    back = [(tokens - count) * number * sizes.of_gradients if sizes.trains else 0 for count in counts]
    held = world * most * number * sizes.itemsize
    return Work(tuple(scores), (sent,) * world, tuple(back), (held,) * world)


def _ring(needs: Needs, counts: Sequence[int], sizes: Sizes) -> Work:
    world, groups = len(counts), len(needs)
    lanes = world // groups
    kv_heads = [len(part) for part in torch.arange(sizes.kv_heads).tensor_split(lanes)]
    found: list[tuple[int, int, int, int]] = []
    for rank, count in enumerate(counts):
        group, lane = divmod(rank, lanes)
        of_keys, of_queries = kv_heads[lane], kv_heads[lane] * sizes.heads // sizes.kv_heads
        tokens = sum(counts[group * lanes : (group + 1) * lanes])
        # Tokens for heads: queries, keys and values go, outputs come back.
        elsewhere, others = sizes.heads - of_queries, tokens - count
        a_key = (sizes.kv_heads - of_keys) * sizes.width
        going = count * (elsewhere * sizes.head_dim + a_key) + others * of_queries * sizes.value_dim
        coming = count * elsewhere * sizes.value_dim
        coming += others * (of_queries * sizes.head_dim + of_keys * sizes.width)
        sent, back = (x * sizes.batch * sizes.itemsize for x in (going, coming))
        # The ring.
        number = sizes.batch * of_keys * sizes.width
        rest = [other for other in range(groups) if other != group]
        given = sum(_keys(needs, other, group) for other in rest) * number
        taken = sum(_keys(needs, group, other) for other in rest) * number
        scores = sum(_scores(needs, sizes, group, other) for other in range(groups)) * of_queries
        sent += given * sizes.itemsize
        back += given * sizes.itemsize + taken * sizes.of_gradients
        held = min(2, groups) * tokens * number * sizes.itemsize
        found.append((scores, sent, back if sizes.trains else 0, held))
    return Work(*zip(*found, strict=True))


def _keys(needs: Needs, queries_of: int, keys_of: int) -> int:
    keys = needs.keys(queries_of, keys_of)
    return 0 if keys is None else keys.stop - keys.start
