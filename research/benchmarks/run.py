"""Times posenc beside other libraries and other ways to the same attention, in interleaved rounds: ``make bench``.

python -m research.benchmarks.run --only peers,rope --out runs/bench
"""

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

import posenc
from posenc.backends.native.backend import NATIVE
from posenc.backends.native.build import cores
from posenc.command.files import write_whole
from posenc.encoding.encoding import Encoding
from posenc.positions.positions import Positions
from posenc.scheme import Scheme
from posenc_lab.bench import cases
from posenc_lab.bench.measure import Inputs, Make, Work, race
from posenc_lab.bench.run import kernel
from posenc_lab.bench.settings import AUTO, DTYPES, Settings
from posenc_lab.bench.tables import Table, busy, environment, number, printed
from posenc_lab.kit import style
from posenc_lab.kit.command import List, names, stdout
from posenc_lab.kit.configuration import option
from posenc_lab.kit.machine import clock_of, device_of, machine, versions
from posenc_lab.kit.report import as_markdown
from posenc_lab.kit.titles import titled
from research.benchmarks import limit, peers, pictures
from research.benchmarks.neighbours import neighbours
from research.benchmarks.tables import limit_of, tables

SECTIONS = {
    "rope": "rotating queries and keys, relative to cloning them; attention with RoPE, relative to that without",
    "busy": "slowdown when other processes keep every core busy",
    "peers": "ALiBi, T5 and Shaw's keys, compared with masks, FlexAttention and x-transformers",
    "decode": "decoding one token with a cache, relative to the same without positions",
}
CLONE = "clone"  # of queries and keys
PEER_SCHEMES = ("alibi", "t5", cases.SHAW_KEYS)


@dataclass(frozen=True)
class PeerSettings(Settings):
    """What is measured, and how long."""

    compiled: bool = option(True)  # includes competitors that need torch.compile
    rotated: tuple[int, ...] = option((4, 16, 2048, 64))
    rotated_dtypes: tuple[str, ...] = option(("float32", "bfloat16"))
    rotated_lengths: tuple[int, ...] = option((128, 1024, 4096))
    busy_lengths: tuple[int, ...] = option((1024, 4096))
    products: tuple[int, ...] = option((512, 1024, 2048))  # sizes of the square matrix products that measure the limit
    peer_lengths: tuple[int, ...] = option((2048, 4096))
    cache: int = option(16384)


QUICK: dict[str, Any] = {
    "rounds": 3,
    "budget": 1.0,
    "compiled": False,
    "peer_lengths": (1024,),
    "rotated_lengths": (128, 1024),
    "busy_lengths": (1024,),
}


class Group(NamedTuple):
    """One interleaved run; ``busy``: while other processes keep every core busy."""

    kind: str
    scheme: str
    length: int
    build: Callable[[], cases.Built]
    busy: bool = False


class Way(NamedTuple):
    """A scheme in attention. Positions are bound in every call or, with ``once``, before all calls, as a model does for
    all its layers. ``once`` needs a scheme without parameters, since autograd frees a graph after one backward pass."""

    scheme: str
    backend: str = AUTO
    once: bool = False


ROTATED: Mapping[str, Way] = {
    "NoPE": Way("nope", once=True),
    "RoPE": Way("rope", once=True),
    "RoPE, bound in the call": Way("rope"),
    "RoPE, interleaved": Way(cases.INTERLEAVED, once=True),
    "RoPE, partial": Way(cases.PARTIAL, once=True),
    "RoPE + ALiBi": Way("rope+alibi", once=True),
    "NoPE by native": Way("nope", "native", once=True),
    "RoPE by native": Way("rope", "native", once=True),
    "RoPE by sdpa": Way("rope", "sdpa", once=True),
}
DISTURBED: Mapping[str, Way] = {
    "RoPE": Way("rope", once=True),
    "RoPE, bound in the call": Way("rope"),
    **{titled(name): Way(name) for name in ("alibi", "t5", "shaw")},
}


