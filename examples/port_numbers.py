"""Is a port right about positions? Compares its rotation with what ``posenc read MODEL --golden FILE.json`` wrote.

It needs NumPy alone: copy it beside a port, and put the port's function in place of `rotate`.

Run: python examples/port_numbers.py golden.json
"""

import json
import sys

import numpy as np


def rotate(x, positions):
    """The port: here RoPE of base 10,000 on all channels, in the half layout. x is (tokens, channels)."""
    half = x.shape[1] // 2
    angle = positions[:, None] * 10_000.0 ** (-np.arange(half) / half)
    a, b = x[:, :half], x[:, half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], axis=1)


def main(path):
    with open(path) as file:
        kinds = json.load(file)["kinds"]
    for kind in kinds:
        positions = np.array(kind.get("positions", []))
        bound = positions.reshape(len(positions), -1).max(-1, initial=0) * 2.0**-22 + 2.0**-20  # of float32's phases
        for side in ("query", "key") if len(positions) else ():
            before, after = np.array(kind[f"{side}_before"]), np.array(kind[f"{side}_after"])
            off = np.abs(rotate(before, positions) - after).max(1) / np.linalg.norm(after, axis=1)
            print(f"layers {kind['layers']}, {side}: {'equal' if (off <= bound).all() else f'off by {off.max():.2g}'}")


if __name__ == "__main__":
    main(sys.argv[1])
