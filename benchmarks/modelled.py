"""Times of attention over several H100 GPUs: modelled, not measured.

    python benchmarks/modelled.py --out runs/scale/modelled.md

From the counts of `posenc.distributed.cost`, which benchmarks/scale.py compares with what processes do, and the
constants of `cost.H100`; and what the model says of published measurements. Nothing is run.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from posenc import Positions
from posenc.distributed.cost import H100, Machine, Price, Sample, Sizes, price
from posenc.positions.orders import indices
from posenc.positions.tiles import Visibility

METHODS = ("gather", "ring", "ulysses", "ring × ulysses")
LLAMA_3_8B, LLAMA_2_7B = (Sizes(1, 32, kv_heads, 128, 128) for kv_heads in (8, 32))


def prices(
    tokens: int, world: int, sizes: Sizes = LLAMA_3_8B, *, order: str = "zigzag", machine: Machine = H100
) -> dict[str, Price]:
    """Of a causal text, estimated from a sample of its tokens."""
    text = Positions.arange(tokens)
    counts = [len(index) for index in indices(text.layout, world, order)]
    groups = {"gather": world, "ring": world, "ring × ulysses": max(world // 8, 1)} | (
        {"ulysses": 1} if world <= 8 else {}
    )
    found = {}
    for name, number in groups.items():
        sample = Sample(text, indices(text.layout, number, order), Visibility(True))
        found[name] = price(sample, counts, sizes, name.split()[0], machine)
    return found


def published() -> Iterator[str]:
    """What the model says of published measurements."""
    yield "The model and published measurements:"
    yield ""
    h800 = Machine("H800", flops=325e12, link=200e9, network=50e9, per_node=8, memory=80e9)
    for order, found in (("contiguous", 52), ("zigzag", 85)):
        ring = prices(65536, 8, replace(LLAMA_3_8B, trains=False), order=order, machine=h800)["ring"]
        ideal = 2 * 256 * sum(ring.scores) / 8 / h800.flops
        yield "- [ring-flash-attention](https://github.com/zhuzilin/ring-flash-attention), 8 × H800, forward,"
        yield f"  {order} order: {ideal / ring.seconds:.0%} of ideal by the model, {found}% published."
    # What all-gather reached as the rate of all products; a link of ICI carries 90 GB/s in one direction.
    v5p = Machine("TPU v5p", flops=243e12, link=90e9, network=90e9, per_node=16, memory=95e9)
    ring = prices(32768, 16, replace(LLAMA_2_7B, trains=False), order="contiguous", machine=v5p)["ring"]
    ideal = 2 * 256 * sum(ring.scores) / 16 / v5p.flops
    linear = 2 * 202e6 * 2048 / v5p.flops  # of the weights of a layer, for 2,048 tokens
    rest = 6 / 2 * linear
    slower = (rest + 3.5 * ideal) / (rest + 3.5 * ring.seconds)
    yield "- [maxtext](https://github.com/AI-Hypercomputer/maxtext/pull/4687), Llama 2 7B, 16 × TPU v5p, 32k: a ring in"
    yield f"  contiguous order reaches {slower:.0%} of the rate of all-gather by the model, {131 / 243:.0%} published."
    yield ""


def time(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms" if seconds > 0.1 else f"{seconds * 1e3:.1f} ms"


def of_modelled() -> Iterator[str]:
    for trains in (False, True):
        rows = []
        for tokens in (2**17, 2**18, 2**19, 2**20):
            for world in (8, 16, 32, 64):
                found = prices(tokens, world, replace(LLAMA_3_8B, trains=trains))
                ideal = 2 * 256 * sum(found["gather"].scores) / world / H100.flops * (3.5 if trains else 1)
                cells = [
                    f"{time(found[name].seconds)}, {max(found[name].held) / 1e9:.2g} GB" if name in found else "–"
                    for name in METHODS
                ]
                rows.append([f"{tokens // 1024}k", str(world), time(ideal), *cells])
        yield f"{'Forward and backward' if trains else 'Forward'} pass of one layer:"
        yield ""
        yield "| tokens | GPUs | ideal | " + " | ".join(METHODS) + " |"
        yield "|---|---|---|" + "---|" * len(METHODS)
        yield from ("| " + " | ".join(row) + " |" for row in rows)
        yield ""


def page() -> Iterator[str]:
    yield "# Modelled, not measured"
    yield ""
    yield f"{H100.name}: {H100.flops / 1e12:.0f} TFLOP/s in attention, {H100.link / 1e9:.0f} GB/s to devices of the"
    yield f"node and {H100.network / 1e9:.0f} GB/s to others. One causal text in zigzag order, heads as in Llama 3.1"
    yield "8B, bfloat16. GB: the keys and values of a layer that a GPU holds. *ideal*: pairs are divided evenly, and"
    yield "nothing is sent."
    yield ""
    yield from of_modelled()
    yield from published()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/scale/modelled.md"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("\n".join(page()), encoding="utf-8")
    print(options.out)


if __name__ == "__main__":
    main()
