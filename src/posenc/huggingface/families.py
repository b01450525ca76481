"""Reads the configuration of each family: a function per model_type, which reads every key about positions.

Each function follows the family's code in transformers 5.23: `configuration_X.py` for the meaning of keys and
`modeling_X.py` for their use. Where these differ, the model's code decides, and a key that it ignores is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from posenc.huggingface import rotating_families as rotating
from posenc.huggingface.described import Layer, ModelPositions
from posenc.huggingface.keys import Keys
from posenc.huggingface.reading import described, head_dim_of, scaled, silent
from posenc.huggingface.rope_parameters import rotary
from posenc.huggingface.variants import DividedALiBi, OffsetLearned
from posenc.scheme import Scheme
from posenc.schemes.alibi import ALiBi
from posenc.schemes.learned import Learned
from posenc.schemes.nope import NoPE
from posenc.schemes.swin_v2 import SwinV2
from posenc.schemes.t5 import T5

Reader = Callable[[Keys], ModelPositions]


# -- learned tables ---------------------------------------------------------------------------------------------------


def gpt2(keys: Keys) -> ModelPositions:
    table = Learned(keys("max_position_embeddings"), keys("hidden_size"))
    head_dim, count = head_dim_of(keys), int(keys("num_hidden_layers"))
    scale = head_dim**-0.5 if keys.flag("scale_attn_weights") else 1.0
    by_layer = keys.flag("scale_attn_by_inverse_layer_idx")
    scales = [scale / (layer + 1) if by_layer else scale for layer in range(count)]
    layers = [Layer(scale=scaled(scale, head_dim)) for scale in scales]
    return described(keys, NoPE(), None, layers, input=table)


def opt(keys: Keys) -> ModelPositions:
    table = OffsetLearned(keys("max_position_embeddings") + 2, keys("hidden_size"), 2)
    return described(keys, NoPE(), input=table)


def bert(keys: Keys) -> ModelPositions:
    return _encoder(keys, Learned(keys("max_position_embeddings"), keys("hidden_size")))


def roberta(keys: Keys) -> ModelPositions:
    table = OffsetLearned(keys("max_position_embeddings"), keys("hidden_size"), keys("pad_token_id") + 1)
    return _encoder(keys, table)


def _encoder(keys: Keys, table: Scheme) -> ModelPositions:
    keys.refuse("position_embedding_type", "absolute", why="must be 'absolute', which is all that transformers 5 has")
    return described(keys, NoPE(), input=table, causal=keys.flag("is_decoder"))


# -- biases -----------------------------------------------------------------------------------------------------------


def t5(keys: Keys) -> ModelPositions:
    heads, buckets = keys("num_attention_heads"), keys("relative_attention_num_buckets")
    decodes = keys.inside == "decoder"
    bias = T5(heads, buckets, keys("relative_attention_max_distance"), bidirectional=not decodes)
    count = int(keys("num_decoder_layers" if decodes else "num_hidden_layers"))
    remarks: tuple[str, ...] = ("attention of the decoder to the encoder has no positions",) if decodes else ()
    remarks += silent(keys, "n_positions")
    return described(keys, bias, None, [Layer(scale=1.0)] * count, causal=decodes, length=None, remarks=remarks)


def bloom(keys: Keys) -> ModelPositions:
    remark = "transformers counts positions by attention_mask, and takes no position_ids"
    return described(keys, ALiBi(keys("num_attention_heads")), remarks=(remark, *silent(keys, "offset_alibi")))


def mpt(keys: Keys) -> ModelPositions:
    own = Keys(_Named(keys("attn_config"), "mpt's attn_config"))
    own.refuse("alibi", True, why="must be true, since transformers' model always has ALiBi")
    own.refuse("alibi_bias_max", 8, why="must be 8, since transformers' model ignores it")
    for name in ("prefix_lm", "attn_uses_sequence_id"):
        own.refuse(name, False, why="must be false, since transformers' model ignores it")
    scale = own.get("softmax_scale")
    keys.get("learned_pos_emb")  # true by default, but the model has no table
    own.end()
    head_dim = int(keys("hidden_size") // keys("num_attention_heads"))
    layer = Layer(scale=None if scale is None else scaled(scale, head_dim))
    remark = "transformers counts positions from the last key, and takes no position_ids"
    scheme, length = ALiBi(keys("num_attention_heads")), keys.get("max_seq_len")
    return described(keys, scheme, None, layer, length=length, remarks=(remark,))


class _Named:
    """A nested configuration, with its location as its name in errors."""

    def __init__(self, config: Any, name: str) -> None:
        self.__dict__.update({k: v for k, v in vars(config).items() if not k.startswith("_")})
        self.model_type = name


def falcon(keys: Keys) -> ModelPositions:
    head_dim = int(keys("hidden_size") // keys("num_attention_heads"))
    if keys.flag("alibi"):
        keys.get("rope_parameters")  # present by default, and not used
        remarks = (
            "transformers rounds the bias to bfloat16, and counts positions by attention_mask",
            "rope_parameters are not used",
        )
        return described(keys, DividedALiBi(keys("num_attention_heads"), head_dim), remarks=remarks)
    return described(keys, rotary(keys, head_dim))


def swinv2(keys: Keys) -> ModelPositions:
    keys.refuse("use_absolute_embeddings", False, why="must be false: tables for the whole image are not read")
    image, patch, widest = keys("image_size"), keys("patch_size"), keys("window_size")
    if not isinstance(image, int) or not isinstance(patch, int):
        raise keys.wrong("image_size", "must be one number, and patch_size too, for square images")
    depths, heads, trained = (list(keys(name)) for name in ("depths", "num_heads", "pretrained_window_sizes"))
    schemes: list[Scheme] = []
    layers: list[Layer] = []
    for stage, depth in enumerate(depths):
        side = image // patch // 2**stage
        window, before = min(side, widest), trained[stage]
        for layer in range(depth):
            schemes.append(SwinV2((window, window), heads[stage], (before, before) if before > 0 else None))
            layers.append(Layer(patches=window, shift=widest // 2 if side > window and layer % 2 else 0))
    remark = f"of {image // patch} x {image // patch} patches, halved by every stage; each layer has its own weights"
    return described(keys, schemes, None, layers, causal=False, length=None, remarks=(remark,))


READERS: dict[str, Reader] = {
    "bert": bert,
    "bloom": bloom,
    "cohere": rotating.cohere,
    "cohere2": rotating.cohere2,
    "deepseek_v3": rotating.deepseek_v3,
    "dinov3_vit": rotating.dinov3,
    "falcon": falcon,
    "gemma": rotating.gemma,
    "gemma2": rotating.gemma2,
    "gemma3_text": rotating.gemma3,
    "gemma4_text": rotating.gemma4,
    "glm": rotating.glm,
    "gpt2": gpt2,
    "gpt_neox": rotating.phi,
    "gpt_oss": rotating.gpt_oss,
    "gptj": rotating.gptj,
    "llama": rotating.llama,
    "llama4_text": rotating.llama4,
    "ministral3": rotating.ministral3,
    "mistral": rotating.mistral,
    "modernbert": rotating.modernbert,
    "mpt": mpt,
    "olmo3": rotating.olmo3,
    "opt": opt,
    "phi": rotating.phi,
    "phi3": rotating.phi3,
    "qwen2": rotating.qwen2,
    "qwen2_vl_text": rotating.qwen2_vl,
    "qwen3": rotating.qwen2,
    "qwen3_vl_text": rotating.qwen3_vl,
    "roberta": roberta,
    "smollm3": rotating.smollm3,
    "swinv2": swinv2,
    "t5": t5,
}
"""The reader of each model_type."""
