"""What attention over several processes computes and sends: measured, and counted.

    python research/benchmarks/scale.py --worlds 2 4 --out runs/scale/scale.md

1. *Measured*: processes run `posenc.distributed.attention`, forward and backward, and compare it with the call on one
   process. Pairs are counted where attention is called, from dense masks; bytes where torch.distributed is called, and
   on the sockets of gloo. They must equal what `posenc.distributed.counts` says, or the program fails.
2. *Counted* by `posenc.distributed.counts` for 1, 2, 4 and 8 processes: no process is started.

On a machine with at least as many CUDA devices as processes it runs NCCL on them, otherwise gloo on the CPU.
"""

import argparse
import os
import platform
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

import posenc
from posenc import ALiBi, Positions, RoPE
from posenc.distributed import Sharding, Work, attention
from posenc.distributed.counts import MessageSizes, count, groups
from posenc.distributed.ring import Part
from posenc.distributed.sharding import Needs, mask_of
from posenc.models import forward_pass
from posenc.positions.layout import ORDERS, indices
from posenc.positions.tiles import Visibility, check_window, visible

METHODS = ("gather", "ring", "ulysses")
BOTH = "ring × ulysses"  # on a mesh of two axes
BATCH, HEADS, KV_HEADS, WIDTH = 1, 8, 4, 16
SCHEMES: dict[str, Callable[[], Any]] = {"RoPE": lambda: RoPE(WIDTH), "ALiBi": lambda: ALiBi(HEADS)}


def texts(tokens: int) -> dict[str, Positions]:
    eighth = tokens // 8
    return {
        "one text": Positions.arange(tokens),
        "packed": Positions.packed([3 * eighth, eighth, eighth, eighth, eighth // 2, eighth // 2, eighth]),
    }


def masks(tokens: int) -> dict[str, tuple[bool, int | None]]:
    """Names, whether they are causal, and windows."""
    window = tokens // 8
    return {"causal": (True, None), f"causal, window {window:,}": (True, window), "bidirectional": (False, None)}


# -- measured ---------------------------------------------------------------------------------------------------------


@dataclass
class Traffic:
    """What this process has handed to torch.distributed to send, in bytes, and the pairs that it has computed."""

    sent: int = 0
    scores: int = 0


@contextmanager
def counted() -> Iterator[Traffic]:
    """Counts while it is open. A process hands a gathered tensor on to all others, as in a ring."""
    found = Traffic()
    exchange, gather, attend = dist.batch_isend_irecv, dist.all_gather, forward_pass.attention

    def exchanging(operations: list[Any]) -> Any:
        found.sent += sum(x.tensor.nbytes for x in operations if x.op is dist.isend)
        return exchange(operations)

    def gathering(into: list[Tensor], x: Tensor, **options: Any) -> Any:
        if x.dim():  # not the number by which processes agree that a call is the same
            found.sent += (len(into) - 1) * x.nbytes
        return gather(into, x, **options)

    def attending(query: Tensor, key: Tensor, value: Tensor, encoding: Any, **options: Any) -> Any:
        queries, keys = encoding.query_positions, encoding.key_positions
        seen = visible(queries, keys, Visibility(options["is_causal"], *check_window(options["window"])))
        pairs = query.size(2) * key.size(2) if seen is None else int(seen.sum())
        found.scores += pairs * query.size(0) * query.size(1)
        return attend(query, key, value, encoding, **options)

    dist.batch_isend_irecv, dist.all_gather, forward_pass.attention = exchanging, gathering, attending
    try:
        yield found
    finally:
        dist.batch_isend_irecv, dist.all_gather, forward_pass.attention = exchange, gather, attend


@contextmanager
def parts_of_ring() -> Iterator[list[Part]]:
    """The parts of the heads that a ring finds while it is open."""
    room: Any = import_module("posenc.distributed.attention")  # not the function of this name
    found: list[Part] = []
    parts = room.parts

    def finding(*given: Any) -> list[Part]:
        found[:] = parts(*given)
        return found

    room.parts = finding
    try:
        yield found
    finally:
        room.parts = parts


def on_sockets() -> int | None:
    """The bytes that this process has sent on TCP connections, by Linux's counters (4.19 or later)."""
    total = 0
    for descriptor in os.listdir("/proc/self/fd") if sys.platform == "linux" else ():
        try:
            if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(descriptor))) as connection:
                if connection.type != socket.SOCK_STREAM or connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            continue
        if len(info) < 216:
            return None
        sent, again = struct.unpack_from("QQ", info, 200)  # tcpi_bytes_sent, tcpi_bytes_retrans
        total += sent - again
    return total or None


