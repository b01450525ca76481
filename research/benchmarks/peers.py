"""Sets up what posenc is compared with: masks, FlexAttention, and other libraries, which are imported when used.

`make bench` installs the libraries; without them, the tables say that they are missing.
"""

import importlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.scheme import Scheme
from posenc.schemes.alibi import ALiBi
from posenc.schemes.shaw import Shaw
from posenc.schemes.t5 import T5
from posenc_lab.bench.measure import Inputs, LeftOutError, Make, Work
from posenc_lab.kit.machine import version_of

PEERS = ("x-transformers", "rotary-embedding-torch", "transformers")
FLEX = "FlexAttention, by hand"


def versions() -> dict[str, str]:
    """The versions of the peers, or "not installed"."""
    return {name: version_of(name) for name in PEERS}


def imported(module: str) -> Any:
    """A peer's module. Raises LeftOutError, with the import's message, if it cannot be imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about a peer's own code
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise LeftOutError(str(error)) from None


# -- rotations --------------------------------------------------------------------------------------------------------


def rotations(query: Tensor, key: Tensor) -> dict[str, Make]:
    """Other rotations of queries and keys (batch, heads, tokens, head_dim). Tables of angles are computed before, like
    posenc's encoding."""
    return {
        "transformers": partial(transformers_rotation, query, key, compile=False),
        "rotary-embedding-torch": partial(_rotary_embedding_torch, query, key),
    }


def transformers_rotation(query: Tensor, key: Tensor, *, compile: bool) -> Work:
    """``apply_rotary_pos_emb`` of its Llama, with cosines and sines in the precision of the queries, as there."""
    llama = imported("transformers.models.llama.modeling_llama")
    tokens, head_dim = query.shape[2:]
    pairs = torch.arange(0, head_dim, 2, device=query.device, dtype=torch.float32)
    angle = torch.outer(torch.arange(tokens, device=query.device), 10_000.0 ** (-pairs / head_dim)).repeat(1, 2)[None]
    cos, sin = angle.cos().to(query.dtype), angle.sin().to(query.dtype)
    apply = partial(llama.apply_rotary_pos_emb, cos=cos, sin=sin)
    return compiled(apply, query, key) if compile else lambda: apply(query, key)


def _rotary_embedding_torch(query: Tensor, key: Tensor) -> Work:
    rotary = imported("rotary_embedding_torch").RotaryEmbedding(query.size(3)).to(query.device)
    return lambda: (rotary.rotate_queries_or_keys(query), rotary.rotate_queries_or_keys(key))


