"""What each method of attention computes, sends and holds, counted; and the time that it would take, modelled.

The counts are those of the code of this room, and tests compare them with the bytes that real processes send. The times
follow from the counts and a few constants of a `Machine`. They are modelled, not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.arguments import check_choice
from posenc.distributed.needs import Needs, mask_of
from posenc.positions.orders import Order, indices
from posenc.positions.positions import PADDING, Positions
from posenc.positions.tiles import Visibility, Window
from posenc.positions.visibility import visible


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
class Machine:
    """The constants of the model of time: FLOP/s of the attention kernel, bytes/s of one device to others of its node
    and to other nodes, in one direction, devices per node, bytes of memory, and seconds until a message arrives."""

    name: str
    flops: float
    link: float
    network: float
    per_node: int
    memory: float
    latency: float = 1e-5

    def speed(self, rank: int, other: int) -> float:
        """Bytes per second from one process to another."""
        return self.link if rank // self.per_node == other // self.per_node else self.network


# 370 TFLOP/s: FlashAttention-2, forward, 16k tokens, head_dim 128 (arXiv 2407.08608, figure 5). 450 GB/s: NVLink, half
# of the 900 GB/s of both directions (NVIDIA's H100 datasheet). 50 GB/s: an InfiniBand port of 400 Gbit/s for each GPU
# (NVIDIA's DGX H100 datasheet). The latency is an assumption.
H100 = Machine("H100, nodes of 8", flops=370e12, link=450e9, network=50e9, per_node=8, memory=80e9)


class Sample(Needs):
    """An estimate in milliseconds, from every n-th token of each process, about 1,024 tokens in all. The same on every
    process."""

    def __init__(
        self, whole: Positions, indices: Sequence[Tensor], visibility: Visibility, chunk: int | None = None
    ) -> None:
        self.times = -(-len(whole) // 1024) or 1
        some = [index[self.times // 2 :: self.times] for index in indices]
        super().__init__([whole[index] for index in some], visibility)
        text = whole[torch.cat(some)]
        text = text if chunk is None else text.in_chunks(chunk)
        mask = visible(text, text, visibility)
        is_token = (text.document != PADDING)[:, :, None]
        seen = (is_token if mask is None else mask & is_token).expand(-1, -1, len(text)).sum(0).cpu()
        held = [len(index) for index in some]
        for queries_of, rows in enumerate(seen.split(held)):
            for keys_of, counts in enumerate(rows.sum(0).split(held)):
                keys = counts.nonzero()[:, 0].tolist()
                self._found[queries_of, keys_of] = slice(keys[0], keys[-1] + 1) if keys else None, int(counts.sum())


BACKWARD = 2.5
"""FLOPs of the backward pass over those of the forward pass: five products of matrices instead of two."""


@dataclass(frozen=True)
class Price:
    """What one call of attention costs. For each process: ``scores`` (visible pairs of query and key, of all heads and
    rows), the bytes that it sends in the forward pass (``sent``) and in the backward pass (``sent_back``), and the
    bytes of keys and values of which it holds the most at a time (``held``). ``seconds`` is modelled."""

    scores: tuple[int, ...]
    sent: tuple[int, ...]
    sent_back: tuple[int, ...]
    held: tuple[int, ...]
    seconds: float

    def __str__(self) -> str:
        most = max(map(sum, zip(self.sent, self.sent_back, strict=True)))
        return (
            f"{max(self.scores):.3g} scores, {most / 1e6:.4g} MB sent, "
            f"{max(self.held) / 1e6:.4g} MB of keys and values held, {self.seconds * 1e3:.3g} ms"
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
) -> Price:
    """What a call of `attention` by ``"gather"``, ``"ring"`` or ``"ulysses"`` costs on ``world`` processes, from
    positions alone: no process is needed.

    The bytes are those of queries, keys, values and outputs, and in the backward pass of their gradients, which are
    float32 for keys and values but under ``"ulysses"``. Nothing is counted for masks, features and the log-sum-exp.

    >>> work(Positions.arange(8), 2, method="ring", num_heads=1, head_dim=4).scores
    (18, 18)
    """
    check_choice("method", method, ("gather", "ring", "ulysses"))
    kv_heads = num_heads if kv_heads is None else kv_heads
    value_dim = head_dim if value_dim is None else value_dim
    batch = whole.rows if batch is None else batch
    if batch != whole.rows != 1:
        raise ValueError(f"batch must be {whole.rows}, the rows of the positions, got {batch}")
    shards = [whole[index] for index in indices(whole.layout, world, order)]
    needs = Needs([whole] if method == "ulysses" else shards, *mask_of(is_causal, window))
    sizes = Sizes(batch, num_heads, kv_heads, head_dim, value_dim, dtype.itemsize, whole.rows)
    return price(needs, [len(shard) for shard in shards], sizes, method)


def price(
    needs: Needs,
    counts: Sequence[int],
    sizes: Sizes,
    method: str,
    machine: Machine = H100,
) -> Price:
    """The price of a method for processes that have these numbers of tokens.

    ``needs`` are those of each process, or, where groups of processes of consecutive ranks exchange tokens for heads,
    those of each group: with ``"ulysses"`` there is one, and on a mesh of two axes a ring of them.
    """
    if method == "gather":
        return _gather(needs, counts, sizes, machine)
    return _ring(needs, counts, sizes, machine)


def _scores(needs: Needs, sizes: Sizes, queries_of: int, keys_of: int) -> int:
    """The visible pairs of a head, of all rows."""
    return needs.pairs(queries_of, keys_of) * needs.times**2 * sizes.batch // sizes.rows


def _compute(scores: float, sizes: Sizes, machine: Machine) -> float:
    """Seconds of the forward pass of so many scores: two products, of 2 FLOPs for each channel."""
    return 2 * sizes.width * scores / machine.flops


def _gather(needs: Needs, counts: Sequence[int], sizes: Sizes, machine: Machine) -> Price:
    world, tokens, most = len(counts), sum(counts), max(counts)
    number = sizes.batch * sizes.kv_heads * sizes.width  # of numbers of a token
    every = range(world)
    scores = [sum(_scores(needs, sizes, r, other) for other in every) * sizes.heads for r in every]
    sent = [(world - 1) * most * number * sizes.itemsize] * world
    back = [(tokens - count) * number * sizes.of_gradients if sizes.trains else 0 for count in counts]
    # Keys enter a node once, through the ports of all its devices, and are handed on inside.
    nodes = -(-world // machine.per_node)
    outside = sent[0] / (world - 1) * world * (1 - 1 / nodes) / machine.per_node / machine.network if world > 1 else 0.0
    seconds = max(sent[0] / machine.link, outside) + machine.latency * (world > 1)
    seconds += _compute(max(scores), sizes, machine) * (1 + BACKWARD * sizes.trains)
    if sizes.trains:
        seconds += max(_exchange([count * number * sizes.of_gradients for count in counts], r, machine) for r in every)
    held = world * most * number * sizes.itemsize
    return Price(tuple(scores), tuple(sent), tuple(back), (held,) * world, seconds)


def _exchange(parts: Sequence[float], rank: int, machine: Machine, first: int = 0) -> float:
    """Seconds in which a process sends a part to each other process, of ranks from ``first`` on."""
    ways = {machine.link: 0.0, machine.network: 0.0}
    for other, part in enumerate(parts, first):
        ways[machine.speed(rank, other)] += part if other != rank else 0.0
    return max(part / speed for speed, part in ways.items()) + machine.latency * (len(parts) > 1)


def _ring(needs: Needs, counts: Sequence[int], sizes: Sizes, machine: Machine) -> Price:
    world, groups = len(counts), len(needs)
    lanes = world // groups
    kv_heads = [len(part) for part in torch.arange(sizes.kv_heads).tensor_split(lanes)]
    found: list[tuple[int, int, int, int]] = []
    longest = 0.0
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
        ways = [_exchange([x / max(lanes - 1, 1)] * lanes, rank, machine, group * lanes) for x in (sent, back)]
        # The ring.
        number = sizes.batch * of_keys * sizes.width
        sources = [(group - step) % groups for step in range(groups)]
        given = [_keys(needs, other, group) * number for other in range(groups) if other != group]
        taken = [_keys(needs, group, source) * number for source in sources]
        blocks = [_scores(needs, sizes, group, source) * of_queries for source in sources]
        sent += sum(given) * sizes.itemsize
        back += (sum(given) * sizes.itemsize + sum(taken[1:]) * sizes.of_gradients) if groups > 1 else 0
        speeds = [machine.speed(rank, source * lanes + lane) for source in sources]
        seconds = sum(ways[: 1 + sizes.trains])
        for trains in (False, True)[: 1 + sizes.trains]:
            # With PyTorch's kernels a ring computes blocks again; of one block there is nothing to compute again.
            again = BACKWARD + (groups > 1) if trains else 1.0
            for step in range(groups):
                travels = _travels(step + 1, taken, speeds, sizes.itemsize, machine)
                travels += _travels(step, taken, speeds, sizes.of_gradients, machine) if trains else 0.0
                seconds += max(again * _compute(blocks[step], sizes, machine), travels)
        longest = max(longest, seconds)
        held = min(2, groups) * tokens * number * sizes.itemsize
        found.append((sum(blocks), sent, back if sizes.trains else 0, held))
    scores, every, every_back, most = zip(*found, strict=True)
    return Price(scores, every, every_back, most, longest)


def _keys(needs: Needs, queries_of: int, keys_of: int) -> int:
    keys = needs.keys(queries_of, keys_of)
    return 0 if keys is None else (keys.stop - keys.start) * needs.times


def _travels(step: int, taken: Sequence[int], speeds: Sequence[float], itemsize: int, machine: Machine) -> float:
    """Seconds in which the keys of a step of the ring travel. Those of step 0 are at home."""
    if not 0 < step < len(taken) or not taken[step]:
        return 0.0
    return taken[step] * itemsize / speeds[step] + machine.latency
