"""What processes do that compile models: outputs and gradients are those of the model as it is, on one process."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from posenc import T5, ALiBi, CoPE, FoX, Learned, Positions, RoPE, Schedule
from posenc.distributed import Sharding, sharded
from posenc.models import Decoder
from tests.rounding import of_sums

DIM, HEADS, TOKENS = 16, 2, 12

SCHEMES: dict[str, Callable[[], Any]] = {
    "t5 and rope": lambda: T5(HEADS, 8, 20) + RoPE(DIM // HEADS),
    "learned": lambda: Learned(64, DIM),
    "fox": lambda: FoX(HEADS),
    "cope": lambda: CoPE(DIM // HEADS, 8),
    "schedule": lambda: Schedule([(RoPE(DIM // HEADS), 7), (ALiBi(HEADS), None)]),
}


class Case(NamedTuple):
    wrapper: str
    method: Any
    """How the text is divided; "": each process has the whole of it."""
    scheme: str = "t5 and rope"
    backend: str = "eager"


SOME = (Case("ddp", "ring"),)
MORE = (
    Case("ddp", ""),
    Case("ddp", "gather", backend="aot_eager"),
    Case("ddp", "ulysses", "schedule"),
    Case("ddp", "gather", "cope"),
    Case("ddp", "ring", "fox"),
    Case("fsdp", ""),
    Case("fsdp", "ring", "learned", "aot_eager"),
    Case("fsdp", "gather", "fox"),
)


def made(wrapper: str, model: Any) -> Any:
    if wrapper == "ddp":
        return DistributedDataParallel(model)
    for block in model.trunk.blocks:
        fully_shard(block)
    return fully_shard(model)


def run(cases: tuple[Case, ...]) -> list[str]:
    """What is wrong with compiled models."""
    wrong = []
    loss = torch.nn.functional.cross_entropy
    for case in cases:
        torch.compiler.reset()
        torch.manual_seed(0)
        plain: Any = Decoder(
            32, DIM, 2 if case.scheme == "schedule" else 1, HEADS, position=SCHEMES[case.scheme]()
        ).double()
        model = copy.deepcopy(plain)
        tokens, targets = torch.randint(32, (2, 2, TOKENS))
        whole = plain(tokens)
        loss(whole.flatten(0, 1), targets.flatten()).backward()
        compiled: Any = torch.compile(made(case.wrapper, model), backend=case.backend)
        sharding = Sharding(Positions.arange(TOKENS))
        divided = bool(case.method)
        for step in range(2):
            model.zero_grad()
            with sharded(sharding, case.method) if divided else nullcontext():
                mine = sharding.shard(tokens) if divided else tokens
                logits = compiled(mine, positions=sharding.positions if divided else Positions.arange(TOKENS))
            of_mine = sharding.shard(targets) if divided else targets
            total = loss(logits.flatten(0, 1), of_mine.flatten(), reduction="sum")
            (total * (sharding.world if divided else 1) / targets.numel()).backward()
            bound = of_sums(torch.float64, DIM * TOKENS, whole, score=32)
            if ((sharding.gather(logits.detach()) if divided else logits) - whole).abs().max() > bound:
                wrong.append(f"{case}, step {step}: logits")
            for (name, found), expected in zip(model.named_parameters(), plain.parameters(), strict=True):
                gradient = found.grad.full_tensor() if hasattr(found.grad, "full_tensor") else found.grad
                bound = of_sums(torch.float64, DIM * TOKENS, expected.grad, score=32)
                if (gradient - expected.grad).abs().max() > bound:
                    wrong.append(f"{case}, step {step}: {name}")
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        if not graphs:
            wrong.append(f"{case}: nothing was compiled")
    return wrong
