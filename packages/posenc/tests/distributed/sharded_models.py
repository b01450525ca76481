"""Models whose parameters are divided among processes, each compared with the same model on one."""

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.functional import cross_entropy

import posenc
from posenc import KERPLE, T5, ALiBi, Context, FoX, PoPE, Positions, RoPE, Shaw, Sinusoidal
from posenc.distributed import Sharding, parallelize, sharded
from posenc.encoding.context import projected_at_random
from posenc.models import Decoder
from posenc.schemes.catalog import CATALOG, Shape
from tests.backends.parity_cases import KINDS
from tests.distributed.cases import OF_LAYERS
from tests.distributed.processes import told
from tests.rounding import of_sums

HEADS, HEAD_DIM, LAYERS, TOKENS, VOCAB = 4, 12, 2, 21, 33
DIM = HEADS * HEAD_DIM
NAMES = tuple(name for name in KINDS if name not in OF_LAYERS)


QUICK = ("t5", "mixed_rope", "learned")


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
    world = dist.get_world_size()
    mesh, wrong = init_device_mesh("cpu", (world,)), []
    for n, name in enumerate(names):
        plain, positions = made(name, (HEADS, max(2, world))[n % 2])
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
    method: Any = "ring",
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


# --- models of others -------------------------------------------------------------------------------------------------

BY_HAND: dict[str, Callable[[], posenc.Scheme]] = {
    "t5": lambda: T5(HEADS, 8, 20),
    "kerple": lambda: KERPLE(HEADS),
    "shaw": lambda: Shaw(HEAD_DIM, 5, num_heads=HEADS),
    "alibi": lambda: ALiBi(HEADS),
    "fox": lambda: FoX(HEADS),
    "pope": lambda: PoPE(HEAD_DIM, HEADS),
    "fire": lambda: posenc.FIRE(HEADS),
    "of keys and queries": lambda: posenc.STRING(HEAD_DIM, axes=1, num_heads=2) + T5(HEADS, 8, 20),
}


def by_hand(_: None) -> list[str]:
    """What is wrong where a model divides its heads itself, also unevenly: attention of a process's heads, and the
    gradients of a scheme's parameters and of sinks, which `parallelize` sums over processes."""
    rank, world, wrong = dist.get_rank(), dist.get_world_size(), [*decodes()] if dist.get_world_size() == 2 else []
    mesh, positions = init_device_mesh("cpu", (world,)), Positions.packed([TOKENS - 8, 8])
    for name, build in BY_HAND.items():
        if name == "of keys and queries" and world > 2:
            continue  # of two heads of keys
        torch.manual_seed(0)
        plain = build().double()
        for parameter in plain.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        scheme = parallelize(copy.deepcopy(plain), mesh)
        kv_heads = 2 if name == "of keys and queries" else HEADS
        q, k, v, sinks = (torch.randn(*shape, dtype=torch.float64) for shape in shapes(kv_heads))
        gates = projected_at_random(plain.features, q[:, 0]) if plain.features else {}
        of_keys = torch.arange(kv_heads).tensor_split(world)[rank]
        some_kv, group = range(int(of_keys[0]), int(of_keys[-1]) + 1), HEADS // kv_heads
        some = range(some_kv.start * group, some_kv.stop * group)

        def attend(scheme: Any, context: Context, heads: range, kv: range, given: Any, sinks: Any) -> Any:
            encoding = scheme(positions, dtype=torch.float64, context=context)
            if given[3]:
                encoding = encoding.with_projected({of: x[:, heads.start : heads.stop] for of, x in given[3].items()})
            q, k, v = (x[:, some.start : some.stop] for x, some in zip(given, (heads, kv, kv), strict=False))
            sinks = sinks[heads.start : heads.stop]
            return posenc.attention(q, k, v, encoding, is_causal=True, sinks=sinks)

        given = (q, k, v, gates)
        all_sinks, my_sinks = sinks.clone().requires_grad_(), sinks.clone().requires_grad_()
        expected = attend(plain, Context(), range(HEADS), range(kv_heads), given, all_sinks)
        found = attend(scheme, Context(heads=some, kv_heads=some_kv), some, some_kv, given, my_sinks)
        bound = of_sums(torch.float64, HEAD_DIM * TOKENS, expected, score=32)
        if (found - expected[:, some.start : some.stop]).abs().max() > bound:
            wrong.append(f"{name}: output")
        expected.square().sum().backward()
        found.square().sum().backward()
        dist.all_reduce(my_sinks.grad)
        for (of, whole), part in zip(plain.named_parameters(), scheme.parameters(), strict=True):
            bound = of_sums(torch.float64, HEAD_DIM * TOKENS * TOKENS, whole.grad, score=32)
            if (part.grad.full_tensor() - whole.grad).abs().max() > bound:
                wrong.append(f"{name}: gradient of {of}")
        if (my_sinks.grad - all_sinks.grad).abs().max() > of_sums(torch.float64, TOKENS * TOKENS, all_sinks.grad, 32):
            wrong.append(f"{name}: gradient of sinks")
    return wrong


