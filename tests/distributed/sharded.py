"""Models whose parameters are divided among processes, each compared with the same model on one."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from posenc import T5, FoX, PoPE, Positions, RoPE, Sinusoidal
from posenc.distributed import Sharding, parallelize, sharded
from posenc.models import Decoder
from posenc.schemes.catalog import CATALOG, Shape
from tests.backends.grounds import KINDS
from tests.distributed.cases import OF_LAYERS
from tests.rounding import of_sums

HEADS, HEAD_DIM, LAYERS, TOKENS, VOCAB = 4, 12, 2, 21, 33
DIM = HEADS * HEAD_DIM
NAMES = tuple(name for name in KINDS if name not in OF_LAYERS)


def made(name: str, kv_heads: int = HEADS, layers: int = LAYERS) -> tuple[Decoder, Positions]:
    """A model with a scheme of `KINDS`, whose parameters are drawn so that they show, and positions for it."""
    kind = KINDS[name]
    torch.manual_seed(1)
    shape = Shape(DIM, HEADS, HEAD_DIM, max_positions=64, num_kv_heads=kv_heads)
    model = Decoder(VOCAB, DIM, layers, HEADS, kv_heads, position=kind.build(shape))
    for parameter in model.trunk.position.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.double(), kind.at(Positions.packed([TOKENS - 8, 8]))


def loss(logits: torch.Tensor) -> torch.Tensor:
    """The same on every process."""
    targets = torch.arange(logits.size(0) * logits.size(1)) % VOCAB
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets)


def by_heads(names: Sequence[str]) -> list[str]:
    """What is wrong with models whose heads are divided: logits, gradients, and where they are."""
    mesh, wrong = init_device_mesh("cpu", (dist.get_world_size(),)), []
    tokens = torch.arange(2 * TOKENS).reshape(2, TOKENS) * 7 % VOCAB
    for n, name in enumerate(names):
        plain, positions = made(name, (HEADS, 2)[n % 2])
        model = parallelize(copy.deepcopy(plain), mesh)
        expected, found = plain(tokens, positions=positions), model(tokens, positions=positions)
        if (found - expected).abs().max() > of_sums(torch.float64, DIM * TOKENS * LAYERS, expected, score=32):
            wrong.append(f"{name}: logits")
        loss(expected).backward()
        loss(found).backward()
        for (of, whole), (_, part) in zip(plain.named_parameters(), model.named_parameters(), strict=True):
            if (whole.grad is None) != (part.grad is None):
                wrong.append(f"{name}: {of} has a gradient on one side only")
            if whole.grad is None or part.grad is None:
                continue
            if part.grad.placements != part.placements:
                wrong.append(f"{name}: {of}: {part.grad.placements}")
            bound = of_sums(torch.float64, DIM * TOKENS * LAYERS * 32, whole.grad, score=32)
            if (part.grad.full_tensor() - whole.grad).abs().max() > bound:
                wrong.append(f"{name}: gradient of {of}")
    return wrong


def gathered_parameters(world: int) -> list[str]:
    """What is wrong with models under FSDP2: in half precision at far positions, from ``meta``, with activation
    checkpointing, with divided texts on a mesh of two axes, with divided heads."""
    return [*from_meta(), *computed_again()] + ([*on_two_axes()] if world == 4 else [])


def fsdp(model: Any, **how: Any) -> Any:
    for block in model.trunk.blocks:
        fully_shard(block, **how)
    return fully_shard(model, **how)


OF_FSDP: dict[str, Callable[[], Any]] = {
    "rope": lambda: RoPE(HEAD_DIM),
    "t5": lambda: T5(HEADS, 8, 20) + RoPE(HEAD_DIM),
    "fox": lambda: FoX(HEADS),
    "pope": lambda: PoPE(HEAD_DIM, HEADS),
    "sinusoidal": lambda: Sinusoidal(DIM),
}


def in_half() -> Iterator[str]:
    tokens = torch.arange(2 * TOKENS).reshape(2, TOKENS) * 7 % VOCAB
    texts = {"far": Positions.arange(TOKENS, start=1_000_001), "packed": Positions.packed([TOKENS - 8, 8])}
    for name, build in OF_FSDP.items():
        for (text, positions), divided in itertools.product(texts.items(), (False, True)):
            torch.manual_seed(0)
            plain = Decoder(VOCAB, DIM, LAYERS, HEADS, position=build())
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            model = fsdp(copy.deepcopy(plain), mp_policy=policy)
            half = copy.deepcopy(plain).bfloat16()
            with torch.no_grad():
                expected, exact = half(tokens, positions=positions), plain(tokens, positions=positions)
                if divided:
                    sharding = Sharding(positions)
                    with sharded(sharding):
                        found = sharding.gather(model(sharding.shard(tokens), positions=sharding.positions))
                else:
                    found = model(tokens, positions=positions)
            bound = of_sums(torch.bfloat16, DIM * LAYERS, expected.float(), score=4)
            if found.dtype != torch.bfloat16 or (found - expected).abs().max() > bound:
                yield f"{name}, {text}, divided {divided}: {(found - expected).abs().max()}, at most {bound}"
            if (found - exact).abs().max() > bound:
                yield f"{name}, {text}, divided {divided}: {(found - exact).abs().max()} from single precision"


def from_meta() -> Iterator[str]:
    """Every scheme with parameters, made without memory, sharded, then initialized or filled from process 0."""
    for name in (entry.name for entry in CATALOG):
        plain, _ = made(name)
        if not list(plain.trunk.position.parameters()):
            continue
        with torch.device("meta"):
            model = made(name)[0]
        fsdp(model)
        model.to_empty(device="cpu")
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                try:
                    module.reset_parameters()
                except Exception as error:
                    yield f"{name}: {type(error).__name__}: {error}"
        if any(not x.full_tensor().isfinite().all() for x in model.parameters()):
            yield f"{name}: not initialized"
        state = plain.state_dict() if dist.get_rank() == 0 else {}
        set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
        for (of, mine), whole in zip(model.named_parameters(), plain.parameters(), strict=True):
            if not torch.equal(mine.full_tensor(), whole):
                yield f"{name}: {of}"


def computed_again() -> Iterator[str]:
    yield from ()


def on_two_axes() -> Iterator[str]:
    yield from ()
