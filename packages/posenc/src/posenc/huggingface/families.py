"""Reads the configuration of each family that is not asked: it computes its own attention, or draws positions.

Readers follow `configuration_X.py` of transformers for the meaning of keys, and `modeling_X.py` for their use."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from posenc.arguments import whole
from posenc.huggingface.reading import Keys, Layer, ModelPositions, check_sizes, positional, scaled, summarize_model
from posenc.huggingface.variants import DividedALiBi
from posenc.schemes.alibi import ALiBi
from posenc.schemes.axial_rope import AxialRoPE
from posenc.schemes.rope import RoPE
from posenc.schemes.swin_v2 import SwinV2


def head_dim_of(keys: Keys) -> int:
    """hidden_size / num_attention_heads, if there is no head_dim."""
    given = keys.get("head_dim") is not None
    return keys.whole("head_dim") if given else keys.whole("hidden_size") // keys.whole("num_attention_heads")


def dinov3(keys: Keys) -> ModelPositions:
    augmented = {name: keys.get(f"pos_embed_{name}") for name in ("shift", "jitter", "rescale")}
    rope = AxialRoPE(head_dim_of(keys), "dinov3", keys.number("rope_theta"), **augmented)
    prefix = 1 + (keys.whole("num_register_tokens", 0) if keys.get("num_register_tokens") is not None else 0)
    remark = f"the first {prefix} tokens are not rotated: positions are scheme.grid(height, width, prefix={prefix})"
    return summarize_model(keys, rope, causal=False, remarks=(remark,))


def bloom(keys: Keys) -> ModelPositions:
    remark = "transformers counts positions by attention_mask, and takes no position_ids"
    return summarize_model(keys, ALiBi(keys.whole("num_attention_heads")), remarks=(remark,))


def mpt(keys: Keys) -> ModelPositions:
    if not hasattr(keys("attn_config"), "to_dict"):
        raise keys.wrong("attn_config", "must be a configuration")
    inner = {name: value for name, value in vars(keys("attn_config")).items() if not name.startswith("_")}
    own = Keys(SimpleNamespace(**inner | {"model_type": "mpt's attn_config"}))
    read = {"alibi": True, "alibi_bias_max": 8, "prefix_lm": False, "attn_uses_sequence_id": False}
    for name, value in read.items():
        own.refuse(name, value, why=f"must be {value}, since transformers' model computes so and does not read it")
    for name, value in positional(own.config):
        if name not in (*read, "softmax_scale"):
            raise own.unread(name, value)
    scale = None if own.get("softmax_scale") is None else scaled(own.number("softmax_scale"), head_dim_of(keys))
    remark = "transformers counts positions from the last key, and takes no position_ids"
    scheme, length = ALiBi(keys.whole("num_attention_heads")), keys.get("max_seq_len")
    return summarize_model(keys, scheme, None, Layer(scale=scale), length=length, remarks=(remark,))


def falcon(keys: Keys) -> ModelPositions:
    head_dim = keys.whole("hidden_size") // keys.whole("num_attention_heads")
    if keys.get("alibi"):
        remark = "transformers rounds the bias to bfloat16, and counts positions by attention_mask"
        return summarize_model(keys, DividedALiBi(keys.whole("num_attention_heads"), head_dim), remarks=(remark,))
    read = keys.parameters()
    scaling = read.scaling(read.kind(), read.number("partial_rotary_factor", 1.0), keys.get("max_position_embeddings"))
    return summarize_model(keys, RoPE(head_dim, read.number("rope_theta"), scaling=scaling))


def swinv2(keys: Keys) -> ModelPositions:
    keys.refuse("use_absolute_embeddings", False, why="must be false: tables for the whole image are not read")
    image, patch, widest = (keys.whole(name) for name in ("image_size", "patch_size", "window_size"))
    least = {"depths": 1, "num_heads": 1, "pretrained_window_sizes": 0}
    lists = [keys(name) for name in least]
    if not all(isinstance(each, list | tuple) and len(each) == len(lists[0]) for each in lists):
        raise keys.wrong("depths", "must have as many entries as num_heads and pretrained_window_sizes")
    for (name, smallest), values in zip(least.items(), lists, strict=True):
        for value in values:
            whole(f"each of {keys.model_type}'s {name}", value, smallest)
    check_sizes(f"{keys.model_type}'s layers", sum(lists[0]))
    schemes: list[SwinV2] = []
    layers: list[Layer] = []
    for stage, (depth, heads, before) in enumerate(zip(*lists, strict=True)):
        side = image // patch // 2**stage
        window = min(side, widest)
        for layer in range(depth):
            schemes.append(SwinV2((window, window), heads, (before, before) if before > 0 else None))
            layers.append(Layer(patches=window, shift=widest // 2 if side > window and layer % 2 else 0))
    remark = f"of {image // patch} x {image // patch} patches, halved by every stage; each layer has its own weights"
    return summarize_model(keys, schemes, None, layers, causal=False, length=None, remarks=(remark,))


READERS: dict[str, Callable[[Keys], ModelPositions]] = {
    "bloom": bloom,
    "dinov3_vit": dinov3,
    "falcon": falcon,
    "mpt": mpt,
    "swinv2": swinv2,
}
"""The reader of each model_type."""