def shapes(kv_heads: int) -> tuple[tuple[int, ...], ...]:
    return (2, HEADS, TOKENS, HEAD_DIM), *(2 * [(2, kv_heads, TOKENS, HEAD_DIM)]), (HEADS,)


class OnBothSides(posenc.Scheme):
    """Adds to the input and to the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4))

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self.weight[None, None].to(dtype)

    def score(self, x: Positions, y: Positions, context: Context | None = None) -> tuple[Any, ...]:
        return ()


def messages(_: None) -> list[tuple[str, str]]:
    """The messages of errors, and what each must say."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    q = distribute_tensor(torch.randn(1, HEADS, 5, HEAD_DIM), mesh, [Shard(1)])
    done = parallelize(Decoder(9, DIM, 1, HEADS), mesh)
    of_first = init_device_mesh("cpu", (1,))
    elsewhere = (lambda: parallelize(Decoder(9, DIM, 1, HEADS), of_first), "mesh must have this process, 1, got")
    calls: list[tuple[Callable[[], Any], str]] = [
        (
            lambda: parallelize(Decoder(9, 36, 1, 3), mesh),
            "num_heads must be a multiple of the 2 processes of the mesh, got 3: use fewer processes",
        ),
        (
            lambda: parallelize(Decoder(9, DIM, 1, HEADS, 1), mesh),
            "num_kv_heads must be a multiple of the 2 processes of the mesh, got 1",
        ),
        (
            lambda: parallelize(Decoder(9, DIM, 1, HEADS), init_device_mesh("cpu", (1, 2))),
            "mesh must be a DeviceMesh of one axis, got one of 2: pass mesh['name of an axis']",
        ),
        *([elsewhere] if dist.get_rank() else []),
        (lambda: parallelize(Decoder(9, DIM, 1, HEADS), 2), "mesh must be a DeviceMesh of one axis, got 2"),
        (
            lambda: parallelize(torch.nn.Linear(2, 2), mesh),
            "model must be one of posenc.models, or a scheme, got Linear: divide its heads yourself, pass its schemes",
        ),
        (lambda: parallelize(done, mesh), "model must not be divided already: call parallelize once"),
        (
            lambda: parallelize(OnBothSides(), mesh),
            "model has a OnBothSides, whose parameters act both on the input and in attention: compose it of two",
        ),
        (
            lambda: posenc.attention(q, q, q, ALiBi(HEADS), is_causal=True),
            f"query must be a tensor of this process, got a DTensor (1, {HEADS}, 5, {HEAD_DIM}): pass query.to_local()",
        ),
        (
            lambda: posenc.attention(*3 * [q.to_local()], ALiBi(HEADS), is_causal=True),
            f"ALiBi was made for {HEADS} heads, got queries of 2; make it for 2 heads; where they are a shard of",
        ),
    ]
    return told(calls)


def quick_and_messages(_: None) -> tuple[list[str], list[tuple[str, str]]]:
    return by_heads(QUICK), messages(None)


def decodes() -> Iterator[str]:
    """Texts that models whose heads are divided generate."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for name in ("fox", "learned"):
        plain, _ = made(name, 2)
        tokens = torch.arange(2 * TOKENS).reshape(2, TOKENS) * 7 % VOCAB
        expected = plain.generate(tokens, 6)
        if not torch.equal(parallelize(copy.deepcopy(plain), mesh).generate(tokens, 6), expected):
            yield f"{name}: generated another text"