def compiled(function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> Work:
    """The function, compiled at its first call for fixed sizes."""
    quick = torch.compile(function, dynamic=False)
    return lambda: quick(*inputs)


# -- attention --------------------------------------------------------------------------------------------------------


def attentions(scheme: Scheme, inputs: Inputs) -> dict[str, Make]:
    """Other implementations of causal attention with the bias of a scheme."""
    return {
        "mask built ahead": partial(_mask_ahead, scheme, inputs),
        "mask built in the call": partial(_mask_in_call, scheme, inputs),
        FLEX: partial(_flex, scheme, inputs),
        "x-transformers": partial(_x_transformers, scheme, inputs),
    }


def _distances(tokens: int, device: torch.device) -> Tensor:
    """p_j - p_i."""
    line = torch.arange(tokens, device=device)
    return line - line[:, None]


def _t5_bucket(distances: Tensor) -> Tensor:
    """T5's 32 buckets for keys before the query, up to a distance of 128; logarithms in float64."""
    back = (-distances).clamp(min=0)
    far = 16 + 16 * (back.clamp(min=1).double() / 16).log() / torch.tensor(128 / 16).double().log()
    return torch.where(back < 16, back, far.long().clamp(max=31))


def bias_of(scheme: Scheme, query: Tensor) -> Tensor:
    """The bias of a scheme, (heads or batch, .., queries, keys), computed without posenc."""
    distances = _distances(query.size(2), query.device)
    if isinstance(scheme, ALiBi):
        return torch.tensor(scheme.slopes, device=query.device)[:, None, None] * distances
    if isinstance(scheme, T5):
        return scheme.weight[_t5_bucket(distances)].permute(2, 0, 1)
    assert isinstance(scheme, Shaw)
    assert scheme.key_table is not None
    clipped = distances.clamp(-scheme.max_distance, scheme.max_distance) + scheme.max_distance
    met = query @ scheme.key_table.to(query.dtype).mT * query.size(3) ** -0.5
    return met.gather(3, clipped.expand(*met.shape[:2], *clipped.shape))


def _mask(scheme: Scheme, query: Tensor) -> Tensor:
    bias = bias_of(scheme, query).masked_fill(_distances(query.size(2), query.device) > 0, -torch.inf)
    return bias.to(query.dtype).expand(1, *query.shape[1:3], -1)


def _mask_ahead(scheme: Scheme, inputs: Inputs) -> Work:
    if isinstance(scheme, Shaw):
        raise LeftOutError("the bias depends on the queries, so no mask can be built ahead of them")
    if inputs.training and tuple(scheme.parameters()):
        raise LeftOutError("a mask built ahead gives its parameters no gradient")
    query, key, value = inputs.query, inputs.key, inputs.value
    mask = _mask(scheme, query).detach()
    return inputs.work(lambda: F.scaled_dot_product_attention(query, key, value, mask))


def _mask_in_call(scheme: Scheme, inputs: Inputs) -> Work:
    query, key, value = inputs.query, inputs.key, inputs.value
    learned = tuple(scheme.parameters())
    return inputs.work(lambda: F.scaled_dot_product_attention(query, key, value, _mask(scheme, query)), learned)


def _flex(scheme: Scheme, inputs: Inputs) -> Work:
    """A score_mod written for the scheme, compiled; the causal block mask is made before."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    query, key, value = inputs.query, inputs.key, inputs.value
    if inputs.training and query.device.type == "cpu":
        raise LeftOutError("FlexAttention has no backward pass on the CPU")
    tokens, device = query.size(2), query.device
    seen = create_block_mask(lambda b, h, i, j: i >= j, None, None, tokens, tokens, device=str(device))
    attend = partial(torch.compile(flex_attention, dynamic=False), query, key, value, block_mask=seen)
    if isinstance(scheme, ALiBi):
        slopes = torch.tensor(scheme.slopes, device=device)
        return inputs.work(lambda: attend(lambda s, b, h, i, j: s + slopes[h] * (j - i)))
    if isinstance(scheme, T5):
        bucket = _t5_bucket(-torch.arange(tokens, device=device))  # by distance back

        def biased() -> Tensor:
            table = scheme.weight[bucket].mT.contiguous()
            return attend(lambda s, b, h, i, j: s + table[h, (i - j).clamp(min=0)])
    else:
        assert isinstance(scheme, Shaw)
        window, keys = scheme.max_distance, scheme.key_table
        assert keys is not None

        def biased() -> Tensor:
            met = query @ keys.to(query.dtype).mT * query.size(3) ** -0.5
            return attend(lambda s, b, h, i, j: s + met[b, h, i, (j - i).clamp(-window, window) + window])

    return inputs.work(biased, tuple(scheme.parameters()))


def _x_transformers(scheme: Scheme, inputs: Inputs) -> Work:
    """Its bias modules and its attention: with SDPA for ALiBi; without SDPA for T5, whose bias it does not support
    there."""
    if isinstance(scheme, Shaw):
        raise LeftOutError("x-transformers has no Shaw")
    library, attends = imported("x_transformers.x_transformers"), imported("x_transformers.attend")
    query, key, value = inputs.query, inputs.key, inputs.value
    heads, tokens = query.shape[1:3]
    if isinstance(scheme, ALiBi):
        bias, flash = library.AlibiPositionalBias(heads), True
    else:
        # Its default scale is for a model that does not divide scores by sqrt(d); 1 gives T5's bias.
        bias, flash = library.RelativePositionBias(scale=1.0, causal=True, heads=heads), False
        with torch.no_grad():
            bias.relative_attention_bias.weight.copy_(scheme.weight)
    bias = bias.to(query.device)
    attend = attends.Attend(causal=True, heads=heads, flash=flash).to(query.device)
    learned = tuple(bias.parameters())
    return inputs.work(lambda: attend(query, key, value, attn_bias=bias(tokens, tokens).to(query.dtype))[0], learned)
