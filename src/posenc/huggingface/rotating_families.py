"""Reads the configurations of families that rotate: a function per model_type, or for several that are alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from posenc.huggingface.described import Layer, ModelPositions
from posenc.huggingface.keys import Keys
from posenc.huggingface.reading import (
    CHUNKED,
    FULL,
    SLIDING,
    check_pattern,
    described,
    head_dim_of,
    kinds_of,
    scaled,
    silent,
    windows_of,
)
from posenc.huggingface.rope_parameters import rotary
from posenc.positions.tiles import Chunk, Window
from posenc.scheme import Scheme
from posenc.schemes.axial_rope import AxialRoPE
from posenc.schemes.nope import NoPE
from posenc.schemes.query_scale import QueryScale
from posenc.schemes.rope import RoPE

# -- decoders ----------------------------------------------------------------------------------------------------------


def llama(keys: Keys) -> ModelPositions:
    return described(keys, rotary(keys, head_dim_of(keys)))


def cohere(keys: Keys) -> ModelPositions:
    return described(keys, rotary(keys, head_dim_of(keys), layout="interleaved"))


def gemma(keys: Keys) -> ModelPositions:
    keys.refuse("use_bidirectional_attention", False, why="must be false: only causal attention is read")
    return llama(keys)


def mistral(keys: Keys) -> ModelPositions:
    return described(keys, rotary(keys, head_dim_of(keys)), keys.get("sliding_window"))


def phi(keys: Keys) -> ModelPositions:
    return described(keys, rotary(keys, head_dim_of(keys), partial=True))


def glm(keys: Keys) -> ModelPositions:
    return described(keys, rotary(keys, head_dim_of(keys), partial=True, layout="interleaved"))


def phi3(keys: Keys) -> ModelPositions:
    # If this key is also outside rope_parameters, transformers uses the outer one.
    length, params = keys.get("original_max_position_embeddings"), keys("rope_parameters")
    if params.get("rope_type") == "longrope" and length != params.get("original_max_position_embeddings"):
        raise keys.wrong("original_max_position_embeddings", "contradicts that of rope_parameters")
    rope = rotary(keys, head_dim_of(keys), partial=True, aliases={"su": "longrope", "yarn": "longrope"})
    remark = "transformers takes the long list for the whole batch as soon as one of its rows is long"
    remarks = () if rope.scaling is None else (remark,)
    return described(keys, rope, keys.get("sliding_window"), remarks=remarks)


def qwen2(keys: Keys, rope: RoPE | None = None) -> ModelPositions:
    rope = rotary(keys, head_dim_of(keys)) if rope is None else rope
    kinds = kinds_of(keys, FULL, SLIDING)
    if keys.flag("use_sliding_window"):
        check_pattern(keys, "max_window_layers", kinds, lambda layer, n: SLIDING if layer >= n else FULL)
    keys.get("max_window_layers")  # inert, if nothing slides
    return described(keys, rope, windows_of(keys, kinds))


def qwen2_vl(keys: Keys) -> ModelPositions:
    head_dim = int(keys("hidden_size") // keys("num_attention_heads"))
    sections = _sections(keys, [16, 24, 24], head_dim)
    allocation = [axis % 3 for axis, pairs in enumerate(sections) for _ in range(pairs)]
    also = ("mrope_section",)
    return qwen2(keys, rotary(keys, head_dim, allocation=allocation, axes=3, also=also, aliases={"mrope": "default"}))


def qwen3_vl(keys: Keys) -> ModelPositions:
    head_dim = head_dim_of(keys)
    sections = _sections(keys, [24, 20, 20], head_dim)
    interleaved = keys("rope_parameters").get("mrope_interleaved")
    if interleaved not in (None, True):
        raise ValueError(
            f"{keys.model_type}'s rope_parameters['mrope_interleaved'] must be true, since the model always "
            f"interleaves, got {interleaved!r}"
        )
    allocation = [0] * (head_dim // 2)
    for axis in (1, 2):
        for pair in range(axis, min(3 * sections[axis], len(allocation)), 3):
            allocation[pair] = axis
    if [allocation.count(axis) for axis in range(3)] != list(sections):
        raise ValueError(
            f"{keys.model_type}'s rope_parameters['mrope_section'] must be the numbers of pairs of time, height and "
            f"width when interleaved, {[allocation.count(axis) for axis in range(3)]}, got {sections}"
        )
    also = ("mrope_section", "mrope_interleaved")
    rope = rotary(keys, head_dim, allocation=allocation, axes=3, also=also, aliases={"mrope": "default"})
    return described(keys, rope)


def _sections(keys: Keys, default: list[int], head_dim: int) -> list[int]:
    """The numbers of pairs that are rotated by time, height and width."""
    sections = keys("rope_parameters").get("mrope_section") or default
    if len(sections) != 3 or sum(sections) != head_dim // 2:
        raise ValueError(
            f"{keys.model_type}'s rope_parameters['mrope_section'] must be three numbers that add up to "
            f"head_dim / 2 = {head_dim // 2}, got {sections}"
        )
    return list(sections)


def gptj(keys: Keys) -> ModelPositions:
    # Base and layout are in the code, not in the configuration.
    for name in ("rotary", "scale_attn_weights"):
        keys.refuse(name, True, why="must be true, since transformers' model ignores it")
    return described(keys, RoPE(head_dim_of(keys), 10_000.0, "interleaved", rotary_dim=keys("rotary_dim")))


def gpt_oss(keys: Keys) -> ModelPositions:
    kinds = kinds_of(keys, FULL, SLIDING)
    rope = rotary(keys, head_dim_of(keys))
    return described(keys, rope, windows_of(keys, kinds), Layer(sinks=True))


def deepseek_v3(keys: Keys) -> ModelPositions:
    content, turned = int(keys("qk_nope_head_dim")), int(keys("qk_rope_head_dim"))
    keys.refuse("head_dim", turned, why=f"must be qk_rope_head_dim = {turned}")
    layout: Any = "interleaved" if keys.flag("rope_interleave") else "half"
    rope = rotary(
        keys, content + turned, layout=layout, rotary_dim=turned, first_channel=content, also=("mscale_all_dim",)
    )
    scale = (content + turned) ** -0.5
    params = keys("rope_parameters")
    of_all = params.get("mscale_all_dim")
    if of_all and params.get("rope_type", "default") != "default":
        if params.get("factor") is None:
            raise ValueError(f"{keys.model_type}'s rope_parameters['factor'] must be a number, got None")
        grown = 0.1 * of_all * math.log(params["factor"]) + 1 if params["factor"] > 1 else 1.0
        scale *= grown * grown
    return described(keys, rope, None, Layer(scale=scaled(scale, content + turned)))


def ministral3(keys: Keys) -> ModelPositions:
    params, name = keys("rope_parameters"), f"{keys.model_type}'s rope_parameters"
    beta, length = params.get("llama_4_scaling_beta"), params.get("original_max_position_embeddings")
    if beta is None or length is None:
        which = "llama_4_scaling_beta" if beta is None else "original_max_position_embeddings"
        raise ValueError(f"{name} must have {which!r}, by which queries are scaled, got {sorted(params)}")
    inner, outer = params.get("max_position_embeddings"), keys("max_position_embeddings")
    if inner not in (None, outer):
        raise ValueError(f"{name}['max_position_embeddings'] is {inner}, but max_position_embeddings is {outer}")
    rope = rotary(keys, head_dim_of(keys), also=("llama_4_scaling_beta", "max_position_embeddings"))
    scheme = rope + QueryScale("ministral3", length=length, strength=beta)
    return described(keys, scheme, keys.get("sliding_window"))


def llama4(keys: Keys) -> ModelPositions:
    kinds, turns = kinds_of(keys, FULL, CHUNKED), _turns(keys)
    rope = rotary(keys, head_dim_of(keys), layout="interleaved")
    still: Scheme = NoPE()
    strength, length = keys("attn_scale"), keys("floor_scale")
    remarks: tuple[str, ...] = ()
    if keys.flag("attn_temperature_tuning"):
        still = QueryScale("llama4", length=length, strength=strength)
        remarks = ("transformers scales queries by the slot in the cache, not by position_ids",)
    chunk = keys.get("attention_chunk_size")
    if CHUNKED in kinds and chunk is None:
        raise keys.wrong("attention_chunk_size", f"must be a number of tokens, since layer_types has {CHUNKED!r}")
    windows: list[Window] = [Chunk(chunk) if kind == CHUNKED else None for kind in kinds]
    schemes: list[Scheme] = [rope if turn else still for turn in turns]
    return described(keys, schemes, windows, remarks=remarks)


def smollm3(keys: Keys) -> ModelPositions:
    kinds, rope, nope = kinds_of(keys, FULL, SLIDING), rotary(keys, head_dim_of(keys)), NoPE()
    schemes: list[Scheme] = [rope if turn else nope for turn in _turns(keys)]
    keys.flag("use_sliding_window")
    remarks = silent(keys, "max_window_layers")
    return described(keys, schemes, windows_of(keys, kinds), remarks=remarks)


def _turns(keys: Keys) -> list[bool]:
    """no_rope_layers, where 1 means that the layer rotates."""
    marks = list(keys("no_rope_layers"))
    if len(marks) != keys("num_hidden_layers") or any(mark not in (0, 1) for mark in marks):
        raise keys.wrong("no_rope_layers", f"must be {keys('num_hidden_layers')} numbers, 1 for layers that rotate")
    check_pattern(keys, "no_rope_layer_interval", marks, lambda layer, n: int((layer + 1) % n != 0))
    return [bool(mark) for mark in marks]


def cohere2(keys: Keys) -> ModelPositions:
    kinds, nope = kinds_of(keys, FULL, SLIDING), NoPE()
    keys.refuse("position_embedding_type", "rope_gptj", why="must be 'rope_gptj', the only one that the model has")
    keys.refuse("rotary_pct", 1.0, why="must be 1, since cohere2 rotates all channels")
    rope = rotary(keys, head_dim_of(keys), layout="interleaved")
    check_pattern(keys, "sliding_window_pattern", kinds, lambda layer, n: SLIDING if (layer + 1) % n else FULL)
    schemes: list[Scheme] = [rope if kind == SLIDING else nope for kind in kinds]
    return described(keys, schemes, windows_of(keys, kinds))


def gemma2(keys: Keys) -> ModelPositions:
    keys.refuse("use_bidirectional_attention", False, why="must be false: only causal attention is read")
    kinds, head_dim = kinds_of(keys, FULL, SLIDING), head_dim_of(keys)
    window = keys.get("sliding_window")
    keys.refuse("sliding_window_size", window, why=f"contradicts sliding_window {window}")
    rope, layer = rotary(keys, head_dim), _gemma_layer(keys, head_dim)
    return described(keys, rope, windows_of(keys, kinds), layer)


def _gemma_layer(keys: Keys, head_dim: int) -> Layer:
    scale = scaled(keys("query_pre_attn_scalar") ** -0.5, head_dim)
    return Layer(
        scale=scale, softcap=keys.get("attn_logit_softcapping"), images=keys.inside in ("gemma3", "shieldgemma2")
    )


def by_kind(keys: Keys, kinds: Sequence[str], read: Callable[[str], Scheme]) -> list[Scheme]:
    """The scheme of each layer, from rope_parameters that are keyed by layer type."""
    params = keys("rope_parameters")
    unknown = [name for name in params if name not in (FULL, SLIDING)]
    if unknown:
        raise ValueError(
            f"{keys.model_type}'s rope_parameters must be keyed by {FULL} and {SLIDING}, got the key {unknown[0]!r}"
        )
    made = {kind: read(kind) for kind in sorted(set(kinds))}
    return [made[kind] for kind in kinds]


def gemma3(keys: Keys) -> ModelPositions:
    kinds, head_dim = kinds_of(keys, FULL, SLIDING), head_dim_of(keys)
    check_pattern(keys, "sliding_window_pattern", kinds, lambda layer, n: SLIDING if (layer + 1) % n else FULL)
    schemes = by_kind(keys, kinds, lambda kind: rotary(keys, head_dim, of_type=kind))
    windows = windows_of(keys, kinds)
    both_ways = keys.flag("use_bidirectional_attention")
    if both_ways:  # transformers has halved the window: |i - j| < n
        windows = [(n - 1, n - 1) if isinstance(n, int) else None for n in windows]
    return described(keys, schemes, windows, _gemma_layer(keys, head_dim), causal=not both_ways)


def olmo3(keys: Keys) -> ModelPositions:
    kinds, head_dim = kinds_of(keys, FULL, SLIDING), head_dim_of(keys)
    schemes = by_kind(keys, kinds, lambda kind: rotary(keys, head_dim, of_type=kind))
    return described(keys, schemes, windows_of(keys, kinds))


def gemma4(keys: Keys) -> ModelPositions:
    kinds, config = kinds_of(keys, FULL, SLIDING), keys.config
    keys.refuse("use_bidirectional_attention", "vision", why="must be none or 'vision': only causal text is read")
    blocks = keys.inside == "gemma4" and keys.get("use_bidirectional_attention") == "vision"
    dims = {kind: int(config.per_layer_config[kind].head_dim) for kind in set(kinds)}
    schemes = by_kind(keys, kinds, lambda kind: rotary(keys, dims[kind], of_type=kind))
    layers = [Layer(scale=1.0, images=blocks and kind == SLIDING) for kind in kinds]
    return described(keys, schemes, windows_of(keys, kinds), layers)


# -- encoders ----------------------------------------------------------------------------------------------------------


def modernbert(keys: Keys) -> ModelPositions:
    kinds, head_dim = kinds_of(keys, FULL, SLIDING), head_dim_of(keys)
    check_pattern(keys, "global_attn_every_n_layers", kinds, lambda layer, n: SLIDING if layer % n else FULL)
    schemes = by_kind(keys, kinds, lambda kind: rotary(keys, head_dim, of_type=kind))
    remarks = silent(keys, "position_embedding_type")
    side = keys("local_attention") // 2  # tokens on each side
    windows: list[Window] = [(side, side) if kind == SLIDING else None for kind in kinds]
    return described(keys, schemes, windows, causal=False, remarks=remarks)


def dinov3(keys: Keys) -> ModelPositions:
    augmented = {name: keys.get(f"pos_embed_{name}") for name in ("shift", "jitter", "rescale")}
    rope = AxialRoPE(head_dim_of(keys), "dinov3", float(keys("rope_theta")), **augmented)
    prefix = 1 + int(keys.get("num_register_tokens", 0))
    remark = f"the first {prefix} tokens are not rotated: positions are scheme.grid(height, width, prefix={prefix})"
    return described(keys, rope, causal=False, remarks=(remark,))
