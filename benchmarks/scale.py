"""What each process computes and sends when a text is divided: no process is started, since positions say it.

    python benchmarks/scale.py

For each order and mask: the pairs of the busiest process over the mean (1 is even), and the keys that a ring sends
over those that gathering sends. tests/distributed counts the bytes of real processes and finds the same.
"""

import argparse

from posenc import Positions
from posenc.distributed import Needs
from posenc.positions.orders import ORDERS, indices
from posenc.positions.tiles import Visibility

MASKS = {"causal": (True, None), "causal, window 1,024": (True, 1023), "bidirectional": (False, None)}


def texts(tokens: int) -> dict[str, Positions]:
    eighth = tokens // 8
    return {
        "one text": Positions.arange(tokens),
        "packed": Positions.packed([3 * eighth, eighth, eighth, eighth, eighth // 2, eighth // 2, eighth]),
    }


def shares(text: Positions, order: str, world: int, visibility: Visibility) -> tuple[float, float]:
    """The pairs of the busiest process over the mean, and the keys sent in a ring over those sent by gathering."""
    shards = [text[index] for index in indices(text.layout, world, order)]
    needs = Needs(shards, visibility)
    pairs = [sum(needs.pairs(i, j) for j in range(world)) for i in range(world)]
    keys = [needs.keys(i, j) for i in range(world) for j in range(world) if i != j]
    sent = sum(part.stop - part.start for part in keys if part is not None)
    return max(pairs) / (sum(pairs) / world), sent / ((world - 1) * len(text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 4, 8])
    options = parser.parse_args()
    print(f"{options.tokens} tokens; busiest process / sent")
    print("| text | mask | order | " + " | ".join(f"{world} processes" for world in options.worlds) + " |")
    print("|---|---|---|" + "---|" * len(options.worlds))
    for name, text in texts(options.tokens).items():
        for mask, (is_causal, left) in MASKS.items():
            for order in ORDERS:
                found = [shares(text, order, world, Visibility(is_causal, left)) for world in options.worlds]
                cells = " | ".join(f"{busiest:.2f} / {sent:.0%}" for busiest, sent in found)
                print(f"| {name} | {mask} | {order} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
