"""Calls of attention whose tokens are divided among processes, each compared with the same call on all tokens."""

import traceback
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

import posenc
from posenc import Chunk, Positions
from posenc.distributed import Sharding, attention
from posenc.encoding.context import projected_at_random
from posenc.positions.positions import PADDING
from posenc.schemes.catalog import Shape
from tests.backends.parity_cases import KINDS

BATCH, HEADS, HEAD_DIM, TOKENS = 2, 6, 12, 37
PADS = torch.nan, torch.inf, torch.nan
"""What query, key and value hold where there is padding: nothing reads it."""


@dataclass(frozen=True)
class Case:
    """A scheme by its name in `KINDS`, and how it is asked."""

    scheme: str
    order: str = "zigzag"
    method: str = "ring"
    text: str = "plain"
    mask: str = "causal"
    kv_heads: int = HEADS

    def __str__(self) -> str:
        return ", ".join(map(str, vars(self).values()))


TEXTS: dict[str, Callable[[], Positions]] = {
    "plain": lambda: Positions.arange(TOKENS, start=3),
    "packed": lambda: Positions.packed([11, 3, 18, 5]),
    "rows packed": lambda: Positions.packed([[20, 17], [9, 12, 16]]),
    "padded": lambda: Positions.padded(torch.arange(TOKENS) >= torch.tensor([[5], [0]])),
    "padded inside": lambda: Positions.padded(torch.arange(TOKENS) % torch.tensor([[7], [5]]) != 3),
    "few": lambda: Positions.arange(2),
}

MASKS: dict[str, dict[str, Any]] = {
    "causal": {"is_causal": True},
    "all": {"is_causal": False},
    "window": {"is_causal": True, "window": 9},
    "both sides": {"is_causal": False, "window": (6, 4)},
    "chunks": {"is_causal": True, "window": Chunk(8)},
    "sinks": {"is_causal": True, "sinks": True},
    "float mask": {"is_causal": True, "attn_mask": True},  # and a sink of every query
}


def wholes(case: Case) -> tuple[list[Tensor], Tensor, Tensor]:
    """Query, key and value of all tokens, and the gradients of output and log-sum-exp."""
    generator = torch.Generator().manual_seed(zlib.crc32(str(case).encode()))
    tokens = len(TEXTS[case.text]())

    def draw(heads: int, *width: int) -> Tensor:
        return torch.randn(BATCH, heads, tokens, *width, generator=generator, dtype=torch.float64)

    tensors = [draw(HEADS, HEAD_DIM), draw(case.kv_heads, HEAD_DIM), draw(case.kv_heads, HEAD_DIM)]
    return tensors, draw(HEADS, HEAD_DIM), draw(HEADS)