@dataclass(frozen=True)
class Row:
    """One call: the largest difference from one process over its bound, and of each process what was measured."""

    world: int
    scheme: str
    text: str
    mask: str
    order: str
    method: str
    apart: float
    scores: tuple[int, ...]
    sent: tuple[int, ...]
    on_sockets: tuple[int | None, ...]
    expected: Work

    @property
    def is_as_counted(self) -> bool:
        """Whether bytes are as counted. Sockets carry what gloo adds to each message too, and norms, some kilobytes."""
        planned = tuple(a + b for a, b in zip(self.expected.sent, self.expected.sent_back, strict=True))
        carried = all(
            wire is None or plan <= wire <= plan + 16384 for wire, plan in zip(self.on_sockets, planned, strict=True)
        )
        return self.sent == planned and self.scores == self.expected.scores and carried


def of_part(part: Part, counts: Sequence[int], sizes: MessageSizes) -> tuple[tuple[int, ...], ...]:
    heads = part.keys.stop - part.keys.start
    sizes = replace(sizes, heads=heads * sizes.heads // sizes.kv_heads, kv_heads=heads)
    cost = count(part.needs, counts, sizes, "ring")
    return cost.scores, cost.sent, cost.sent_back


def added(parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*parts, strict=True)))


def run(world: int, tokens: int, names: list[tuple[str, ...]], device: torch.device) -> list[Row]:
    """What this process measures for each (scheme, text, mask, order, method)."""
    found = []
    for scheme_name, text_name, mask_name, order, method in names:
        text, (is_causal, window) = texts(tokens)[text_name], masks(tokens)[mask_name]
        torch.manual_seed(0)
        scheme = SCHEMES[scheme_name]().to(device)
        shapes = [(BATCH, heads, tokens, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
        *wholes, d_out = (torch.randn(shape).to(device) for shape in shapes)
        leaves = [x.clone().requires_grad_() for x in wholes]
        encoding = scheme(text.to(device))
        options: dict[str, Any] = {"is_causal": is_causal, "window": window}
        expected = [posenc.attention(*leaves, encoding, enable_gqa=True, **options)]
        expected += torch.autograd.grad(expected[0], leaves, d_out)
        mesh = init_device_mesh(device.type, (world // 2, 2)) if method == BOTH else None
        sharding, kind = Sharding(text.to(device), mesh, order), method.split()[0]
        mine = [sharding.shard(x, 2).requires_grad_() for x in wholes]
        attention(*mine, scheme, sharding, method=kind, **options).backward(sharding.shard(d_out, 2))  # connects
        dist.barrier()
        before = on_sockets()
        with counted() as forward, parts_of_ring() as parts:
            out = attention(*mine, scheme, sharding, method=kind, **options)
        with counted() as backward:
            got = [out, *torch.autograd.grad(out, mine, sharding.shard(d_out, 2))]
        after = on_sockets()
        # As many roundings as a sum over keys and channels has, of numbers of this size.
        bound = 64 * torch.finfo(torch.float32).eps * (tokens + WIDTH)
        apart = max(
            float((part - sharding.shard(whole, 2)).detach().abs().max() / whole.detach().abs().max().clamp(min=1))
            / bound
            for part, whole in zip(got, expected, strict=True)
        )
        wire = None if before is None or after is None or device.type == "cuda" else after - before
        every: list[Any] = [None] * world
        dist.all_gather_object(every, (apart, forward.scores, forward.sent + backward.sent, wire))
        aparts, scores, sent, wires = zip(*every, strict=True)
        visibility = Visibility(is_causal, *check_window(window))
        needs = Needs([text[held] for held in groups(sharding)[kind]], visibility)
        sizes = MessageSizes(BATCH, HEADS, KV_HEADS, WIDTH, WIDTH, itemsize=4)
        cost = count(needs, sharding.counts, sizes, kind)
        if parts and mesh is None:  # of the heads, by their horizons
            sums = zip(*(of_part(part, sharding.counts, sizes) for part in parts), strict=True)
            cost = replace(cost, **dict(zip(("scores", "sent", "sent_back"), map(added, sums), strict=True)))
        row = world, scheme_name, text_name, mask_name, order, method, max(aparts), scores, sent, wires, cost
        found.append(Row(*row))
    return found


def spawned(rank: int, world: int, tokens: int, folder: str, names: list[tuple[str, ...]]) -> None:
    torch.set_num_threads(1)
    is_cuda = torch.cuda.device_count() >= world
    device = torch.device("cuda", rank) if is_cuda else torch.device("cpu")
    if is_cuda:
        torch.cuda.set_device(device)
    store = f"file://{folder}/store-{world}"
    dist.init_process_group("nccl" if is_cuda else "gloo", init_method=store, rank=rank, world_size=world)
    found = run(world, tokens, names, device)
    if rank == 0:
        torch.save(found, f"{folder}/rows-{world}")
    dist.barrier()
    dist.destroy_process_group()


def measured(world: int, tokens: int, is_small: bool) -> list[Row]:
    # Every other text and mask with ALiBi, so that a small run is one of each.
    asked = [("one text", "causal"), ("one text", [*masks(tokens)][1]), ("packed", "causal")]
    schemes = ("ALiBi",) if is_small else tuple(SCHEMES)
    orders = ("contiguous", "zigzag") if is_small else ORDERS
    names = [
        (scheme, *which, order, method)
        for scheme in schemes
        for which in asked
        for order in orders
        for method in METHODS
    ]
    if world % 2 == 0 and world > 2:
        names += [("RoPE", *which, order, BOTH) for which in asked for order in orders]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(spawned, (world, tokens, folder, names), world)
        return torch.load(f"{folder}/rows-{world}", weights_only=False)


# -- counted ----------------------------------------------------------------------------------------------------------


def works(text: Positions, world: int, order: Any, methods: Sequence[str] = METHODS, **mask: Any) -> list[Work]:
    """By each method for which there are enough heads."""
    shards = [text[index] for index in indices(text.layout, world, order)]
    counts, sizes = [len(shard) for shard in shards], MessageSizes(BATCH, HEADS, KV_HEADS, WIDTH, WIDTH)
    able = {method: [text] if method == "ulysses" else shards for method in methods}
    able = {method: held for method, held in able.items() if method != "ulysses" or world <= KV_HEADS}
    return [count(Needs(held, *mask_of(**mask)), counts, sizes, method) for method, held in able.items()]


def least(text: Positions, world: int, order: str, visibility: Visibility) -> int:
    """The keys of others that some query of a process attends to: what must be sent, by a dense mask."""
    held = indices(text.layout, world, order)
    mask = visible(text, text, visibility)
    seen = torch.ones(1, len(text), len(text), dtype=torch.bool) if mask is None else mask
    return sum(int(seen[0, queries].any(0).sum()) - int(seen[0, queries][:, queries].any(0).sum()) for queries in held)


def share(values: tuple[int, ...]) -> float:
    return max(values) / (sum(values) / len(values) or 1)


# -- the page ---------------------------------------------------------------------------------------------------------


def table(heads: list[str], rows: list[list[Any]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield "| " + " | ".join(map(str, row)) + " |"
    yield ""


def of_measured(rows: list[Row]) -> Iterator[str]:
    cells = []
    for row in rows:
        wire = "–" if None in row.on_sockets else f"{max(row.on_sockets):,}"
        equal = "yes" if row.apart <= 1 else f"**no**, {row.apart:.2g} bounds"
        counts = f"{max(row.scores):,}", f"{max(row.sent):,}", wire, "yes" if row.is_as_counted else "**no**"
        cells.append([row.world, row.scheme, f"{row.text}, {row.mask}", row.order, row.method, equal, *counts])
    heads = "processes, scheme, text, order, method, equal, pairs, bytes sent, on sockets, as counted"
    yield from table(heads.split(", "), cells)


def of_counted(tokens: int, worlds: list[int]) -> Iterator[str]:
    a_key = BATCH * KV_HEADS * 2 * WIDTH * 2  # bytes
    rows = []
    for name, text in texts(tokens).items():
        for mask, (is_causal, window) in masks(tokens).items():
            visibility = Visibility(is_causal, *check_window(window))
            for order in ORDERS:
                found = []
                for world in worlds:
                    costs = works(text, world, order, is_causal=is_causal, window=window)
                    all_sent = [f"{sum(cost.sent) / a_key / tokens:.2f}" for cost in costs]
                    must = least(text, world, order, visibility) / tokens
                    found.append(f"{share(costs[1].scores):.2f}; {' '.join(all_sent)}; {must:.2f}")
                rows.append([name, mask, order, *found])
    yield from table(["text", "mask", "order", *(f"{world}" for world in worlds)], rows)


def of_scaling(tokens: int, worlds: list[int]) -> Iterator[str]:
    rows = []
    for kind in ("strong", "weak"):
        for order in ("contiguous", "zigzag"):
            for mask, (is_causal, window) in list(masks(tokens).items())[:2]:
                found = []
                for world in worlds:
                    text = Positions.arange(tokens if kind == "strong" else tokens // max(worlds) * world)
                    (cost,) = works(text, world, order, ("ring",), is_causal=is_causal, window=window)
                    found.append(f"{max(cost.scores) / HEADS:,.0f} / {max(cost.sent):,}")
                rows.append([kind, mask, order, *found])
    yield from table(["scaling", "mask", "order", *(f"{world}" for world in worlds)], rows)


def page(rows: list[Row], options: argparse.Namespace) -> Iterator[str]:
    is_cuda = torch.cuda.device_count() >= max(options.worlds)
    yield "# Attention over several processes"
    yield ""
    yield f"posenc {posenc.__version__}, torch {torch.__version__}, Python {platform.python_version()},"
    device = torch.cuda.get_device_name() if is_cuda else f"{os.cpu_count()} CPUs"
    yield f"{platform.platform()}, {device}, {'NCCL' if is_cuda else 'gloo'}."
    yield ""
    yield "## Measured"
    yield ""
    yield f"{options.tokens} tokens, {HEADS} heads, {KV_HEADS} of keys, head_dim {WIDTH}, float32, both passes."
    yield "Pairs and bytes are of the busiest process. *As counted*: those of all processes equal the counts."
    yield ""
    yield from of_measured(rows)
    many, worlds = 8 * options.tokens, options.counted
    yield "## Counted"
    yield ""
    yield f"{many:,} tokens, forward. In each cell: the pairs of the busiest process over the mean; how many times the"
    yield "keys and values of the text gather, ring and ulysses (with enough heads) send; and how many must be sent."
    yield ""
    yield from of_counted(many, worlds)
    yield f"Pairs of a head and bytes sent, of the busiest process of a ring. Strong: {many:,} tokens in all. Weak: "
    yield f"{many // max(worlds):,} for each process."
    yield ""
    yield from of_scaling(many, worlds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tokens", type=int, default=256, help="of the measured calls; those counted have 8 times as many"
    )
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 4], help="numbers of processes to start")
    parser.add_argument("--counted", type=int, nargs="+", default=[1, 2, 4, 8], help="numbers of processes to count")
    parser.add_argument("--small", action="store_true", help="fewer calls")
    parser.add_argument("--out", type=Path, default=Path("runs/scale/scale.md"))
    options = parser.parse_args()
    rows = [row for world in options.worlds for row in measured(world, options.tokens, options.small)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("\n".join(page(rows, options)) + "\n", encoding="utf-8")
    wrong = [row for row in rows if row.apart > 1 or not row.is_as_counted]
    for row in wrong:
        print(f"wrong: {row}", file=sys.stderr)
    print(f"{options.out}: {len(rows)} calls of {options.worlds} processes, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
