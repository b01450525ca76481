"""Reads the configuration of each family whose code is not asked.

Readers follow `configuration_X.py` of transformers for the meaning of keys, and `modeling_X.py` for their use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

from posenc.arguments import shown, whole
from posenc.huggingface.reading import (
    NUMBERS,
    Keys,
    Layer,
    ModelPositions,
    check_sizes,
    head_dim_of,
    positional,
    rotary,
    scaled,
    summarize_model,
)
from posenc.huggingface.variants import DividedALiBi, table_of
from posenc.scheme import Scheme
from posenc.schemes.alibi import ALiBi
from posenc.schemes.axial_rope import AxialRoPE
from posenc.schemes.nope import NoPE
from posenc.schemes.rope import RoPE
from posenc.schemes.swin_v2 import SwinV2

# -- rotations --------------------------------------------------------------------------------------------------------


def gptj(keys: Keys) -> ModelPositions:
    # Base and layout are in the code, not in the configuration.
    for name in ("rotary", "scale_attn_weights"):
        keys.refuse(name, True, why="must be true, since transformers' model ignores it")
    return summarize_model(keys, RoPE(head_dim_of(keys), 10_000.0, "interleaved", rotary_dim=keys.whole("rotary_dim")))


def dinov3(keys: Keys) -> ModelPositions:
    augmented = {name: keys.get(f"pos_embed_{name}") for name in ("shift", "jitter", "rescale")}
    rope = AxialRoPE(head_dim_of(keys), "dinov3", keys.number("rope_theta"), **augmented)
    prefix = 1 + (keys.whole("num_register_tokens", 0) if keys.get("num_register_tokens") is not None else 0)
    remark = f"the first {prefix} tokens are not rotated: positions are scheme.grid(height, width, prefix={prefix})"
    return summarize_model(keys, rope, causal=False, remarks=(remark,))


Reader = Callable[[Keys], ModelPositions]


# -- learned tables ---------------------------------------------------------------------------------------------------


def _table(keys: Keys, rows: int, dim: int, before: int = 0) -> Scheme:
    """A learned table, of which the rows ``before`` are not of positions."""
    if rows * dim > NUMBERS:
        raise ValueError(
            f"the positions of {keys.model_type} must have at most {NUMBERS} learned numbers, got {shown(rows * dim)}"
        )
    return table_of(rows, dim, before)


def bert(keys: Keys, dim: str = "hidden_size") -> ModelPositions:
    return _encoder(keys, _table(keys, keys.whole("max_position_embeddings"), keys.whole(dim)))


def roberta(keys: Keys) -> ModelPositions:
    """The first position has the row after that of the padding token."""
    rows, padding = keys.whole("max_position_embeddings"), keys.whole("pad_token_id", 0)
    return _encoder(keys, _table(keys, rows, keys.whole("hidden_size"), padding + 1))


def _encoder(keys: Keys, table: Scheme) -> ModelPositions:
    keys.refuse("position_embedding_type", "absolute", why="must be 'absolute', which is all that transformers 5 has")
    return summarize_model(keys, NoPE(), input=table, causal=keys.flag("is_decoder"))


def esm(keys: Keys) -> ModelPositions:
    base = keys.number("rope_theta")  # present by default
    if keys.get("position_embedding_type") != "rotary":
        return roberta(keys)
    return summarize_model(keys, RoPE(head_dim_of(keys), base), causal=keys.flag("is_decoder"))


# -- biases -----------------------------------------------------------------------------------------------------------


def bloom(keys: Keys) -> ModelPositions:
    remark = "transformers counts positions by attention_mask, and takes no position_ids"
    return summarize_model(keys, ALiBi(keys.whole("num_attention_heads")), remarks=(remark,))


def mpt(keys: Keys) -> ModelPositions:
    if not hasattr(keys("attn_config"), "to_dict"):
        raise keys.wrong("attn_config", "must be a configuration")
    inner = {name: value for name, value in vars(keys("attn_config")).items() if not name.startswith("_")}
    own = Keys(SimpleNamespace(**inner | {"model_type": "mpt's attn_config"}))
    own.refuse("alibi", True, why="must be true, since transformers' model always has ALiBi")
    own.refuse("alibi_bias_max", 8, why="must be 8, since transformers' model ignores it")
    for name in ("prefix_lm", "attn_uses_sequence_id"):
        own.refuse(name, False, why="must be false, since transformers' model ignores it")
    scale = own.optional("softmax_scale")
    for name, value in positional(own.config):
        if name not in ("alibi", "alibi_bias_max", "prefix_lm", "attn_uses_sequence_id", "softmax_scale"):
            raise own.unread(name, value)
    head_dim = keys.whole("hidden_size") // keys.whole("num_attention_heads")
    layer = Layer(scale=None if scale is None else scaled(scale, head_dim))
    remark = "transformers counts positions from the last key, and takes no position_ids"
    scheme, length = ALiBi(keys.whole("num_attention_heads")), keys.get("max_seq_len")
    return summarize_model(keys, scheme, None, layer, length=length, remarks=(remark,))


def falcon(keys: Keys) -> ModelPositions:
    head_dim = keys.whole("hidden_size") // keys.whole("num_attention_heads")
    if keys.flag("alibi"):
        remarks = ("transformers rounds the bias to bfloat16, and counts positions by attention_mask",)
        return summarize_model(keys, DividedALiBi(keys.whole("num_attention_heads"), head_dim), remarks=remarks)
    return summarize_model(keys, rotary(keys, head_dim))


def swinv2(keys: Keys) -> ModelPositions:
    keys.refuse("use_absolute_embeddings", False, why="must be false: tables for the whole image are not read")
    image, patch, widest = (keys.whole(name) for name in ("image_size", "patch_size", "window_size"))
    depths, heads, trained = (keys.list(name) for name in ("depths", "num_heads", "pretrained_window_sizes"))
    if not len(depths) == len(heads) == len(trained):
        raise keys.wrong("depths", "must have as many entries as num_heads and pretrained_window_sizes")
    for name, least, values in (
        ("depths", 1, depths),
        ("num_heads", 1, heads),
        ("pretrained_window_sizes", 0, trained),
    ):
        for value in values:
            whole(f"each of {keys.model_type}'s {name}", value, least)
    check_sizes(f"{keys.model_type}'s layers", sum(depths))
    schemes: list[Scheme] = []
    layers: list[Layer] = []
    for stage, depth in enumerate(depths):
        side = image // patch // 2**stage
        window, before = min(side, widest), trained[stage]
        for layer in range(depth):
            schemes.append(SwinV2((window, window), heads[stage], (before, before) if before > 0 else None))
            layers.append(Layer(patches=window, shift=widest // 2 if side > window and layer % 2 else 0))
    remark = f"of {image // patch} x {image // patch} patches, halved by every stage; each layer has its own weights"
    return summarize_model(keys, schemes, None, layers, causal=False, length=None, remarks=(remark,))


FAMILIES: tuple[tuple[str, Reader], ...] = (
    # a learned table
    ("bert distilbert ernie megatron-bert", bert),
    ("camembert data2vec-text roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl", roberta),
    ("electra", partial(bert, dim="embedding_size")),
    ("esm", esm),
    # a bias
    ("bloom", bloom),
    ("falcon", falcon),
    ("mpt", mpt),
    ("swinv2", swinv2),
    # a rotation
    ("dinov3_vit", dinov3),
    ("gptj", gptj),
)

READERS: dict[str, Reader] = {name: reader for names, reader in FAMILIES for name in names.split()}
"""The reader of each model_type."""