def run(case: Case) -> str | None:
    """What is wrong with this process's part, or None."""
    kind = KINDS[case.scheme]
    positions = kind.at(TEXTS[case.text]())
    torch.manual_seed(1)
    scheme = kind.build(Shape(HEADS * HEAD_DIM, HEADS, HEAD_DIM, max_positions=64, num_kv_heads=case.kv_heads)).double()
    for parameter in scheme.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    tensors, d_out, d_lse = wholes(case)
    x = tensors[0][:, 0]
    padding = (positions.document == PADDING).expand(BATCH, -1)[:, None, :, None]
    tensors = [tensor.masked_fill(padding, fill) for tensor, fill in zip(tensors, PADS, strict=True)]
    how = dict(MASKS[case.mask])
    sinks = torch.linspace(-1, 1, HEADS, dtype=torch.float64) if how.pop("sinks", None) else None
    beside: dict[str, Tensor] = {}
    if how.pop("attn_mask", None):
        tokens = positions.order.size(1)
        beside["attn_mask"] = torch.randn(HEADS, tokens, tokens, dtype=torch.float64)
        beside["sinks"] = torch.randn(BATCH, HEADS, tokens, dtype=torch.float64)
    for tensor in beside.values():
        dist.broadcast(tensor, 0)
        tensor.requires_grad_()
    how |= {} if sinks is None else {"sinks": sinks}
    projected = projected_at_random(scheme.features, x) if scheme.features else {}

    def gradients(out: Tensor, lse: Tensor | None, d_out: Tensor, d_lse: Tensor, leaves: Sequence[Tensor]) -> list[Any]:
        loss = (out * d_out).sum()
        if lse is not None:
            loss = loss + (lse.masked_fill(lse == -torch.inf, 0.0) * d_lse).sum()
        return [*torch.autograd.grad(loss, leaves, allow_unused=True)]

    learned = [parameter for parameter in scheme.parameters() if parameter.requires_grad]
    learned += [] if sinks is None else [sinks.requires_grad_()]
    # All tokens, here.
    leaves = [x.clone().requires_grad_() for x in tensors]
    given = {name: x.clone().requires_grad_() for name, x in projected.items()}
    encoding = scheme(positions, dtype=torch.float64)
    if given:
        encoding = encoding.with_projected(given)
    found = posenc.attention(*leaves, encoding, return_lse=True, backend="reference", **how, **beside)
    expected = [*found]
    expected += gradients(*found, d_out, d_lse, [*leaves, *given.values(), *beside.values(), *learned])

    # This process's tokens.
    is_mesh = case.method == "mesh"  # heads are exchanged between two processes, and the ring is of the others
    sharding = Sharding(
        positions, init_device_mesh("cpu", (dist.get_world_size() // 2, 2)) if is_mesh else None, order=case.order
    )
    mine = [sharding.shard(x, 2).requires_grad_() for x in tensors]
    my_given = {name: sharding.shard(x, 2).requires_grad_() for name, x in projected.items()}
    my_beside = {
        name: sharding.shard(x.detach(), -2 if name == "attn_mask" else 2).requires_grad_()
        for name, x in beside.items()
    }
    got = attention(
        *mine,
        scheme,
        sharding,
        method="ring" if is_mesh else case.method,
        features=my_given,
        return_lse=True,
        **how,
        **my_beside,
    )
    of_mine = gradients(
        *got,
        sharding.shard(d_out, 2),
        sharding.shard(d_lse, 2),
        [*mine, *my_given.values(), *my_beside.values(), *learned],
    )
    of_tokens = ["out", "lse", "query", "key", "value", *projected, *beside]
    names = [*of_tokens, *(name for name, _ in scheme.named_parameters()), *([] if sinks is None else ["sinks"])]
    for name, part, whole in zip(names, [*got, *of_mine], expected, strict=True):
        whole = None if whole is None else whole.detach()
        is_parameter = name not in of_tokens
        if whole is None:
            continue
        if is_parameter:
            # Gradients may share memory, and gloo adds memory as it lies.
            part = torch.zeros_like(whole) if part is None else part.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(part)
        else:
            whole = sharding.shard(whole, -2 if name == "attn_mask" else 2)
            part = torch.zeros_like(whole) if part is None else part
        # Sums over other parts of the keys: as many roundings as keys and channels, of numbers of this size.
        size = max(1.0, float(whole[whole.isfinite()].abs().max()) if whole.isfinite().any() else 1.0)
        bound = 64 * torch.finfo(torch.float64).eps * TOKENS * HEAD_DIM * size
        try:
            torch.testing.assert_close(part, whole, rtol=0, atol=bound)
        except AssertionError as error:
            return f"{case}: {name}: {error}"
    return None


def run_all(cases: Sequence[Case]) -> list[str]:
    """What is wrong with each case. A case that raises, raises in all processes, so they stay in step."""
    wrong = []
    for case in cases:
        try:
            found = run(case)
        except Exception:
            found = f"{case}: {traceback.format_exc()}"
        if found is not None:
            wrong.append(found)
        dist.barrier()
    return wrong


ADDED = ("exponential_decay", "fourier_features", "learned", "segment", "sinusoidal")
"""Schemes that add to the input, which attention does not do: models are tried with them."""
OF_LAYERS = ("clocked", "featured")
"""Schemes of the tests whose features are set by hand."""
METHODS = ("ring", "gather", "ulysses")


def chosen(world: int, every: int = 1, start: int = 0) -> list[Case]:
    """Every scheme once, in turn with each order, method, text, mask and number of key heads: their numbers have no
    common divisor, so that pairs of them meet in all ways."""
    found = []
    orders, texts, masks = ("zigzag", "contiguous", "striped", "documents"), tuple(TEXTS), tuple(MASKS)
    for n, name in enumerate(name for name in KINDS if name not in (*ADDED, *OF_LAYERS)):
        if n % every != start % every:
            continue
        kind, turn = KINDS[name], n + 5 * world
        order, method = orders[turn % 4], METHODS[turn % 3]
        text, mask = texts[(turn // 2) % len(texts)], masks[turn % len(masks)]
        if order == "documents" and text in ("rows packed", "padded", "padded inside"):
            order = "contiguous"  # rows have different documents
        if kind.looks_back and mask in ("all", "both sides"):
            mask = "causal"
        if mask == "chunks" and kind.axes > 1:
            mask = "window"
        if not kind.normalises and mask in ("sinks", "float mask"):
            mask = "causal"
        kv_heads = HEADS if turn % 5 else 2
        if method == "ulysses" and kv_heads < world:
            kv_heads = HEADS
        if method == "ring" and any(score_term.reads_rows for score_term in _pieces(name)):
            method = "gather"
        if name == "key_offset":  # a key depends on other keys of its document
            method, kv_heads = "ulysses", HEADS
        found.append(Case(name, order, method, text, mask, kv_heads))
    return found


OF_ROWS = [Case("alibi", "zigzag", "ulysses", text, kv_heads=2) for text in ("rows packed", "padded", "padded inside")]
"""An exchange of heads where rows have different positions, which `chosen` meets in few turns."""

ON_A_MESH = [
    Case("alibi", "zigzag", "mesh", "plain", "sinks", 2),
    Case("t5", "contiguous", "mesh", "packed", "causal", 2),
    Case("t5 bidirectional", "zigzag", "mesh", "padded", "all", 3),
    Case("rope", "striped", "mesh", "rows packed", "window", HEADS),
    Case("alibi", "documents", "mesh", "packed", "float mask", 3),
    Case("fox", "zigzag", "mesh", "plain", "chunks", 2),
    Case("kerple", "zigzag", "mesh", "few", "both sides", 2),
    Case("mixed_rope", "zigzag", "mesh", "plain", "causal", 2),
]
"""Calls on a mesh of two axes: heads are exchanged along one, and keys travel along the other."""


def _pieces(name: str) -> Sequence[Any]:
    kind = KINDS[name]
    scheme = kind.build(Shape(HEADS * HEAD_DIM, HEADS, HEAD_DIM, max_positions=64))
    return scheme(kind.at(Positions.arange(4))).score_terms
