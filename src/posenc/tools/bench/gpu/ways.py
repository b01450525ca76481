"""What is timed: plain attention by several kernels, and schemes by several backends."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import posenc
from posenc import FIRE, ALiBi, NoPE, Positions, RoPE, Scheme, Shaw, TransformerXL, compat
from posenc.backends.triton import launch
from posenc.schemes.catalog import scheme_from_names
from posenc.schemes.entry import Shape
from posenc.schemes.t5 import T5
from posenc.tools.bench.gpu.place import Place
from posenc.tools.bench.measure import Inputs, LeftOutError, Work

FLASH = "flash"
AGAIN = "flash, again"
CUDNN = "cuDNN"
FLEX_STATIC, FLEX_DYNAMIC = "flex, static", "flex, dynamic"
PLAIN = "nothing added, triton"
SIZES_OF, NEAR_OF = launch.sizes_of, launch.near_of
COMPILATIONS = 256  # of one function, at most
BUCKETS, FARTHEST, CLIP = 32, 128, 64

# Of heads and head_dim; others are the catalog's.
SCHEMES: dict[str, Callable[[int, int], Scheme]] = {
    "nope": lambda heads, head_dim: NoPE(),
    "alibi": lambda heads, head_dim: ALiBi(heads),
    "t5": lambda heads, head_dim: T5(heads, BUCKETS, FARTHEST),
    "shaw": lambda heads, head_dim: Shaw(head_dim, CLIP),
    "transformer_xl": lambda heads, head_dim: TransformerXL(heads, head_dim),
    "rope": lambda heads, head_dim: RoPE(head_dim),
    "fire": lambda heads, head_dim: FIRE(heads),
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


@contextmanager
def launched(**choices: Any) -> Iterator[None]:
    """Other sizes and stages of the kernels: `sizes_of` and `near_of` of their launch. AttributeError for another
    name."""
    if choices:
        choices = {**choices, "_FITTING": {}}  # what fits is another matter then
    before = {name: getattr(launch, name) for name in choices}
    for name, value in choices.items():
        setattr(launch, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(launch, name, value)


@dataclass(frozen=True)
class Way:
    """A scheme by a backend, and how its kernels are launched."""

    scheme: str
    backend: str
    launch: Callable[[], dict[str, Any]] = dict

    def work(self, place: Place, inputs: Inputs) -> Work:
        """The call, positions bound in it."""
        heads, head_dim = inputs.query.size(1), inputs.query.size(3)
        scheme = scheme_of(place, self.scheme, heads, head_dim)
        with torch.set_grad_enabled(inputs.training):
            told = posenc.explain(inputs.query, inputs.key, inputs.value, scheme, is_causal=True)
        if self.backend in told.refusals:
            raise LeftOutError(told.refusals[self.backend])

        def attend() -> Tensor:
            out = posenc.attention(inputs.query, inputs.key, inputs.value, scheme, is_causal=True, backend=self.backend)
            assert isinstance(out, Tensor)
            return out

        work = inputs.work(attend, tuple(scheme.parameters()))

        def all_of_it() -> tuple[Tensor, ...]:
            with launched(**self.launch()):
                return work()

        return all_of_it

    def auto(self, inputs: Inputs, place: Place) -> str:
        """What "auto" takes here."""
        scheme = scheme_of(place, self.scheme, inputs.query.size(1), inputs.query.size(3))
        with torch.set_grad_enabled(inputs.training):
            return posenc.explain(inputs.query, inputs.key, inputs.value, scheme, is_causal=True).backend


def far(count: int) -> Callable[[], dict[str, Any]]:
    """Far loops in so many stages, and the first of the sizes, whether or not it fits."""
    return lambda: {"sizes_of": lambda is_narrow: (SIZES_OF(is_narrow)[0]._replace(stages=count),)}


def near(count: int) -> Callable[[], dict[str, Any]]:
    """Kernels of squares in so many stages."""
    return lambda: {"near_of": lambda *how: {**NEAR_OF(*how), "num_stages": count}}


WAYS: dict[str, Way] = {
    PLAIN: Way("nope", "triton"),
    "alibi, sdpa with a mask": Way("alibi", "sdpa"),
    "alibi, flex": Way("alibi", "flex"),
    "alibi, triton": Way("alibi", "triton"),
    "learned t5, flex": Way("t5", "flex"),
    "learned t5, triton": Way("t5", "triton"),
    "learned t5, tiled": Way("t5", "tiled"),
    "shaw, triton": Way("shaw", "triton"),
    "shaw, tiled": Way("shaw", "tiled"),
    "transformer_xl, triton": Way("transformer_xl", "triton"),
    "rope, auto": Way("rope", "auto"),
    "nothing added, triton, 1 stage": Way("nope", "triton", far(1)),
    "nothing added, triton, 2 stages": Way("nope", "triton", far(2)),
    "shaw, triton, near in 2 stages": Way("shaw", "triton", near(2)),
}


def work_of(place: Place, name: str, inputs: Inputs) -> Work:
    """The call of a way of `WAYS` or of a kernel without schemes."""
    if name in WAYS:
        return WAYS[name].work(place, inputs)
    if name in (FLASH, AGAIN):
        return _by(SDPBackend.FLASH_ATTENTION, inputs)
    if name == CUDNN:
        if place.is_dry:
            raise LeftOutError("the CPU has no cuDNN")
        return _by(SDPBackend.CUDNN_ATTENTION, inputs)
    return _flex(place, inputs, name == FLEX_DYNAMIC)


NAMES = (FLASH, CUDNN, PLAIN, *list(WAYS)[1:], FLEX_STATIC, FLEX_DYNAMIC, AGAIN)


def _by(backend: SDPBackend, inputs: Inputs) -> Work:
    plain = inputs.plain()

    def work() -> tuple[Tensor, ...]:
        with sdpa_kernel(backend):
            return plain()

    return work


def _flex(place: Place, inputs: Inputs, dynamic: bool) -> Work:
    """FlexAttention with a causal block mask, made before, and no score_mod."""
    from torch.nn.attention.flex_attention import create_block_mask

    if place.is_dry and inputs.training:
        raise LeftOutError("FlexAttention has no backward pass on the CPU")
    tokens = inputs.query.size(2)
    seen = create_block_mask(lambda b, h, i, j: i >= j, None, None, tokens, tokens, device=str(place.device))
    attend = _compiled(dynamic and not place.is_dry)
    return inputs.work(lambda: attend(inputs.query, inputs.key, inputs.value, block_mask=seen))


@functools.cache
def _compiled(dynamic: bool) -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    compat.compilations(COMPILATIONS).__enter__()  # for good: entering it in each call would be timed
    return torch.compile(flex_attention, dynamic=dynamic)


# -- decoding and rotation --------------------------------------------------------------------------------------------

DECODED = (
    "nope, auto", "alibi, auto", "alibi, triton", "alibi, sdpa", "t5, auto", "t5, triton", "t5, sdpa", "shaw, auto",
    "fire, auto", "fire, sdpa",
)  # fmt: skip


def decoding(place: Place, name: str, backend: str, keys: int) -> tuple[Work, str]:
    """A step of a token for each sequence of a batch against a cache, heads grouped by four; and what "auto" takes."""
    heads, head_dim = place.sizes.heads, place.sizes.head_dim
    batch, key_heads = place.sizes.decoded, max(1, heads // 4)
    query = place.drawn(batch, heads, 1, head_dim)
    key, value = (place.drawn(batch, key_heads, keys, head_dim, seed=seed) for seed in (1, 2))
    scheme = scheme_of(place, name, heads, head_dim)
    how: dict[str, Any] = {
        "query_positions": Positions.arange(1, start=keys - 1, device=place.device),
        "key_positions": Positions.arange(keys, device=place.device),
        "is_causal": True,
    }
    with torch.no_grad():
        told = posenc.explain(query, key, value, scheme, **how)
    if backend in told.refusals:
        raise LeftOutError(told.refusals[backend])

    def work() -> tuple[Tensor, ...]:
        with torch.no_grad():
            out = posenc.attention(query, key, value, scheme, **how, backend=backend)
        assert isinstance(out, Tensor)
        return (out,)

    return work, told.backend


def plain_decoding(place: Place, keys: int) -> Work:
    """The same step without positions, by PyTorch's function."""
    heads, head_dim = place.sizes.heads, place.sizes.head_dim
    batch, key_heads = place.sizes.decoded, max(1, heads // 4)
    query = place.drawn(batch, heads, 1, head_dim)
    key, value = (place.drawn(batch, key_heads, keys, head_dim, seed=seed) for seed in (1, 2))

    def work() -> tuple[Tensor, ...]:
        return (F.scaled_dot_product_attention(query, key, value, enable_gqa=True),)

    return work


def rotating(place: Place, name: str) -> tuple[Work, int]:
    """Queries and keys turned, or copied into place; and the bytes that are read and written."""
    (batch, heads), tokens, head_dim = place.sizes.rotated, place.sizes.lengths[-1], place.sizes.head_dim
    # In the layout that a projection gives.
    query, key = (place.drawn(batch, tokens, heads, head_dim, seed=seed).transpose(1, 2) for seed in (0, 1))
    held = torch.empty_like(query), torch.empty_like(key)
    encoding = RoPE(head_dim).to(place.device).tokens(Positions.arange(tokens, device=place.device))

    def work() -> tuple[Tensor, ...]:
        with torch.no_grad():
            if name == "copy":
                return held[0].copy_(query), held[1].copy_(key)
            return encoding.rotate(query, key)

    return work, 2 * (query.nbytes + key.nbytes)
