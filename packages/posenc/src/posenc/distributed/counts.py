"""What each method of attention computes, sends and holds, counted; and which of them cannot run a call.

The counts are those of the code of this room, and tests compare them with the bytes that real processes send.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from posenc.distributed.sharding import Needs, Sharding
from posenc.encoding.encoding import Encoding
from posenc.encoding.terms import gives_weights

Method = Literal["ring", "gather", "ulysses"]
METHODS: tuple[str, ...] = get_args(Method)


def refusals(encoding: Encoding, sharding: Sharding, kv_heads: int, dropout_p: float = 0.0) -> dict[str, str]:
    """The methods that cannot run a call, and why."""
    refusals_by_method = {}
    if any(term.reads_rows for term in encoding.score_terms) or gives_weights(encoding.score_terms):
        refusals_by_method["ring"] = "a score term needs whole rows of scores"
    elif dropout_p:
        refusals_by_method["ring"] = "with dropout, blocks that are computed twice would be dropped differently"
    if any(rotation.needs_whole_documents for rotation in encoding.rotations):
        refusals_by_method |= dict.fromkeys(("ring", "gather"), "a key depends on other keys of its document")
    of_heads = {"ulysses": sharding.world, "ring": 1 if sharding.within is None else sharding.within.world}
    for method, world in of_heads.items():
        if kv_heads < world:
            least = f"at least one head of keys for each of {world} processes"
            refusals_by_method[method] = f"an exchange of heads needs {least}, got {kv_heads}"
    return refusals_by_method


def groups(sharding: Sharding, refused: Mapping[str, str] | None = None) -> dict[str, Sequence[Tensor]]:
    """For each method that is not refused, the tokens of each group of processes that exchange heads, or of each
    process."""
    ring = sharding if sharding.across is None else sharding.across
    every = {"gather": sharding.indices, "ring": ring.indices, "ulysses": [torch.arange(len(sharding.whole))]}
    return {name: held for name, held in every.items() if name not in (refused or {})}


@dataclass(frozen=True)
class MessageSizes:
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


def count(needs: Needs, counts: Sequence[int], sizes: MessageSizes, method: str) -> Work:
    """The work of a method for processes that have these numbers of tokens.

    ``needs`` are those of each process, or, where groups of processes of consecutive ranks exchange tokens for heads,
    those of each group: with ``"ulysses"`` there is one, and on a mesh of two axes a ring of them.

    The bytes are those of queries, keys, values and outputs, and in the backward pass of their gradients, which are
    float32 for keys and values but where heads are exchanged. Masks, features and the log-sum-exp are not counted.
    """
    of_rank = _gathered if method == "gather" else _in_ring
    each = [of_rank(needs, counts, sizes, rank) for rank in range(len(counts))]
    scores, sent, back, held = zip(*each, strict=True)
    rows = tuple(n * sizes.batch // sizes.rows for n in scores)
    return Work(rows, sent, back if sizes.trains else (0,) * len(back), held)


def _gathered(needs: Needs, counts: Sequence[int], sizes: MessageSizes, rank: int) -> tuple[int, int, int, int]:
    world, most, number = len(counts), max(counts), sizes.batch * sizes.kv_heads * sizes.width  # of a token
    scores = sum(needs.pairs(rank, other) for other in range(world)) * sizes.heads
    back = (sum(counts) - counts[rank]) * number * sizes.of_gradients
    return scores, (world - 1) * most * number * sizes.itemsize, back, world * most * number * sizes.itemsize


def _in_ring(needs: Needs, counts: Sequence[int], sizes: MessageSizes, rank: int) -> tuple[int, int, int, int]:
    groups, lanes = len(needs), len(counts) // len(needs)
    group, lane = divmod(rank, lanes)
    of_keys = len(torch.arange(sizes.kv_heads).tensor_split(lanes)[lane])
    of_queries = of_keys * sizes.heads // sizes.kv_heads
    tokens = sum(counts[group * lanes : (group + 1) * lanes])
    # Tokens for heads: queries, keys and values go, outputs come back.
    elsewhere, others = sizes.heads - of_queries, tokens - counts[rank]
    a_key = (sizes.kv_heads - of_keys) * sizes.width
    going = counts[rank] * (elsewhere * sizes.head_dim + a_key) + others * of_queries * sizes.value_dim
    coming = others * (of_queries * sizes.head_dim + of_keys * sizes.width) + counts[rank] * elsewhere * sizes.value_dim
    # The ring.
    number, rest = sizes.batch * of_keys * sizes.width, [other for other in range(groups) if other != group]
    of_mine, of_others = [needs.keys(n, group) for n in rest], [needs.keys(group, n) for n in rest]
    own_numbers, other_numbers = (sum(k.stop - k.start for k in keys if k) * number for keys in (of_mine, of_others))
    sent = (going * sizes.batch + own_numbers) * sizes.itemsize
    back = (coming * sizes.batch + own_numbers) * sizes.itemsize + other_numbers * sizes.of_gradients
    scores = sum(needs.pairs(group, other) for other in range(groups)) * of_queries
    return scores, sent, back, min(2, groups) * tokens * number * sizes.itemsize
