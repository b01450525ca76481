"""What processes do that hold the tokens of one text among them: whole models, bytes sent, leaks, errors."""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import posenc
from posenc import (
    T5,
    ALiBi,
    Chunk,
    CoPE,
    DynamicNTK,
    FoX,
    Learned,
    NoPE,
    Positions,
    RoPE,
    Schedule,
    SelectiveRoPE,
    Sinusoidal,
    Wall,
)
from posenc.distributed import ShardedCache, Sharding, attention, explain, sharded
from posenc.models import Decoder, ForwardPass, KVCache
from tests.distributed.horizons import made_tables
from tests.distributed.message_counts import counted, counts
from tests.distributed.processes import told
from tests.rounding import of_sums

DIM, HEADS, LAYERS, TOKENS = 24, 4, 2, 29

SCHEMES: dict[str, Callable[[], Any]] = {
    "sinusoidal": lambda: Sinusoidal(DIM),
    "learned": lambda: Learned(64, DIM),
    "rope": lambda: RoPE(DIM // HEADS),
    "rope by length": lambda: RoPE(DIM // HEADS, scaling=DynamicNTK(2.0, 16)),
    "alibi": lambda: ALiBi(HEADS),
    "t5": lambda: T5(HEADS, 8, 20),
    "fox": lambda: FoX(HEADS),
    "selective rope, wall": lambda: SelectiveRoPE(HEADS, DIM // HEADS) + Wall(HEADS, DIM // HEADS),
    "cope": lambda: CoPE(DIM // HEADS, 8),
    "schedule": lambda: Schedule([(RoPE(DIM // HEADS), 7), (NoPE(), None)]),
    "chunks": lambda: Schedule([(RoPE(DIM // HEADS), Chunk(8)), (ALiBi(HEADS), None)]),
}


def run_all(_: None) -> list[str]:
    """What is wrong with models whose tokens are divided: the loss, and gradients summed over processes."""
    wrong = []
    for name, build in SCHEMES.items():
        for text in (Positions.arange(TOKENS, start=2), Positions.packed([10, 13, 6])):
            if name == "rope by length" and text.document.any():
                continue  # a row of several documents has no length
            for order in ("zigzag", "striped"):
                torch.manual_seed(0)
                model = Decoder(32, DIM, LAYERS, HEADS, position=build()).double()
                tokens, targets = torch.randint(32, (2, 2, TOKENS))
                loss = torch.nn.functional.cross_entropy
                whole = model(tokens, positions=text).double()
                expected = torch.autograd.grad(
                    loss(whole.flatten(0, 1), targets.flatten(), reduction="sum"), list(model.parameters())
                )
                sharding = Sharding(text, order=order)
                with sharded(sharding, "gather" if name == "cope" else "ring"):
                    logits = model(sharding.shard(tokens), positions=sharding.positions)
                mine = loss(logits.flatten(0, 1), sharding.shard(targets).flatten(), reduction="sum")
                found = torch.autograd.grad(mine, list(model.parameters()))
                bound = of_sums(torch.float64, DIM * TOKENS * LAYERS, whole, score=32)
                if (logits - sharding.shard(whole)).abs().max() > bound:
                    wrong.append(f"{name}, {order}: logits")
                gathered = sharding.gather(logits.detach())
                if (gathered - whole).abs().max() > bound:
                    wrong.append(f"{name}, {order}: gathered logits")
                for (of, _), part, all_of_it in zip(model.named_parameters(), found, expected, strict=True):
                    part = part.clone()
                    dist.all_reduce(part)
                    if (part - all_of_it).abs().max() > of_sums(
                        torch.float64, DIM * TOKENS * LAYERS * 32, all_of_it, score=32
                    ):
                        wrong.append(f"{name}, {order}: {of}")
    return wrong


def wrapped(_: None) -> list[str]:
    """What is wrong with gradients that DDP and FSDP average, of a loss that is a mean over all tokens."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    wrong = []
    text, build = Positions.packed([17, 12]), lambda: T5(HEADS, 8, 20) + RoPE(DIM // HEADS)
    for wrapper, method, per_layer in (("ddp", "ring", False), ("fsdp", "ring", True), ("fsdp", "gather", False)):
        torch.manual_seed(0)
        plain = Decoder(32, DIM, LAYERS, HEADS, position=build(), per_layer=per_layer).double()
        model = copy.deepcopy(plain)
        tokens, targets = torch.randint(32, (2, 2, TOKENS))
        loss = torch.nn.functional.cross_entropy
        loss(plain(tokens, positions=text).flatten(0, 1), targets.flatten()).backward()
        sharding = Sharding(text)
        if wrapper == "ddp":
            run: torch.nn.Module = DistributedDataParallel(model)
        else:
            for block in model.trunk.blocks:
                fully_shard(block)
            run = fully_shard(model)
        with sharded(sharding, method):
            logits = run(sharding.shard(tokens), positions=sharding.positions)
        mine = loss(logits.flatten(0, 1), sharding.shard(targets).flatten(), reduction="sum")
        (mine * sharding.world / targets.numel()).backward()
        for (name, found), expected in zip(model.named_parameters(), plain.parameters(), strict=True):
            gradient = found.grad.full_tensor() if hasattr(found.grad, "full_tensor") else found.grad
            bound = of_sums(torch.float64, DIM * TOKENS * LAYERS, expected.grad, score=32)
            if (gradient - expected.grad).abs().max() > bound:
                wrong.append(f"{wrapper}, {method}: {name}")
    return wrong


def bytes_sent(_: None) -> dict[str, int]:
    """Bytes that this process sends in a ring, and those that positions say it must."""
    world = dist.get_world_size()
    found = {}
    q, k, v = (torch.randn(1, 2, 64, 8) for _ in range(3))
    kinds: dict[str, tuple[Positions, str, dict[str, Any]]] = {
        "causal": (Positions.arange(64), "contiguous", {}),
        "window": (Positions.arange(64), "contiguous", {"window": 5}),
        "documents": (Positions.packed([16, 16, 16, 16]), "documents", {}),
    }
    a_token = 2 * (8 + 8) * 4  # keys and values of two heads in single precision
    for kind, (positions, order, how) in kinds.items():
        sharding = Sharding(positions, order=order)
        mine = [sharding.shard(x, 2) for x in (q, k, v)]
        with counted() as sent:
            attention(*mine, ALiBi(2), sharding, method="ring", is_causal=True, **how)
        found[kind] = sent[0]
        later = world - 1 - sharding.rank  # processes whose queries come after these keys
        tokens = {"causal": 16 * later, "window": 4 * min(later, 1), "documents": 0}[kind]
        found[f"{kind} expected"] = tokens * a_token
    return found


def leaks(_: None) -> list[str]:
    """Changes of outputs that do not see a changed token, bit by bit."""
    found = []
    positions = Positions.packed([9, 12, 8])
    for method in ("gather", "ring", "ulysses"):
        sharding = Sharding(positions, order="zigzag")
        outs = []
        for changed in (False, True):
            torch.manual_seed(0)
            q, k, v = (torch.randn(1, 2, 29, 8) for _ in range(3))
            if changed:  # a token in the middle of the second document
                k[:, :, 14], v[:, :, 14] = 50.0, -50.0
            mine = [sharding.shard(x, 2) for x in (q, k, v)]
            out = attention(*mine, ALiBi(2) + RoPE(8), sharding, method=method, is_causal=True)
            outs.append(sharding.gather(out, 2))
        apart = (outs[0] != outs[1]).any(-1).any(1)[0]
        if apart[:14].any() or apart[21:].any() or not apart[14:21].all():
            found.append(f"{method}: {apart.nonzero()[:, 0].tolist()}")
    return found


def messages(_: None) -> list[tuple[str, str]]:
    """The messages of errors, and what each must say."""
    sharding = Sharding(Positions.arange(10))
    x = torch.randn(1, 2, len(sharding.positions), 8)
    one_head = torch.randn(1, 1, len(sharding.positions), 8)

    def with_cache() -> None:
        with sharded(sharding):
            ForwardPass(ALiBi(2), sharding.positions, KVCache())

    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][sharding.rank]

    def with_cache_of_others() -> None:
        with sharded(sharding):
            ForwardPass(ALiBi(2), sharding.positions, ShardedCache(alone))

    def continued() -> None:
        cache = ShardedCache()
        for whole in (Positions.arange(10), Positions.arange(10, start=10)):
            part = Sharding(whole)
            with sharded(part, "ring"), ForwardPass(ALiBi(2), part.positions, cache) as step:
                step.attention(x, x, x)

    def generated() -> None:
        cache = ShardedCache()
        with sharded(sharding):
            with ForwardPass(ALiBi(2), sharding.positions, cache) as step:
                step.attention(x, x, x)
            ForwardPass(ALiBi(2), Positions.arange(1, start=10), cache)

    def before() -> None:
        cache = ShardedCache()
        for whole in (Positions.arange(10), Positions.arange(10, start=9)):
            part = Sharding(whole, order="contiguous")  # of which one process alone has the token twice
            with sharded(part), ForwardPass(ALiBi(2), part.positions, cache) as step:
                step.attention(x, x, x)

    def of_others() -> None:
        with sharded(sharding):
            ForwardPass(ALiBi(2), Positions.arange(5))

    def not_divided() -> None:
        with sharded(sharding):
            posenc.attention(x, x, x, ALiBi(2)(Positions.arange(x.size(2))), is_causal=True)  # of another text
            posenc.attention(x, x, x, ALiBi(2), is_causal=True)

    dtensor = DTensor.from_local(x, init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(2)])
    others = Positions.arange(10 + sharding.rank)
    mesh = SimpleNamespace(ndim=2, mesh=torch.tensor([[0]]), get_group=None)  # a mesh without the second process
    whole = torch.randn(1, 2, 10, 8)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: sharding.positions.lengths, "use posenc.distributed, or pass context=Context(lengths=whole.lengths)"),
        (
            lambda: RoPE(8, scaling=DynamicNTK(2.0, 4))(sharding.positions),
            "a shard does not know the length of its text",
        ),
        (lambda: Sharding(sharding.positions), "whole must be the positions of all tokens, got those of a shard"),
        (lambda: Sharding(Positions.arange(4), order="spiral"), "order must be one of 'contiguous', 'zigzag'"),
        (
            lambda: Sharding(Positions.arange(4), order=[torch.arange(4)]),
            "an index tensor for each of 2 processes, got 1",
        ),
        (lambda: Sharding(Positions.arange(4), order=[torch.arange(3), torch.arange(2)]), "got token 0 2 times"),
        (lambda: Sharding(Positions.arange(4), of=3), "of must be a ProcessGroup, a DeviceMesh of one axis, or None"),
        (lambda: Sharding(Positions.arange(4), mesh), "of must be a mesh of two axes with all 2 processes"),
        (lambda: Sharding(others), "whole and order must be the same on all processes, but differ on [1]"),
        (
            lambda: ForwardPass(ALiBi(2), sharding.positions),
            "positions must be those of all tokens, got a shard's: use posenc.distributed.sharded, and keep it open",
        ),
        (
            lambda: attention(x, whole, whole, ALiBi(2), sharding),
            "key must be (batch, heads, 5, head_dim), with the tokens",
        ),
        (
            lambda: attention(x, x, x, ALiBi(2), sharding, attn_mask=torch.zeros(5, 5)),
            "attn_mask must broadcast to (batch, 2, 5, 10), this process's queries and all keys, got",
        ),
        (
            lambda: attention(x, x, x, ALiBi(2), sharding, sinks=torch.zeros(1)),
            "sinks must be (2,), a logit for each head, or (1, 2, 5), one for each head and query of this process, got",
        ),
        # A scheme that does not fit: an error of a block, after which the group still works.
        (lambda: attention(x, x, x, T5(3), sharding, method="ring", is_causal=True), "3 heads"),
        (lambda: attention(x, x, x, T5(3), sharding, method="ulysses", is_causal=True), "3 heads"),
        (lambda: attention(dtensor, x, x, ALiBi(2), sharding), "sharding.shard(query.full_tensor(), dim), or query.to"),
        (lambda: sharding.shard(dtensor, 2), "x must be a tensor of this process, got a DTensor (1, 2, 10, 8)"),
        (not_divided, "call posenc.distributed.attention, or pass scheme(positions) for tokens that are not divided"),
        (of_others, "positions must be those of this process's tokens, sharding.positions"),
        (with_cache, "cache must be a ShardedCache while a text is divided among processes, got a KVCache"),
        (with_cache_of_others, "cache must be of the processes of the sharding, got process 0 of 1 and"),
        (continued, "method must be 'gather', and attn_mask None, where tokens come after those of a cache"),
        (generated, "got 1: run generated tokens, which all processes are given, outside of sharded"),
        (before, "positions begin at or before the last token of the cache: continue it with cache.positions"),
        (lambda: ShardedCache().crop(1), "tokens must be a whole number within 0..0, got 1"),
        (lambda: sharding.shard(torch.zeros(1, 7)), "x must have 10 tokens along dim 1"),
        (
            lambda: attention(x, x, x, CoPE(8, 4), sharding),
            "method='ring' cannot run this call: a score term needs whole rows of scores; pass method='gather' or "
            "'ulysses'",
        ),
        (
            lambda: attention(x, x, x, None, sharding, dropout_p=0.5),
            "method='ring' cannot run this call: with dropout, blocks that are computed twice would be dropped",
        ),
        (
            lambda: attention(x, one_head, one_head, None, sharding, method="ulysses"),
            "needs at least one head of keys for each of 2 processes, got 1; pass method='ring' or 'gather'",
        ),
        (
            lambda: attention(x, x, x, None, sharding, method="swirl"),
            "method must be 'ring', 'gather' or 'ulysses', got 'swirl'",
        ),
        (lambda: Positions.arange(4).shard((2, 2)), "rank must be a whole number within 0..1, got 2"),
        (lambda: Positions.arange(4).shard(2), "of must be a DeviceMesh of one axis, or (rank, world), got 2"),
    ]
    # What is wrong on one process alone: none waits for others.
    first, second = sharding.rank == 0, sharding.rank == 1
    from_first, from_second = (f"process {rank} has an error, and its message says which" for rank in (0, 1))

    def model() -> None:
        with sharded(sharding):
            Decoder(9, 16, 1, 2, position=Learned(9, 16))(torch.zeros_like(x[:, 0, :, 0]).long(), sharding.positions)

    def without_gradients() -> None:
        with torch.set_grad_enabled(first):
            attention(x, x, x, None, sharding)

    cut = x[:, :, 1:] if second else x
    gates = {} if second else {"forgotten": x[..., 0]}
    differs = "must be the same on all processes, but differ on [1] from process 0's"
    calls += [
        (lambda: attention(cut, x, x, RoPE(8), sharding), "query has 4 tokens" if second else from_second),
        (lambda: attention(x, x, x, FoX(2), sharding, features=gates), "'forgotten'" if second else from_second),
        (
            lambda: attention(x, x, x, posenc.Relative1D(8, 8), sharding, method="ring", is_causal=True),
            "Relative1D encodes distances up to 7, got 9" if first else from_first,
        ),
        (model, "Learned encodes positions 0 to 8" if first else from_first),
        (lambda: attention(x, x, x, ALiBi(2) if first else T5(2), sharding, is_causal=True), differs),
        (lambda: attention(x, x, x, None, sharding, is_causal=first), differs),
        (lambda: attention(*3 * [x.double() if first else x], None, sharding), differs),
        (without_gradients, differs),
    ]
    alone_refused = Sharding(Positions.arange(1))  # the second process has no block that could refuse
    one = torch.randn(1, 2, len(alone_refused.positions), 8)
    calls.append(
        (
            lambda: attention(one, one, one, None, alone_refused, method="ring", backend="sdpa"),
            "backend 'sdpa' cannot run this" if len(alone_refused.positions) else "has an error, and its message says",
        )
    )
    found = []
    for scheme, expected in (
        (CoPE(8, 4), "not ring: a score term needs whole rows of scores"),
        (None, "ring: 60 scores, 0.001664 MB sent, 0.00128 MB of keys and values held"),
    ):
        found.append((str(explain(x, x, x, scheme, sharding, is_causal=True)), expected))
    return found + told(calls * 2)  # an error leaves nothing on its way


def in_short(_: None) -> tuple[list[str], list[tuple[str, str]]]:
    return leaks(None) + counts(None) + made_tables(None), messages(None)


def empties(_: None) -> list[str]:
    """What is wrong where some processes have no tokens, or none that may see one another: gradients are all there, and
    nobody waits for ever."""
    wrong = []
    for text in (Positions.arange(1), Positions.arange(2), Positions.padded(torch.arange(16)[None] < 6)):
        for build in (lambda: T5(HEADS, 8, 20), lambda: FoX(HEADS), lambda: Learned(64, DIM)):
            for method in ("ring", "gather", "ulysses"):
                tokens = torch.zeros(2, len(text), dtype=torch.int64)
                torch.manual_seed(0)
                model = Decoder(32, DIM, LAYERS, HEADS, position=build()).double()
                expected = torch.autograd.grad(model(tokens, positions=text).square().sum(), list(model.parameters()))
                sharding = Sharding(text, order="contiguous")
                with sharded(sharding, method):
                    out = model(sharding.shard(tokens), positions=sharding.positions)
                found = torch.autograd.grad(out.square().sum(), list(model.parameters()), allow_unused=True)
                for (name, _), part, whole in zip(model.named_parameters(), found, expected, strict=True):
                    if part is None:
                        wrong.append(f"{method}, {len(text)}: no gradient of {name}")
                    part = torch.zeros_like(whole) if part is None else part.clone()
                    dist.all_reduce(part)
                    if (part - whole).abs().max() > of_sums(torch.float64, DIM * 16 * LAYERS * 32, whole, score=32):
                        wrong.append(f"{method}, {len(text)}: {name}")
    return wrong


def again(_: None) -> list[str]:
    """What is wrong with layers and models that are computed again, and with second derivatives."""
    from torch.utils.checkpoint import checkpoint

    wrong, text = [], Positions.arange(TOKENS)
    torch.manual_seed(0)
    model = Decoder(32, DIM, LAYERS, HEADS, position=T5(HEADS, 8, 20)).double()
    tokens = torch.randint(32, (2, TOKENS))
    sharding = Sharding(text)
    mine, start = sharding.shard(tokens), torch.zeros((), requires_grad=True)
    for method in ("ring", "gather", "ulysses"):
        with sharded(sharding, method):

            def logits(_: torch.Tensor) -> torch.Tensor:  # reentrant checkpointing asks for an input with a gradient
                return model(mine, positions=sharding.positions)

            expected = torch.autograd.grad(logits(start).square().sum(), list(model.parameters()))
            for reentrant in (False, True):
                out = checkpoint(logits, start, use_reentrant=reentrant)
                model.zero_grad()
                out.square().sum().backward()
                for (name, parameter), whole in zip(model.named_parameters(), expected, strict=True):
                    if (parameter.grad - whole).abs().max() > of_sums(
                        torch.float64, DIM * TOKENS * 64, whole, score=32
                    ):
                        wrong.append(f"{method}, reentrant {reentrant}: {name}")
    # Second derivatives, by the reference backend.
    q, k, v = torch.randn(3, 1, 2, 12, 8, dtype=torch.float64)
    sharding = Sharding(Positions.arange(12))

    def second(attend: Callable[..., Any], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        leaves = [x.clone().requires_grad_() for x in tensors]
        first = torch.autograd.grad(attend(*leaves).sin().sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(x.cos().sum() for x in first), leaves))

    whole = second(lambda *x: posenc.attention(*x, ALiBi(2), is_causal=True, backend="reference"), [q, k, v])
    for method in ("gather", "ulysses"):
        mine = second(
            lambda *x, m=method: attention(*x, ALiBi(2), sharding, method=m, is_causal=True, backend="reference"),
            [sharding.shard(x, 2) for x in (q, k, v)],
        )
        for part, all_of_it in zip(mine, whole, strict=True):
            if (part - sharding.shard(all_of_it, 2)).abs().max() > of_sums(
                torch.float64, 12 * 8 * 64, all_of_it, score=32
            ):
                wrong.append(f"{method}: second derivatives")
    return wrong
