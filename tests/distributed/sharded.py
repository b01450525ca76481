"""Models whose parameters are divided among processes, each compared with the same model on one."""

from __future__ import annotations

import copy
import itertools
from contextlib import nullcontext
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy

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


def by_heads(names: Sequence[str]) -> list[str]:
    """What is wrong with models whose heads are divided: logits, gradients, and where they are."""
    mesh, wrong = init_device_mesh("cpu", (dist.get_world_size(),)), []
    for n, name in enumerate(names):
        plain, positions = made(name, (HEADS, 2)[n % 2])
        wrong += compared(name, plain, parallelize(copy.deepcopy(plain), mesh), positions)
    return wrong


def by_parameters(_: None) -> list[str]:
    """What is wrong with models under FSDP2."""
    return [*in_half(), *from_meta(), *computed_again()]


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
    """FSDP2 with activation checkpointing."""
    for name in ("t5", "shaw", "fox", "kerple"):
        plain, positions = made(name)
        model = copy.deepcopy(plain)
        model.trunk.blocks = torch.nn.ModuleList(checkpoint_wrapper(block) for block in model.trunk.blocks)
        yield from compared(f"{name}, checkpointed", plain, fsdp(model), positions)


def on_two_axes(_: None) -> list[str]:
    """What is wrong where two ways to divide a model or its texts meet, with four processes: heads, parameters, tokens,
    rows of the batch."""
    wrong, mesh = [], init_device_mesh("cpu", (2, 2), mesh_dim_names=("other", "inner"))
    for name in ("t5", "fox", "mixed_rope", "alibi+fire+softcap", "pope", "learned"):
        plain, positions = made(name, 2)
        model = fsdp(parallelize(copy.deepcopy(plain), mesh["inner"]), mesh=mesh["other"])
        wrong += compared(f"{name}: heads and parameters", plain, model, positions)
        for method in ("ring", "ulysses", "gather"):
            if method == "ulysses" and name != "mixed_rope":
                continue
            plain, positions = made(name)
            sharding = Sharding(positions, mesh["other"])
            model = parallelize(copy.deepcopy(plain), mesh["inner"])
            wrong += compared(f"{name}: heads and tokens, {method}", plain, model, positions, sharding, method)
        sharding = Sharding(positions, mesh["inner"])
        model = fsdp(copy.deepcopy(plain))  # over all processes
        wrong += compared(f"{name}: rows, tokens and parameters", plain, model, positions, sharding, rows=mesh["other"])
    return wrong


def compared(
    what: str,
    plain: Decoder,
    model: Any,
    positions: Positions,
    sharding: Sharding | None = None,
    method: Any = "auto",
    rows: Any = None,
) -> Iterator[str]:
    """What is wrong with logits and gradients. ``sharding`` divides tokens, and ``rows`` is a mesh among whose
    processes the rows of the batch are divided."""
    tokens = torch.arange(2 * TOKENS).reshape(2, TOKENS) * 7 % VOCAB
    targets = torch.arange(2 * TOKENS).reshape(2, TOKENS) % VOCAB
    plain.zero_grad()
    expected = plain(tokens, positions=positions)
    cross_entropy(expected.flatten(0, 1), targets.flatten()).backward()
    if rows is not None:
        mine = slice(rows.get_local_rank(), rows.get_local_rank() + 1)
        tokens, targets, expected = tokens[mine], targets[mine], expected[mine]
    processes = (1 if sharding is None else sharding.world) * (1 if rows is None else rows.size())
    with nullcontext() if sharding is None else sharded(sharding, method):
        if sharding is not None:
            tokens, targets, expected = (sharding.shard(x) for x in (tokens, targets, expected))
            positions = sharding.positions
        found = model(tokens, positions=positions)
        mine = cross_entropy(found.flatten(0, 1), targets.flatten(), reduction="sum") / (2 * TOKENS)
        (mine * processes).backward()
    if (found - expected).abs().max() > of_sums(torch.float64, DIM * TOKENS * LAYERS, expected, score=32):
        yield f"{what}: logits"
    for (of, whole), part in zip(plain.named_parameters(), model.parameters(), strict=True):
        if (whole.grad is None) != (part.grad is None):
            yield f"{what}: {of} has a gradient on one side only"
        if whole.grad is None or part.grad is None:
            continue
        gradient = part.grad
        if isinstance(gradient, DTensor):
            if gradient.placements != part.placements:
                yield f"{what}: {of}: {gradient.placements}"
            gradient = gradient.full_tensor()
        if sharding is not None and rows is None:  # nobody has summed them over the processes of a text
            dist.all_reduce(gradient, group=sharding.group)
            gradient = gradient / sharding.world
        if (gradient - whole.grad).abs().max() > of_sums(torch.float64, DIM * TOKENS * LAYERS * 32, whole.grad, 32):
            yield f"{what}: gradient of {of}"
