"""What is timed: plain attention by several kernels, and schemes by several backends."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import posenc
from posenc import ALiBi, Positions, RoPE, Scheme, Shaw
from posenc.schemes.catalog import scheme_from_names
from posenc.schemes.entry import Shape
from posenc.tools.bench.gpu.place import ROTATION, Place
from posenc.tools.bench.gpu.step import Result
from posenc.tools.bench.measure import Inputs, LeftOutError, Work

FLASH = "flash"
AGAIN = "flash, again"
CUDNN = "cuDNN"
ANY = "plain"  # the kernel that PyTorch takes
PLAIN = "nothing added, triton"
MADE_BEFORE = ", sdpa, bias made before"
COPY = "copy"
LABELS = {"nothing added": "nope", "learned t5": "t5"}
ROWS = 1024  # of a bias, made at once

# Of heads and head_dim; others are the catalog's.
SCHEMES: dict[str, Callable[[int, int], Scheme]] = {
    "alibi, bidirectional": lambda heads, head_dim: ALiBi(heads, "bidirectional"),
    "shaw": lambda heads, head_dim: Shaw(head_dim, 64),
}


def scheme_of(place: Place, name: str, heads: int, head_dim: int, kv_heads: int | None = None) -> Scheme:
    """The scheme with fixed random parameters, in single precision; their numbers are bfloat16's too."""
    if name in SCHEMES:
        scheme = SCHEMES[name](heads, head_dim)
    else:
        shape = Shape(heads * head_dim, heads, head_dim, max_positions=place.sizes.real, num_kv_heads=kv_heads)
        scheme = scheme_from_names(name, shape)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in scheme.parameters():
            drawn = torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5
            parameter.copy_(drawn.bfloat16())
    return scheme.to(place.device)


def split(name: str) -> tuple[int, str, str]:
    """The length, the phase and the way of what is timed."""
    length, phase, way = name.split(" ", 2)
    return int(length), phase, way


def call_of(place: Place, name: str) -> tuple[Work, Result]:
    """What is timed under a name, and what its line says beside the times."""
    length, phase, way = split(name)
    if phase == ROTATION:
        return _rotating(place, way, length)
    inputs = place.inputs(length, phase)
    if way in (FLASH, AGAIN, CUDNN, ANY):
        return _pytorch(place, way, inputs), {}
    label, _, backend = way.partition(", ")
    scheme = LABELS.get(label, label)
    if f", {backend}" == MADE_BEFORE:
        return _made_before(place, scheme, inputs), {}
    return _posenc(place, scheme, backend, inputs)


def _posenc(place: Place, name: str, backend: str, inputs: Inputs) -> tuple[Work, Result]:
    """A scheme by a backend; and what "auto" takes. Positions are bound in the call, and those of a step of decoding
    before, as for each layer after a model's first."""
    query, key, value = inputs.query, inputs.key, inputs.value
    scheme = scheme_of(place, name, query.size(1), query.size(3))
    encoding: Any = scheme
    if query.size(2) < key.size(2):
        i = Positions.arange(query.size(2), start=key.size(2) - query.size(2), device=place.device)
        encoding = scheme(i, Positions.arange(key.size(2), device=place.device), dtype=torch.float32)
    with torch.set_grad_enabled(inputs.training):
        told = posenc.explain(query, key, value, encoding, is_causal=True)
    if backend in told.refusals:
        raise LeftOutError(told.refusals[backend])

    def attend() -> Tensor:
        out = posenc.attention(query, key, value, encoding, is_causal=True, backend=backend)
        assert isinstance(out, Tensor)
        return out

    return inputs.work(attend, tuple(scheme.parameters())), {"auto": told.backend}


def _made_before(place: Place, name: str, inputs: Inputs) -> Work:
    """PyTorch's attention with a bias of all pairs, made before in the precision of the queries; in training also its
    gradient, if the scheme learns. Making the bias, and the gradient of the scheme's own tables, come on top."""
    (_, heads, queries, width), keys = inputs.query.shape, inputs.key.size(2)
    scheme = scheme_of(place, name, heads, width)
    row = inputs.key.new_zeros(1, heads, keys, width)
    parts = []
    with torch.no_grad():
        for begin in range(keys - queries, keys, ROWS):  # all at once take several times the memory
            rows = min(ROWS, keys - begin)
            i, j = Positions.arange(rows, start=begin, device=place.device), Positions.arange(keys, device=place.device)
            part = posenc.logits(row[:, :, :rows], row, scheme, query_positions=i, key_positions=j, is_causal=True)
            future = torch.ones_like(part[0, 0], dtype=torch.bool).triu(begin + 1)
            parts.append(part.masked_fill_(future, -torch.inf).to(row.dtype))
    bias = torch.cat(parts, 2)
    learned = (bias.requires_grad_(),) if inputs.training and list(scheme.parameters()) else ()
    return _pytorch(place, ANY, inputs, bias, learned)


def _pytorch(
    place: Place, way: str, inputs: Inputs, mask: Tensor | None = None, learned: tuple[Tensor, ...] = ()
) -> Work:
    """PyTorch's attention, by one of its kernels or by that which it takes."""
    query, key, value = inputs.query, inputs.key, inputs.value
    how: dict[str, Any] = {"attn_mask": mask, "enable_gqa": query.size(1) != key.size(1)}
    how["is_causal"] = mask is None and query.size(2) == key.size(2)
    work = inputs.work(lambda: F.scaled_dot_product_attention(query, key, value, **how), learned)
    if way == ANY:
        return work
    if way == CUDNN and place.is_dry:
        raise LeftOutError("the CPU has no cuDNN")

    def by_kernel() -> tuple[Tensor, ...]:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION if way == CUDNN else SDPBackend.FLASH_ATTENTION):
            return work()

    return by_kernel


def _rotating(place: Place, way: str, tokens: int) -> tuple[Work, Result]:
    """Queries and keys turned, or copied into place; and the bytes that are read and written."""
    (batch, heads), head_dim = place.sizes.rotated, place.sizes.head_dim
    # In the layout that a projection gives.
    query, key = (place.drawn(batch, tokens, heads, head_dim, seed=seed).transpose(1, 2) for seed in (0, 1))
    held = torch.empty_like(query), torch.empty_like(key)
    encoding = RoPE(head_dim).to(place.device).tokens(Positions.arange(tokens, device=place.device))

    def work() -> tuple[Tensor, ...]:
        with torch.no_grad():
            if way == COPY:
                return held[0].copy_(query), held[1].copy_(key)
            return encoding.rotate(query, key)

    return work, {"bytes": 2 * (query.nbytes + key.nbytes)}
