"""What processes send where heads see no further than a horizon, counted, and what they compute, against all tokens."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import posenc
from posenc import KERPLE, ALiBi, Positions, RoPE
from posenc.backends.blockwise import Rows
from posenc.backends.native.library import missing
from posenc.distributed import Sharding, attention
from posenc.encoding.terms import Bias, Distance
from tests.distributed.message_counts import counted
from tests.rounding import of_sums

TOKENS, WIDTH, NORM = 512, 8, 2.0
SPREAD = 2 * NORM * NORM / math.sqrt(WIDTH)
BELOW = math.log(2.0**-62 / TOKENS)  # half of 2**-61, for double precision


@dataclass(frozen=True)
class Far:
    """A call with heads whose bias falls by these slopes."""

    slopes: tuple[float, ...]
    scheme: posenc.Scheme
    kv_heads: int
    order: str
    how: dict[str, Any]
    text: Positions
    left: int | None = None


def cases() -> list[Far]:
    kerple = KERPLE(4, "power").double()
    slopes = (4.0, 1.0, 0.3, 0.02)
    torch.nn.init.ones_(kerple.p)
    with torch.no_grad():
        kerple.a.copy_(torch.tensor(slopes))
    one, packed = Positions.arange(TOKENS, start=7), Positions.packed([300, 212])
    alibi = tuple(2.0**-n for n in range(1, 9))
    causal = {"is_causal": True}
    return [
        Far(alibi, ALiBi(8), 8, "contiguous", causal, one),
        Far(alibi, ALiBi(8) + RoPE(WIDTH), 4, "zigzag", causal, packed),
        Far(slopes, kerple, 2, "contiguous", {**causal, "sinks": torch.linspace(-1, 1, 4).double()}, one),
        Far(slopes, kerple, 4, "zigzag", {**causal, "window": 200}, one, left=199),
    ]


def horizon(slope: float) -> int | None:
    """The keys that a head needs, with its own: a power of two, as few as the weights allow."""
    for n in range(6, 9):
        if SPREAD - slope * 2**n < BELOW:
            return 2**n
    return None


def bytes_of(case: Far, sharding: Sharding, sender: int, receiver: int) -> int:
    """The bytes of keys and values that one process's queries need of another, from a mask of all pairs."""
    order, document = case.text.order[0], case.text.document[0]
    query, key = (sharding.indices[rank] for rank in (receiver, sender))
    apart = order[query][:, None] - order[key][None]
    same = (document[query][:, None] == document[key][None]) & (apart >= 0)
    if case.left is not None:
        same = same & (apart <= case.left)
    total, shared = 0, len(case.slopes) // case.kv_heads
    for h in range(case.kv_heads):
        reaches = [horizon(slope) for slope in case.slopes[h * shared : (h + 1) * shared]]
        reach = TOKENS if None in reaches else max(reach for reach in reaches if reach)
        seen = (same & (apart < reach)).any(0).nonzero()
        total += (int(seen.max() - seen.min()) + 1 if len(seen) else 0) * 2 * WIDTH * 8
    return total


