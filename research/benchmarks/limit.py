"""Computes the share of the processor's peak: the multiply-adds of attention, and the measured maximum per second."""

from functools import partial

import torch
from torch import Tensor

from posenc.encoding.claims import coordinates
from posenc.encoding.encoding import Encoding
from posenc.encoding.terms import Distance, RelativeDot, Value
from posenc.positions.positions import Positions
from posenc_lab.bench.measure import Make, Work

# Products over the channels of a head, in a forward pass and in a training step. For a pair of tokens: its score and
# its part of the output; in the backward pass the score again, and the gradients of weight, value, query and key.
PAIR = (2, 7)
# For a query and a vector of a distance in its score: the product, the same again, and the gradients of both.
MEETING = (1, 4)
# For a vector of a distance in the output: the product, and the gradients of the weight and of the vector.
VALUE = (1, 3)

# The precisions that may compute a dtype: half precision is widened if the processor does not multiply it.
MULTIPLIED = {"bfloat16": ("bfloat16", "float32"), "float16": ("float32",)}


def multiply_adds(encoding: Encoding | None, query: Tensor, training: bool, computed: float = 1.0) -> int:
    """The multiply-adds of causal self-attention with queries (batch, heads, tokens, head_dim), with an encoding or
    None. ``computed`` is the share of the visible pairs that is computed. Work per token, such as its rotation, is not
    counted."""
    batch, heads, tokens, dim = query.shape
    pairs = computed * tokens * (tokens + 1) / 2
    found = pairs * dim * PAIR[training]
    if encoding is None:
        return round(batch * heads * found)
    for term in (*encoding.score_terms, *encoding.values):
        if isinstance(term, RelativeDot):
            width = dim if term.feature is None else encoding.query_features[term.feature].size(-1)
            each = width * MEETING[training]
        elif isinstance(term, Value):
            each = dim * VALUE[training]
        else:
            continue
        found += each * _distances(term.distance, encoding.key_positions)
    return round(batch * heads * found)


def _distances(distance: Distance, positions: Positions) -> int:
    """The number of distinct table entries among the distances to all keys up to a query, summed over queries."""
    coords = coordinates(distance, positions)[0]
    most = distance.past + 1 if distance.tail == "constant" else len(coords)
    known, found = set(), 0
    for place in coords.reshape(len(coords), -1).tolist():
        known.add(tuple(place))
        found += min(len(known), most)
    return found


def products(dtype: str, device: str, sizes: tuple[int, ...]) -> tuple[dict[str, Make], dict[str, int]]:
    """PyTorch's products of square matrices in each precision that may compute ``dtype``, and their multiply-adds."""
    makes: dict[str, Make] = {}
    work = {}
    for precision in MULTIPLIED.get(dtype, (dtype,)):
        for size in sizes:
            name = f"{precision}, {size:,} × {size:,}"
            makes[name] = partial(_product, precision, torch.device(device), size)
            work[name] = size**3
    return makes, work


def _product(precision: str, device: torch.device, size: int) -> Work:
    generator = torch.Generator(device).manual_seed(0)
    a, b = torch.randn(2, size, size, generator=generator, device=device).to(getattr(torch, precision))
    out = torch.empty_like(a)
    return lambda: (torch.mm(a, b, out=out),)