def main(words: Sequence[str] | None = None) -> int:
    """Exit codes 0: done; 2: wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m research.benchmarks.run",
        description="Times posenc beside other libraries.",
        epilog="Sections: " + "; ".join(f"{name}: {about}" for name, about in SECTIONS.items()) + ".",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), metavar="DIR", help="default: runs/bench")
    parser.add_argument("--only", nargs="+", type=names, action=List, default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--schemes", nargs="+", type=names, action=List, default=[], help="of decode (default: all)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1")
    parser.add_argument("--quick", action="store_true", help="fewer lengths and rounds, no compilation: minutes")
    arguments = parser.parse_args(words)
    if unknown := [name for name in arguments.only if name not in SECTIONS]:
        parser.error(f"--only must name {', '.join(SECTIONS)}, got {unknown[0]!r}")
    try:
        device_of(arguments.device)
        for name in arguments.schemes:
            cases.entries(name)
    except ValueError as error:
        parser.error(str(error))
    given = {"dtype": arguments.dtype, "device": arguments.device, "schemes": tuple(arguments.schemes)}
    run(PeerSettings(**given, **(QUICK if arguments.quick else {})), arguments.only, arguments.out)
    return 0


def run(sizes: PeerSettings, only: Sequence[str], out: Path) -> list[dict[str, Any]]:
    """Measures the sections, prints their tables, and writes ``bench.md``, ``bench.json`` and ``peers.png``, after each
    group, so that what is measured is kept."""
    device, console = torch.device(sizes.device), stdout()
    about = {
        "settings": {name: value for name, value in vars(sizes).items() if name != "mine"},
        "versions": versions() | peers.versions(),
        "machine": machine(device),
        "kernel": kernel(),
    }
    records: list[dict[str, Any]] = []
    for group in groups(sizes, only):
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()  # compilation for one length must not influence the next
        print(f"{group.kind}, {group.scheme}, {group.length:,}", file=sys.stderr, flush=True)
        built = group.build()
        seed = f"{group.kind}, {group.scheme}, {group.length}"  # each group has orders of its own
        with neighbours(cores()) if group.busy else nullcontext():
            timed = race(built.makes, rounds=sizes.rounds, budget=sizes.budget, clock=clock_of(device), seed=seed)
        if group.busy:
            timed["others"] = None  # other processes cannot be told from the neighbours
        named = {"kind": group.kind, "scheme": group.scheme, "length": group.length}
        records.append({**named, **built.facts, **timed, **about})
        write(records, out)
    printed([environment_of(records), *tables(records)], console)
    console.print(f"Results: {out / 'bench.md'}", highlight=False, soft_wrap=True)
    return records


def write(records: Sequence[Mapping[str, Any]], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "bench.json", (json.dumps(list(records), indent=1) + "\n").encode())
    parts = ["# Beside posenc\n", *([f"**{busy(records)}**\n"] if busy(records) else [])]
    parts += map(as_markdown, [environment_of(records), *tables(records)])
    write_whole(out / "bench.md", "\n".join(parts).encode())
    for dark in (False, True):
        if figure := pictures.peers(records, dark):
            write_whole(out / f"peers{'-dark' if dark else ''}.png", style.saved(figure, dark=dark))


def environment_of(records: Sequence[Mapping[str, Any]]) -> Table:
    rows = [("rotated tensors", " × ".join(map(str, records[0]["settings"]["rotated"])))]
    if peak := limit_of(records):
        rows.append(("the peak", f"{number(peak * 1e-9)} × 10⁹ multiply-adds a second"))
    return Table("Environment", "", ("what", "with"), [*environment(records), *rows])


def groups(sizes: PeerSettings, only: Sequence[str]) -> Iterator[Group]:
    """The groups of the chosen sections."""
    phases = cases.PHASES
    if "rope" in only:
        # Matrix products, of which the fastest gives the processor's maximum of multiply-adds per second.
        yield Group("limit", sizes.dtype, max(sizes.products), partial(_products, sizes))
        for dtype in sizes.rotated_dtypes:
            yield Group(f"rope {dtype}", "rope", sizes.rotated[2], partial(_rotations, sizes, dtype))
        for length, phase in itertools.product(sizes.rotated_lengths, phases):
            build = partial(of_ways, sizes, ROTATED, length, phase == "training")
            yield Group(f"rotated {phase}", "rope", length, build)
    if "busy" in only:
        for length, phase, is_busy in itertools.product(sizes.busy_lengths, phases, (False, True)):
            build = partial(of_ways, sizes, DISTURBED, length, phase == "training")
            yield Group(f"{'busy' if is_busy else 'quiet'} {phase}", "several", length, build, is_busy)
    if "decode" in only:
        for scheme in sizes.schemes or cases.all_schemes():
            yield Group("decode", scheme, sizes.cache, partial(decoded, sizes, scheme))
    if "peers" in only:
        for length, phase, scheme in itertools.product(sizes.peer_lengths, phases, PEER_SCHEMES):
            build = partial(compared, sizes, scheme, length, phase == "training")
            yield Group(f"peers {phase}", scheme, length, build)


def _products(sizes: PeerSettings) -> cases.Built:
    makes, work = limit.products(sizes.dtype, sizes.device, sizes.products)
    return cases.Built(makes, {"multiply_adds": work})


def _rotations(sizes: PeerSettings, dtype: str) -> cases.Built:
    device = torch.device(sizes.device)
    generator = torch.Generator(device).manual_seed(0)
    drawn = torch.randn(2, *sizes.rotated, generator=generator, device=device)
    query, key = drawn.to(getattr(torch, dtype))
    scheme = posenc.RoPE(sizes.rotated[3])
    positions = Positions.arange(sizes.rotated[2], device=device)
    encoding = scheme.tokens(positions)
    held = torch.empty_like(query), torch.empty_like(key)

    def ready(work: Work) -> Make:
        return lambda: work

    # A copy into existing memory shows the memory bandwidth; a clone also allocates.
    makes: dict[str, Make] = {
        CLONE: ready(lambda: (query.clone(), key.clone())),
        "copy into place": ready(lambda: (held[0].copy_(query), held[1].copy_(key))),
        "posenc": ready(lambda: encoding.rotate(query, key)),
        "posenc, bound in the call": ready(lambda: scheme.tokens(positions).rotate(query, key)),
    }
    makes |= peers.rotations(query, key)
    if sizes.compiled:
        makes["posenc, compiled"] = lambda: peers.compiled(encoding.rotate, query, key)
        makes["transformers, compiled"] = lambda: peers.transformers_rotation(query, key, compile=True)
    return cases.Built(makes, {"bytes": 2 * (query.nbytes + key.nbytes)})  # read and written


def of_ways(sizes: PeerSettings, ways: Mapping[str, Way], length: int, training: bool) -> cases.Built:
    """Plain attention and these competitors; ``takes`` has the backend of each."""
    inputs = Inputs.draw(sizes, length, length, training)
    makes: dict[str, Make] = {cases.PLAIN: inputs.plain}
    takes: dict[str, str] = {}
    work = {cases.PLAIN: limit.multiply_adds(None, inputs.query, training)}
    for name, (scheme_name, backend, once) in ways.items():
        scheme = cases.build_scheme(scheme_name, sizes, length)
        found = cases.explained(scheme, scheme_name, inputs)
        takes[name] = found.backend if backend == AUTO else backend
        if takes[name] == NATIVE.name:
            work[name] = _multiply_adds(scheme, scheme_name, inputs, found.computed)
        makes[name] = partial(cases.attention_work, sizes, scheme_name, length, inputs, backend, once)
    return cases.Built(makes, {"takes": takes, "multiply_adds": work})


def _multiply_adds(scheme: Scheme, name: str, inputs: Inputs, computed: float) -> int:
    """The multiply-adds of the call, given the share of the visible pairs that is computed."""
    query, encoding = cases.bound(scheme, name, inputs.query, cases.projected_by_a_layer(scheme, inputs.query))
    return limit.multiply_adds(encoding, query, inputs.training, computed)


def compared(sizes: PeerSettings, name: str, length: int, training: bool) -> cases.Built:
    """Plain attention, posenc's, masks, FlexAttention, x-transformers."""
    inputs = Inputs.draw(sizes, length, length, training)
    scheme = cases.build_scheme(name, sizes, length)
    auto = cases.explained(scheme, name, inputs).backend
    rivals = peers.attentions(scheme, inputs)
    if not sizes.compiled:
        rivals = {rival: make for rival, make in rivals.items() if rival != peers.FLEX}
    ours: Make = partial(cases.attention_work, sizes, name, length, inputs, AUTO)
    return cases.Built({cases.PLAIN: inputs.plain, "posenc": ours, **rivals}, {"auto": auto})


