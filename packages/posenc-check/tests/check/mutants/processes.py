"""Attention of a text that several processes divide, in plain torch, with the mistakes that are met."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from posenc_check import Attention, Layer
from tests.check.mutants import Mutant

TRAINED = 20  # tokens: longer texts are rotated more slowly, as dynamic NTK does it


class Gathered(torch.autograd.Function):
    """The tokens of all processes, one process after the other; gradients are summed over processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, counts: list[int], rank: int, summed: bool) -> Tensor:
        ctx.of = (dim, counts, rank, summed)
        parts = []
        for source, count in enumerate(counts):
            part = x.contiguous() if source == rank else x.new_empty(*x.shape[:dim], count, *x.shape[dim + 1 :])
            dist.broadcast(part, source)
            parts.append(part)
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        dim, counts, rank, summed = ctx.of
        gradient = gradient.contiguous()
        if summed:
            dist.all_reduce(gradient)
        return gradient.narrow(dim, sum(counts[:rank]), counts[rank]), None, None, None, None


def rotated(x: Tensor, positions: Tensor, length: int) -> Tensor:
    base = 100.0 * max(1.0, length / TRAINED) ** 2
    rates = base ** (-torch.arange(0, x.size(-1), 2, dtype=torch.float64) / x.size(-1))
    angles = positions[:, None, :, None].double() * rates
    left, right = x.double().chunk(2, -1)
    turned = torch.cat((left * angles.cos() - right * angles.sin(), left * angles.sin() + right * angles.cos()), -1)
    return turned.to(x.dtype)


def slopes(heads: int) -> Tensor:
    return 2.0 ** (-4 * (torch.arange(heads) + 1) / heads)


def nothing(bug: str = "") -> str:
    return bug


def attend(bug: str, query: Tensor, key: Tensor, value: Tensor, shard: Any) -> Tensor:
    """Causal attention with a rotation and ALiBi; ``bug`` names the mistake."""
    by_heads, rank = shard.order == "heads", shard.rank
    mine = shard.tokens[rank]
    joined = mine if by_heads else torch.cat(shard.tokens)
    positions, document = shard.positions, shard.document
    here, there, of = positions[:, mine], positions[:, joined], document[:, joined]
    heads = query.size(1)
    every = slopes(heads * shard.world)[rank * heads :][:heads] if by_heads else slopes(heads)
    length = positions.size(1)
    if bug == "restart" and shard.world > 1:
        here = torch.arange(len(mine)).expand_as(here)
        there = torch.cat([torch.arange(len(part)) for part in shard.tokens]).expand_as(there)
    if bug == "documents":
        if shard.world > 1:
            here = (document[:, :, None] == document[:, None, :]).tril(-1).sum(-1)[:, mine]
        value = value + here[:, None, :, None].to(value.dtype).sin()  # an absolute position, for relative ones hide it
    if bug == "slopes":
        every = slopes(heads)
    if bug == "length":
        length = len(mine)
    if bug == "crash" and shard.world > 1 and rank == 1:
        os._exit(3)
    if bug == "raises" and shard.world > 1 and rank == 1:
        raise KeyError("rank 1 alone")
    counts = [query.size(2)] if by_heads else [len(part) for part in shard.tokens]
    query, key = rotated(query, here, length), rotated(key, here, length)
    if bug == "empty":
        mean = key.detach().mean(2, keepdim=True)  # a vector that is taken from all keys changes no weight
        dist.all_reduce(mean)
        key = key - mean / shard.world
    if not by_heads:
        summed = bug != "gradients"
        if bug == "waits" and shard.world > 1 and rank == 1:
            return torch.zeros_like(query)
        key, value = (Gathered.apply(x, 2, counts, rank, summed) for x in (key, value))
    if bug == "score":
        here = torch.arange(len(mine)).expand_as(here)
        there = torch.arange(len(joined)).expand_as(there)
    distance = here[:, None, :, None] - there[:, None, None, :]
    scores = query @ key.mT / query.size(-1) ** 0.5 - every[:, None, None] * distance.abs().clamp(max=6)
    seen = (joined <= mine[:, None])[None]
    if bug != "leaks":
        seen = seen & (document[:, mine, None] == of[:, None, :])
    return scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1).to(value.dtype) @ value


def divided(bug: str = "", **claims: Any) -> Attention:
    orders = claims.pop("orders", ("contiguous", "zigzag", "documents", "striped", "heads"))
    options = {"bug": bug} if bug else {}
    return Attention(build=nothing, call=attend, options=options, causal=True, orders=orders, **{"heads": 4, **claims})


class Block(nn.Module):
    def __init__(self, dim: int = 32, heads: int = 4, twice: bool = False) -> None:
        super().__init__()
        self.heads, self.qkv, self.twice = heads, nn.Linear(dim, 3 * dim), twice

    def forward(self, x: Tensor, shard: Any) -> Tensor:
        if self.twice:
            self.qkv.weight.register_hook(summed)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return x + attend("", q, k, v, shard).transpose(1, 2).flatten(2)


def summed(gradient: Tensor) -> Tensor:
    gradient = gradient.contiguous()
    dist.all_reduce(gradient)
    return gradient


def run_block(block: Block, x: Tensor, shard: Any) -> Tensor:
    return block(x, shard)


TOKENS = ("contiguous", "zigzag", "striped")


RIGHT = divided(threshold=TRAINED)
TWICE = Layer(build=Block, call=run_block, options={"twice": True}, causal=True, orders=TOKENS)

CORRECT: tuple[Any, ...] = ()  # those above need several processes
MUTANTS = [
    Mutant("positions restart in every process", divided("restart", orders=("contiguous", "zigzag")), 22, 17),
    Mutant("slopes of the local heads", divided("slopes", orders=("heads",)), 22, 19),
    Mutant("the length of a shard", divided("length", orders=("contiguous",), threshold=TRAINED), 22, 19),
    Mutant("an index that is not mapped back", divided("score", orders=("zigzag",)), 22, 17),
    Mutant("documents leak across shards", divided("leaks", orders=("contiguous",)), 22, 20),
    Mutant("an empty shard gives NaN", divided("empty", orders=("contiguous",)), 22, 19),
    Mutant("gradients of keys that live elsewhere", divided("gradients", orders=("contiguous",)), 22, 19),
    Mutant("gradients counted twice", TWICE, 22, 19),
    Mutant("one process crashes", divided("crash", orders=("contiguous",)), 22, 19),
]
