"""PyTorch's context parallelism of FlexAttention, for ``posenc check field/subjects/context_parallel.py --world 2``.

The API is private, and of torch 2.13: where torch lacks it, this file does not import.
"""

import torch
import torch.distributed as dist
from torch.distributed.tensor.experimental._context_parallel import _attention as context_parallel
from torch.nn.attention import flex_attention as flex

from posenc_check import Attention

flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # else every process compiles it for seconds
flex.flex_attention(*torch.zeros(3, 1, 1, 128, 16))  # its imports take seconds, and processes are copies of this one


class Flex(torch.nn.Module):
    def forward(self, query, key, value, score_mod=None, block_mask=None):
        return flex.flex_attention(query, key, value, score_mod=score_mod, block_mask=block_mask)


BIASES = {
    "none": None,
    "alibi": lambda score, b, h, q, k: score - (h + 1) / 4 * (q - k).abs(),
    "clamped": lambda score, b, h, q, k: score - (h + 1) / 4 * (q - k).abs().clamp(max=8),
}


def build(bias="none"):
    made = Flex()
    made.bias, made.mesh = BIASES[bias], dist.init_device_mesh("cpu", (dist.get_world_size(),))
    style = context_parallel._ContextParallel(2, context_parallel._ContextParallel.AttentionType.FLEX)
    return style._apply(made, made.mesh)


def call(made, query, key, value, shard):
    rows, tokens = shard.document.shape

    def mask(b, h, q, k):
        return (q >= k) & (shard.document[b, q] == shard.document[b, k])

    context_parallel._compiled_create_block_mask = flex.create_block_mask  # so that no compiler is needed
    context_parallel._cp_options.enable_load_balance = shard.order == "zigzag"
    of_part = context_parallel._create_cp_block_mask(mask, rows, None, tokens, tokens, made.mesh)
    query, key, value = (x.detach() for x in (query, key, value))  # it has no backward pass on CPUs
    return made(query, key, value, score_mod=made.bias, block_mask=of_part)


def divided(bias):
    return Attention(
        build=build,
        call=call,
        options={"bias": bias},
        causal=True,
        heads=4,
        orders=("contiguous", "zigzag"),
        shard_multiple=128,
        dtype=torch.float32,
    )


plain, alibi, clamped = divided("none"), divided("alibi"), divided("clamped")