def run(on_a_mesh: bool) -> list[str]:
    """What is wrong with numbers and gradients and, unless heads are exchanged on a mesh, with bytes."""
    wrong, handed = [], []
    take = Rows.take

    def taking(rows: Rows, like: Tensor) -> tuple[Tensor, Tensor]:
        handed.append(rows)
        return take(rows, like)

    Rows.take = taking  # type: ignore[method-assign]
    for n, case in enumerate(cases()):
        generator = torch.Generator().manual_seed(n)

        def draw(heads: int, norm: float | None = None, generator: torch.Generator = generator) -> Tensor:
            x = torch.randn(1, heads, TOKENS, WIDTH, generator=generator, dtype=torch.float64)
            return x if norm is None else x * (norm / x.norm(dim=-1, keepdim=True))

        heads = len(case.slopes)
        tensors, d_out = [draw(heads, NORM), draw(case.kv_heads, NORM), draw(case.kv_heads)], draw(heads)
        learned = list(case.scheme.parameters())
        leaves = [x.clone().requires_grad_() for x in tensors]
        encoding = case.scheme(case.text, dtype=torch.float64)
        exactly = {"backend": "reference", "skip_below": 0.0, "return_lse": True}
        expected = posenc.attention(*leaves, encoding, **exactly, **case.how)
        expected += torch.autograd.grad((expected[0] * d_out).sum() + expected[1].sin().sum(), [*leaves, *learned])
        mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2)) if on_a_mesh else None
        sharding = Sharding(case.text, mesh, order=case.order)
        rank, world = sharding.rank, sharding.world
        mine = [sharding.shard(x, 2).requires_grad_() for x in tensors]
        how = {**case.how, "return_lse": True, "method": "ring"}
        for skip_below, exact in ((None, False), (0.0, True)):
            with counted() as sent:
                found = attention(*mine, case.scheme, sharding, skip_below=skip_below, **how)
                forward = sent[0]
                loss = (found[0] * sharding.shard(d_out, 2)).sum() + found[1].sin().sum()
                found += torch.autograd.grad(loss, [*mine, *learned])
            others = [other for other in range(world) if other != rank]
            given = sum(bytes_of(case, sharding, rank, other) for other in others)
            taken = sum(bytes_of(case, sharding, other, rank) for other in others)
            counts = given, given + given + taken
            if not on_a_mesh and not exact and (forward, sent[0]) != counts:
                wrong.append(f"{n}: sent {forward} and {sent[0]} bytes, not {counts}")
            if not on_a_mesh and exact and forward < given:
                wrong.append(f"{n}: all keys are {forward} bytes, fewer than {given}")
            of_tokens = ["out", "lse", "query", "key", "value"]
            names = [*of_tokens, *(name for name, _ in case.scheme.named_parameters())]
            for name, part, whole in zip(names, found, expected, strict=True):
                if name in of_tokens:
                    part, whole = part.detach(), sharding.shard(whole.detach(), 2)
                else:
                    part = part.clone(memory_format=torch.contiguous_format)  # gloo adds memory as it lies
                    dist.all_reduce(part)
                # Weights of 2**-61 may be missing: less than the rounding of a sum.
                bound = of_sums(torch.float64, TOKENS * TOKENS * WIDTH * heads, whole, score=TOKENS)
                if (part - whole).abs().max() > bound:
                    wrong.append(f"{n}, skip_below={skip_below}: {name} is {(part - whole).abs().max()} off, {bound}")
    Rows.take = take  # type: ignore[method-assign]
    if not handed and missing(torch.float64) is None:
        wrong.append("the kernel computes blocks again in the backward pass")
    return wrong


class Made(posenc.Scheme):
    """A bias from a table that another network computes, in an attribute or in a closure."""

    def __init__(self, table: Tensor, own: nn.Parameter, in_closure: bool) -> None:
        super().__init__()
        self.own = own
        self.given = None if in_closure else table * own
        self._hidden = [table * own] if in_closure else []

    def score(
        self, query_positions: Positions, key_positions: Positions, context: posenc.Context | None = None
    ) -> tuple[Bias, ...]:
        table = self._hidden[0] if self.given is None else self.given

        def at(r: Tensor) -> Tensor:
            return table[:, r.abs().clamp(max=7)]

        return (Bias(at, Distance("Made", num_heads=2)),)


def made_tables(_: object) -> list[str]:
    """What is wrong with the gradients of tables that a scheme was given: of a network's weights and of its own."""
    wrong = []
    torch.manual_seed(0)
    net = nn.Linear(3, 2 * 8).double()
    x = torch.randn(3, dtype=torch.float64)
    tensors = [torch.randn(1, 2, 12, 8, dtype=torch.float64) for _ in range(3)]
    sharding = Sharding(Positions.arange(12))
    for in_closure in (False, True):
        own = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        learned = [*net.parameters(), own]
        whole = posenc.attention(*tensors, Made(net(x).view(2, 8), own, in_closure), is_causal=True)
        expected = torch.autograd.grad(whole.sin().sum(), learned)
        mine = [sharding.shard(x, 2) for x in tensors]
        out = attention(*mine, Made(net(x).view(2, 8), own, in_closure), sharding, method="ring", is_causal=True)
        for part, all_of_it in zip(torch.autograd.grad(out.sin().sum(), learned), expected, strict=True):
            part = part.clone()
            dist.all_reduce(part)
            bound = of_sums(torch.float64, 12 * 12 * 8 * 2, all_of_it, score=32)
            if (part - all_of_it).abs().max() > bound:
                wrong.append(f"in a closure {in_closure}: {part} is not {all_of_it}")
    return wrong