def decoded(sizes: PeerSettings, name: str) -> cases.Built:
    """Attention of one query to a cache, with and without positions. Keys in the cache are rotated already, unless the
    scheme needs raw keys."""
    inputs = Inputs.draw(sizes, 1, sizes.cache, training=False)
    query, key, value = inputs.query, inputs.key, inputs.value
    dtype = torch.promote_types(query.dtype, torch.float32)
    scheme = cases.build_scheme(name, sizes, sizes.cache)
    known = cases.positions_of(name, sizes.cache, query.device)
    last = known[-1:]
    projected = cases.projected_by_a_layer(scheme, key)
    features = scheme(known, doors=("score",)).with_projected(projected)  # a cache keeps those of keys
    of_query = {name: x[:, :, -1:] for name, x in features.query_features.items()}

    raw = scheme.needs_raw_keys
    keys, values = key, value
    if not raw:
        kept = scheme.tokens(known, dtype=dtype).with_features(features.key_features)
        with torch.no_grad():
            keys, values = kept.rotate_key(key), kept.rotate_value(value)

    def bound() -> Encoding:
        doors = ("rotate", "score", "value") if raw else ("score", "value")
        made = scheme(last, known, dtype=dtype, doors=doors)
        return made.with_features(of_query, features.key_features) if made.wanted else made

    def attend() -> Tensor:
        token = scheme.tokens(last, dtype=dtype).with_features(of_query)
        mine = token.add(query.view(1, 1, -1)).view(query.shape) if token.tables else query
        if not raw:
            # The query also stands for the new token's key and value.
            mine, _, _ = token.rotate_query(mine), token.rotate_key(query), token.rotate_value(query)
        out = posenc.attention(mine, keys, values, bound(), is_causal=True)
        assert isinstance(out, Tensor)
        return out if raw else token.rotate_output(out)

    makes: dict[str, Make] = {
        cases.PLAIN: lambda: inputs.work(lambda: F.scaled_dot_product_attention(query, key, value)),
        "posenc": lambda: inputs.work(attend),
    }
    with torch.no_grad():
        wide = query if raw else scheme.tokens(last, dtype=dtype).with_features(of_query).rotate_query(query)
        auto = posenc.explain(wide, keys, values, bound(), is_causal=True).backend
    return cases.Built(makes, {"auto": auto})


if __name__ == "__main__":
    sys.exit(main())
