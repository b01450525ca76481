"""What each process computes and sends when a text is divided: no process is started, since positions say it.

    python benchmarks/scale.py

For each order and mask: the pairs of the busiest process over the mean (1 is even), and the bytes that a ring sends
over those that gathering sends. tests/distributed counts the bytes of real processes and finds the same.
"""

import argparse

from posenc import Positions
from posenc.distributed import work
from posenc.positions.orders import ORDERS

MASKS = {"causal": (True, None), "causal, window 1,024": (True, 1024), "bidirectional": (False, None)}


def texts(tokens: int) -> dict[str, Positions]:
    eighth = tokens // 8
    return {
        "one text": Positions.arange(tokens),
        "packed": Positions.packed([3 * eighth, eighth, eighth, eighth, eighth // 2, eighth // 2, eighth]),
    }


def shares(text: Positions, order: str, world: int, is_causal: bool, window: int | None) -> tuple[float, float]:
    """The pairs of the busiest process over the mean, and the bytes sent in a ring over those sent by gathering."""
    how = {"num_heads": 1, "head_dim": 64, "is_causal": is_causal, "window": window}
    ring, gather = (work(text, world, order, method=method, **how) for method in ("ring", "gather"))
    pairs = [each.pairs for each in ring]
    return max(pairs) / (sum(pairs) / world), sum(each.sent for each in ring) / sum(each.sent for each in gather)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 4, 8])
    options = parser.parse_args()
    print(f"{options.tokens} tokens; busiest process / sent")
    print("| text | mask | order | " + " | ".join(f"{world} processes" for world in options.worlds) + " |")
    print("|---|---|---|" + "---|" * len(options.worlds))
    for name, text in texts(options.tokens).items():
        for mask, (is_causal, window) in MASKS.items():
            for order in ORDERS:
                found = [shares(text, order, world, is_causal, window) for world in options.worlds]
                cells = " | ".join(f"{busiest:.2f} / {sent:.0%}" for busiest, sent in found)
                print(f"| {name} | {mask} | {order} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
