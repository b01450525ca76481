"""rope_type="dynamic" of keras-hub slows all frequencies by as much, more than linear scaling does."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import keras_hub
import torch

DIM, FACTOR = 16, 4.0


def frequencies(**options):
    """Read off a rotation: (1, 0) at position 1 becomes (cos θ, sin θ)."""
    x = torch.zeros(1, 2, DIM)
    x[..., : DIM // 2] = 1
    turned = keras_hub.layers.RotaryEmbedding(**options)(x)[0, 1]
    return torch.atan2(turned[DIM // 2 :], turned[: DIM // 2])


plain = frequencies()
came = frequencies(rope_type="dynamic", scaling_factor=FACTOR) / plain
expected = FACTOR ** (-2 * torch.arange(DIM // 2) / (DIM - 2))  # of the base times factor^(dim / (dim - 2))

print(f"keras-hub {keras_hub.__version__}, keras {keras.__version__}, torch {torch.__version__}")
print(f"expected: the fastest frequency as it is, the slowest divided by {FACTOR:g}: {expected[[0, -1]].tolist()}")
print(f"came:     {came[[0, -1]].tolist()}")
raise SystemExit(float((came - expected).abs().max()) > 1e-3)
